// POST /v1/completions: OpenAI's older request, which continues a text. docs/api.md lists the
// members. Source: platform.openai.com/docs/api-reference/completions/create. Pure functions; any
// thread.
#pragma once

#include "server/answer_request.h"
#include "server/api_json.h"

namespace hillstar {

struct CompletionRequest {
  AnswerRequest answer;
  std::vector<std::string> echoes;  // the prompts' texts, where they are to come back
  bool streams = false;
  bool includes_usage = false;
};

// Errors: ApiError of status 400.
CompletionRequest ReadCompletion(const OrderedJson& body, const Engine& engine,
                                 const AnswerDefaults& defaults);

}  // namespace hillstar
