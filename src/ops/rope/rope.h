// Rotary position embedding of one vector: pairs in, halves out.
//
// out[j] = a cos_j - b sin_j, out[half + j] = b cos_j + a sin_j with (a, b) = (in[2j], in[2j + 1])
//   in, out: f32 [2 * half], not overlapping; cos, sin: f32 [half] of the token's position, from
//   double precision (angle = pos * theta^(-2j / (2 half)))
// Each line is one product and one fma. Numerics: docs/numerics.md, "RoPE". Source: Su et al. 2021.
#pragma once

#include <cstdint>

namespace hillstar {

struct RopeSlice {
  const float* in = nullptr;
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;
  float* out = nullptr;
};

}  // namespace hillstar
