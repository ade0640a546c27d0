// Draws the next token from logits. The result depends on the logits, the parameters, the tokens
// so far and the position only: all arithmetic is plain double in a fixed order, and the random
// number is a function of (seed, position). One Sampler belongs to one sequence and one thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "hillstar/error.h"

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
// Tokens whose scaled logit lies further below the largest are never drawn: e^-40 is 4e-18, so that
// a vocabulary of a million of them has a probability of 4e-12.
inline constexpr double kLargestLogitGap = 40;

// Whether the most likely token is always taken, and nothing else of the answer matters.
bool IsGreedy(const SamplingParams& params);

// Errors: kBadRequest naming the parameter, its value and its range.
void CheckSamplingParams(const SamplingParams& params);

// The index of the largest logit; ties go to the lower index. Minus infinity counts as never.
// Errors: kNonFinite if one is NaN or plus infinity, or if all are minus infinity.
int32_t Argmax(std::span<const float> logits);

// The largest logit minus the second. REQUIRES two or more. Errors: as Argmax.
double MarginOf(std::span<const float> logits);

class Sampler {
 public:
  // Errors: as CheckSamplingParams; kBadRequest for a prompt id outside the vocabulary.
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids, int64_t vocab_size);

  // The token at `position` of the sequence, given the logits f32 [vocab] of the one before it.
  // Errors: as Argmax.
  int32_t Draw(std::span<const float> logits, int64_t position);
  // Notes that the answer holds `id` now.
  void Accept(int32_t id);

 private:
  struct Candidate {
    int32_t id;
    double logit;   // scaled, minus the largest
    double weight;  // exp(logit)
  };
  std::span<const float> Penalised(std::span<const float> logits);
  void FindCandidates(std::span<const float> logits, int32_t best);
  void KeepTopK();
  void KeepTopP();
  void KeepMinP();

  SamplingParams params_;
  bool has_penalties_;
  std::vector<int32_t> answer_count_;  // a token's occurrences in the answer
  std::vector<bool> is_seen_;          // in prompt or answer
  std::vector<int32_t> seen_ids_;      // the ids with is_seen_
  std::vector<float> penalised_;
  std::vector<Candidate> candidates_;
};

// Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);
// Uniform in [0, 1), in steps of 2^-53.
double UniformAt(uint64_t seed, uint64_t position);
// e^x for x <= 0 in double with a fixed sequence of operations; within 1e-15 relative of the true
// value for x >= -700, and 0 below.
double ExpNonPositive(double x);

}  // namespace hillstar
