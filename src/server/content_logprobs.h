// Picks the logprobs of an answer's content out of those of all its tokens: reasoning and tool
// calls have none in OpenAI's Responses. One per answer, one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "engine/token_logprobs.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

class ContentLogprobs {
 public:
  // `starts_thinking`: the prompt ends in an open <think>. `reads_calls`: <tool_call> begins a
  // call, else it is content.
  ContentLogprobs(const Tokenizer& tokenizer, bool starts_thinking, bool reads_calls);

  void Push(const TokenLogprobs& token);
  // Those of the content that stands behind the first `num_calls` calls, so far and not yet taken.
  // Those further in front go: they were white space around calls.
  std::vector<TokenLogprobs> Take(int64_t num_calls);

 private:
  const int32_t think_close_, call_open_, call_close_;  // ids, or -1
  bool is_thinking_;
  bool is_in_call_ = false;
  int64_t num_calls_ = 0;
  std::deque<std::pair<int64_t, TokenLogprobs>> content_;  // each with the calls in front of it
};

}  // namespace hillstar
