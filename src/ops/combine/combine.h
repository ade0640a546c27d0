// The end of a MoE layer for one token, and residual sums.
//
// WeightedSum: x += (sum over ranks 0..k-1 of weight[rank] * row[rank], by fma from 0) + shared
//   rows: k pointers to f32 [n]; shared: f32 [n]; x: f32 [n] in place
// AddRow: x += y. Both: [n], synchronous, no allocation.
// Numerics: docs/numerics.md, "Experts". Source: DeepSeek-V3 report, 2.1.2.
#pragma once

#include <cstdint>

namespace hillstar {

struct WeightedSumSlice {
  const float* const* rows = nullptr;
  const float* weights = nullptr;
  int64_t num_rows = 0;
  const float* shared = nullptr;  // null: the model has no shared expert
  float* x = nullptr;
  int64_t n = 0;
};

}  // namespace hillstar
