// Draws the next token from logits in the host's memory. The result depends on the logits, the
// parameters, the tokens so far and the position only, see ops/sample/sample.h; it is the token
// that an engine draws where its logits are. One Sampler belongs to one sequence and one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hillstar/error.h"
#include "hillstar/sampling.h"
#include "ops/sample/sample.h"

namespace hillstar {

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
  std::span<const float> Penalised(std::span<const float> logits);

  const CpuKernels* kernels_;
  SamplingParams params_;
  DrawParams draw_;
  bool has_penalties_;
  std::vector<int32_t> answer_count_;  // a token's occurrences in the answer
  std::vector<bool> is_seen_;          // in prompt or answer
  std::vector<int32_t> seen_ids_;      // the ids with is_seen_
  std::vector<float> penalised_;
  std::vector<uint64_t> scratch_;
};

}  // namespace hillstar
