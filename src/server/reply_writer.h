// What the writers of all APIs share: the reply, the request's names, and how events are framed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/answer_writer.h"
#include "server/api_json.h"
#include "server/http_server.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

// Of one request.
struct ReplyContext {
  std::shared_ptr<HttpReply> reply;
  const Tokenizer* tokenizer = nullptr;  // outlives the writer
  std::string model;                     // the name that answers carry
  std::string fingerprint;               // of model and program: the same bits under the same
  std::string request_id;
  int64_t created = 0;  // seconds since 1970
  bool streams = false;
  bool includes_usage = false;  // OpenAI's stream_options
  int64_t answers_each = 1;
  std::vector<std::string> echoes;  // of a completion's prompts
};

// Comments while nothing else comes, so that nobody takes the silence of a long prompt for a fault.
inline constexpr std::chrono::seconds kKeepAliveInterval{10};

// "data: JSON\n\n", with "event: NAME\n" in front where there is a name.
std::string StreamEvent(const OrderedJson& data, std::string_view name = {});
// An event stream's beginning, with comments (or `keep_alive`) while it is silent.
void StartStream(HttpReply& reply, std::string keep_alive);
void SendJson(HttpReply& reply, int status, const OrderedJson& body);
// Tells of an error that ends a request: as the stream's last event where it has started.
void FailOpenAi(const ReplyContext& context, bool has_started, const ApiError& error);
// An id such as "chatcmpl-..." for the request.
std::string ObjectId(std::string_view prefix, const std::string& request_id);

// The answers as they grow, for those that are sent whole.
struct WholeAnswer {
  Answer answer;  // reasoning, content, tool calls
  std::vector<TokenLogprobs> logprobs;
  AnswerEnd end;
};

}  // namespace hillstar
