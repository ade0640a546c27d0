// POST /v1/messages and /v1/messages/count_tokens: Anthropic's request, read and checked.
// docs/api.md lists the members. Source: docs.anthropic.com/en/api/messages. Pure functions; any
// thread.
#pragma once

#include "server/answer_request.h"
#include "server/api_json.h"

namespace hillstar {

struct MessageRequest {
  AnswerRequest answer;
  bool streams = false;
};

// Errors: ApiError of status 400.
MessageRequest ReadMessage(const OrderedJson& body, const Engine& engine,
                           const AnswerDefaults& defaults);

// Tokens of the prompt that the same request would make.
int64_t CountMessageTokens(const OrderedJson& body, const Engine& engine,
                           const AnswerDefaults& defaults);

}  // namespace hillstar
