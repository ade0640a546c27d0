// How the tokens of an answer are drawn.
#pragma once

#include <cstdint>

namespace hillstar {

struct SamplingParams {
  double temperature = 1;  // below kGreedyTemperature: the most likely token
  double top_p = 1;
  int64_t top_k = 0;  // 0: all
  double min_p = 0;
  double repetition_penalty = 1;  // over prompt and answer
  double presence_penalty = 0;    // over the answer
  double frequency_penalty = 0;   // over the answer
  uint64_t seed = 0;
};

// Dividing a logit of a few tens by less than this leaves only the maximum in double precision.
inline constexpr double kGreedyTemperature = 1e-4;

// Whether the next token depends on the tokens so far and not on their number alone.
inline constexpr bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

}  // namespace hillstar
