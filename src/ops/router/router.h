// Float products by the 256-partial rule (router logits, indexer head weights) and the choice of
// experts.
#pragma once

#include <cstdint>

namespace hillstar {

// y[t, r] = sum over i of x[t, i] * w[r, i] for rows [first_row, first_row + num_rows).
//   w: f32 [rows, cols]; x: f32 [tokens, cols]; y: f32 [tokens, y_stride]
// Synchronous, no allocation. Numerics: docs/numerics.md, "Sums of floats".
struct FloatLinearSlice {
  const float* w = nullptr;
  const float* x = nullptr;
  int64_t cols = 0;
  int64_t num_tokens = 0;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
};

// The router's choice for one token.
//
// g = sigmoid(logits); S = the num_chosen largest of g + bias (ties: lower index first), in that
// order; weight = g / (sum over S of g + 1e-20) * scaling (without the division if !normalise).
//   logits, bias: f32 [num_experts]; experts: int32 [num_chosen]; weights: f32 [num_chosen]
// REQUIRES: logits and bias finite. Numerics: docs/numerics.md, "Router". Source: DeepSeek-V3
// report, 2.1.2.
struct RouterChoice {
  const float* logits = nullptr;
  const float* bias = nullptr;
  int64_t num_experts = 0;
  int64_t num_chosen = 0;
  bool normalise = true;
  float scaling = 1.0f;
  float* scores = nullptr;  // scratch [num_experts]
  int32_t* experts = nullptr;
  float* weights = nullptr;
};
void ChooseExperts(const RouterChoice& c);

}  // namespace hillstar
