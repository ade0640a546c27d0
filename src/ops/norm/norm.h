// Normalisations of one token's row.
//
// RmsNorm:   y = (x * 1/sqrt(mean(x^2) + eps)) * w
// LayerNorm: y = ((x - mean(x)) * 1/sqrt(mean((x - mean)^2) + eps)) * w + b
//   x, w, b, y: f32 [n]; y may be x
// Returns false (y undefined) if x holds a value that is not finite or whose squares leave f32.
// Synchronous, no allocation. Numerics: docs/numerics.md, "Norms".
// Source: model description of glm_moe_dsa (RMSNorm: Zhang & Sennrich 2019; LayerNorm: Ba 2016).
#pragma once

#include <cstdint>

namespace hillstar {

struct NormSlice {
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;  // LayerNorm only
  float* y = nullptr;
  int64_t n = 0;
  float eps = 0;
};

}  // namespace hillstar
