// POST /v1/chat/completions: OpenAI's request, read and checked. docs/api.md lists the members.
// Source: platform.openai.com/docs/api-reference/chat/create. Pure functions; any thread.
#pragma once

#include "server/answer_request.h"
#include "server/api_json.h"

namespace hillstar {

struct ChatCompletionRequest {
  AnswerRequest answer;
  bool streams = false;
  bool includes_usage = false;  // in a stream of its own chunk
};

// Errors: ApiError of status 400.
ChatCompletionRequest ReadChatCompletion(const OrderedJson& body, const Engine& engine,
                                         const AnswerDefaults& defaults);

// OpenAI's messages. Errors as above; `path` leads to the array.
std::vector<ChatMessage> ReadChatMessages(const OrderedJson& messages, const std::string& path);

}  // namespace hillstar
