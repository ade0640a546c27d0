// Answers of /v1/responses, streamed or whole. Both build the same response object; a stream tells
// of every step of it.
// Source: platform.openai.com/docs/api-reference/responses/object and /responses-streaming.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "server/content_logprobs.h"
#include "server/reply_writer.h"

namespace hillstar {

class ResponsesWriter : public AnswerWriter {
 public:
  struct Options {
    std::string id;        // "resp_..."
    OrderedJson settings;  // members of the response that repeat the request's
    bool starts_thinking = false, reads_calls = false;  // as the request has them
    std::function<int64_t()> clock;                     // seconds since 1970
    // Is handed the response when it has ended well, before the client knows of it; may be empty.
    std::function<void(const OrderedJson& response)> keep;
  };
  ResponsesWriter(ReplyContext context, Options options);

  void Begin() override;
  void Progress(int64_t done, int64_t total) override;
  void Write(const AnswerPiece& piece) override;
  void End(int64_t answer, const AnswerEnd& end) override;
  void Done(const TokenUsage& usage) override;
  void Fail(const ApiError& error) override;

 private:
  using Kind = AnswerDelta::Kind;
  // The last item of the output, which is still growing.
  struct Item {
    Kind kind = Kind::kContent;  // kCallBegin: a call
    std::string id;
    std::string name, call_id;  // of a call
    std::string text;           // or arguments
    OrderedJson logprobs = OrderedJson::array();
  };

  void Take(const AnswerDelta& delta);
  void Open(Kind kind, const std::string& name);
  void Append(const std::string& text);
  void Close(const char* status);
  // Where the answer is streamed.
  void Send(const char* type, OrderedJson members);
  void SendOfItem(const char* type, OrderedJson members);  // with item_id and output_index
  void SendOfPart(const char* type, OrderedJson members);  // with content_index too

  OrderedJson ItemJson(const char* status) const;
  OrderedJson PartJson() const;
  OrderedJson TakeLogprobs();
  OrderedJson Response(const char* status) const;

  const ReplyContext context_;
  const Options options_;
  bool has_started_ = false;
  int64_t num_events_ = 0;
  int64_t num_calls_ = 0;
  bool has_answered_ = false;  // a message or a call has begun
  std::optional<Item> item_;
  OrderedJson output_ = OrderedJson::array();  // items that have ended
  ContentLogprobs logprobs_;
  AnswerEnd end_;
};

}  // namespace hillstar
