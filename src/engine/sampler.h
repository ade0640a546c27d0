// Draws the next token from logits in the host's memory. The result depends on the logits, the
// parameters, the tokens so far and the position only, see ops/sample/sample.h; it is the token
// that an engine draws where its logits are. One Sampler belongs to one sequence and one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/token_constraint.h"
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

struct LogitBias {
  int32_t id = 0;
  float bias = 0;  // added to the token's logit, after the penalties
};

// What a request asks of its tokens besides SamplingParams.
struct TokenRules {
  std::vector<LogitBias> biases;
  std::shared_ptr<TokenConstraint> constraint;  // null: none
};

class Sampler {
 public:
  // Errors: as CheckSamplingParams; kBadRequest for a prompt id or a bias' id outside the
  // vocabulary.
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids, int64_t vocab_size,
          TokenRules rules = {});

  // Whether tokens have to be drawn here, since an engine knows SamplingParams alone.
  bool needs_logits() const {
    return has_penalties_ || !rules_.biases.empty() || rules_.constraint;
  }

  // The token at `position` of the sequence, given the logits f32 [vocab] of the one before it.
  // Errors: as Argmax; kNonFinite where the constraint leaves no token.
  int32_t Draw(std::span<const float> logits, int64_t position);
  // Notes that the answer holds `id` now.
  void Accept(int32_t id);

 private:
  // The logits under penalties, biases and the constraint.
  std::span<const float> Adjusted(std::span<const float> logits);
  void Penalise();
  void Restrict();

  const CpuKernels* kernels_;
  SamplingParams params_;
  DrawParams draw_;
  bool has_penalties_;
  TokenRules rules_;
  std::vector<int32_t> answer_count_;  // a token's occurrences in the answer
  std::vector<bool> is_seen_;          // in prompt or answer
  std::vector<int32_t> seen_ids_;      // the ids with is_seen_
  std::vector<float> adjusted_;
  std::vector<uint32_t> allowed_;  // a bit for each token
  std::vector<uint64_t> scratch_;
};

}  // namespace hillstar
