// The elementary functions of the arithmetic contract (docs/numerics.md, "Elementary functions"):
// each result is a fixed chain of IEEE operations, so that every kernel can equal it bit for bit.
// Pure functions; any thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "numerics/elementary_constants.h"

namespace hillstar {

// exp(x) = 2^n * p(r), n = rint(x log2 e), r = x - n ln 2.
inline float Exp(float x) {
  float c = x < kExpHigh ? x : kExpHigh;
  c = c > -kExpHigh ? c : -kExpHigh;
  const float n = std::rint(c * kLog2E);
  const float r = std::fma(n, -kLn2Low, std::fma(n, -kLn2High, c));
  float p = kExpTerms[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, r, kExpTerms[i]);
  if (x < kExpLow) return 0.0f;
  return p * std::bit_cast<float>((int32_t(n) + 127) << 23);
}

inline float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }
inline float Silu(float x) { return x / (1.0f + Exp(-x)); }

// Sums of any length run over 256 partial sums: term i goes to partial i mod 256 in ascending
// order, then partial j takes partial j + stride for stride 128, 64, ... 1.

inline float FoldPartials(float* partial) {
  for (int stride = kNumPartials / 2; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) partial[j] += partial[j + stride];
  }
  return partial[0];
}

// sum of a[i] * b[i], each term by one fma.
inline float Dot256(const float* a, const float* b, int64_t n) {
  float partial[kNumPartials] = {};
  for (int64_t i = 0; i < n; ++i) {
    float& p = partial[i % kNumPartials];
    p = std::fma(a[i], b[i], p);
  }
  return FoldPartials(partial);
}

inline float Sum256(const float* a, int64_t n) {
  float partial[kNumPartials] = {};
  for (int64_t i = 0; i < n; ++i) partial[i % kNumPartials] += a[i];
  return FoldPartials(partial);
}

}  // namespace hillstar
