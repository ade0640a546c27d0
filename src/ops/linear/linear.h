// Linear layers on integer weights and two-plane activations.
#pragma once

#include <cstdint>

#include "numerics/planes.h"
#include "numerics/weights.h"

namespace hillstar {

// The planes, scales and starting sums of up to eight tokens, packed side by side.
constexpr size_t LinearScratchBytes(int64_t cols) {
  return size_t(8 * NumGroups(cols)) * (2 * kGroup + sizeof(float) + sizeof(int32_t));
}

// A piece of one linear layer: some panels of rows for some tokens.
//
// y[t, r] = sum over segments of sum over groups of float(d) * scales, d the exact integer dot
// product of row r and token t over 64 inputs.
//   w: [rows, cols] W4, W8 or W15
//   x: planes [tokens, cols]
//   y: f32 [tokens, rows], rows y_stride floats apart
//   scratch: LinearScratchBytes(cols), 64-byte aligned, one a thread; may be null for one token
// REQUIRES: x.cols == w.cols; panels inside the matrix; y does not overlap the inputs.
// Errors: none. Synchronous, no allocation. Writes rows 16 * first_panel on, at most w.rows.
// Numerics: docs/numerics.md, "Linear layer". Source: docs/numerics.md (our own).
struct LinearSlice {
  WeightView w;
  ActivationPlanes x;
  // Row of x for token t: x_rows[t] where given, else x_first + t * x_step.
  const int32_t* x_rows = nullptr;
  int64_t x_first = 0;
  int64_t x_step = 1;
  int64_t num_tokens = 0;
  int64_t first_panel = 0;
  int64_t num_panels = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  uint8_t* scratch = nullptr;

  constexpr int64_t x_row(int64_t t) const { return x_rows ? x_rows[t] : x_first + t * x_step; }
};

// All of a layer for num_tokens tokens, y dense.
inline LinearSlice WholeLayer(const WeightView& w, const ActivationPlanes& x, int64_t num_tokens,
                              float* y) {
  LinearSlice s;
  s.w = w;
  s.x = x;
  s.num_tokens = num_tokens;
  s.y = y;
  s.y_stride = w.rows;
  return s;
}

// A piece of an expert's (or a dense MLP's) first half: h = silu(gate x) * (up x).
// As LinearSlice, with the gate matrix in `linear.w` and the up matrix beside it.
struct SwiGluSlice {
  LinearSlice linear;
  WeightView up;
};

}  // namespace hillstar
