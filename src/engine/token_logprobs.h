// How likely the model found a token and those that it might have drawn instead, by the logits as
// they came: before temperature, penalties, biases and grammar. Plain functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hillstar {

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;  // natural logarithm of the probability
};

struct TokenLogprobs {
  TokenLogprob drawn;
  std::vector<TokenLogprob> top;  // the most likely first; ties by id
};

// REQUIRES: logits f32 [vocab], 0 <= id < vocab, num_top >= 0; fewer where the vocabulary has
// fewer.
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t id, int64_t num_top);

}  // namespace hillstar
