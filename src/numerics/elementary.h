// The elementary functions of the arithmetic contract (docs/numerics.md, "Elementary functions"):
// each result is a fixed chain of IEEE operations, so that every kernel can equal it bit for bit.
// Pure functions; any thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hillstar {

// Below kExpLow the result is 0, above kExpHigh it is exp(kExpHigh): finite and never subnormal.
inline constexpr float kExpLow = -87.0f;
inline constexpr float kExpHigh = 88.0f;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e4p-1f;    // ln 2 in 15 bits: n * kLn2High is exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;  // the rest
// Taylor coefficients 1/7! ... 1/0!: the first term left out is below 2^-27 for |r| <= ln2 / 2.
inline constexpr float kExpTerms[] = {1.f / 5040, 1.f / 720, 1.f / 120, 1.f / 24,
                                      1.f / 6,    1.f / 2,   1.f,       1.f};

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
inline constexpr int kNumPartials = 256;

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
