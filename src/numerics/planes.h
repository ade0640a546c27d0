// Values as two integer planes and a scale ("A15"): x ~ (scale / 256) * (256 * hi + lo), see
// docs/numerics.md, "Two planes". Activations have one scale per 64 inputs, rows of the KV cache,
// queries and probabilities one scale a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "numerics/weights.h"

namespace hillstar {

// A row whose largest magnitude is below this counts as zero: its scale would be subnormal.
inline constexpr float kSmallestRowAmax = 0x1p-100f;

// A value in units of scale / 256: 256 * hi + lo.
struct PlanePair {
  int8_t hi, lo;
};

// Of finite values.
inline float LargestMagnitude(const float* x, int64_t n) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float a = std::fabs(x[i]);
    if (a > amax) amax = a;
  }
  return amax;
}

// Quantises n values to one scale and returns it (0 for a row that counts as zero).
// x must be finite. hi and lo: int8 [n]; without lo the row has the high plane only.
inline float QuantiseRow(const float* x, int64_t n, int8_t* hi, int8_t* lo) {
  const float amax = LargestMagnitude(x, n);
  const bool zero = amax < kSmallestRowAmax;
  const float scale = zero ? 0.0f : amax / 127.0f;
  const float inverse = zero ? 0.0f : 1.0f / scale;
  for (int64_t i = 0; i < n; ++i) {
    const float t = x[i] * inverse;
    const float h = std::rint(t);
    hi[i] = int8_t(h);
    if (lo == nullptr) continue;
    float l = std::rint((t - h) * 256.0f);
    l = l < 127.0f ? l : 127.0f;
    l = l > -127.0f ? l : -127.0f;
    lo[i] = int8_t(l);
  }
  return scale;
}

// The product of two two-plane rows in units of 1/256 of their scales' product:
// 256 * sum(x_hi y_hi) + sum(x_hi y_lo + x_lo y_hi), an exact integer. The sum of x_lo y_lo is left
// out: it is of the size of what rounding to planes already left out (docs/numerics.md, "Two
// planes"). For n <= 512 |result| <= 512 * 127 * 127 * 258 < 2^31; with y from e4m3 codes (|hi| <=
// 112, lo down to -128) |result| <= 512 * 127 * (256 * 112 + 128 + 112) < 2^31.
inline int32_t PlaneProduct(const int8_t* x_hi, const int8_t* x_lo, const int8_t* y_hi,
                            const int8_t* y_lo, int64_t n) {
  int32_t high = 0, cross = 0;
  for (int64_t i = 0; i < n; ++i) {
    high += x_hi[i] * y_hi[i];
    cross += x_hi[i] * y_lo[i] + x_lo[i] * y_hi[i];
  }
  return 256 * high + cross;
}

// Activations of some tokens as planes with a scale per group. A view: the workspace owns the
// memory. K is padded to whole groups with zeros; all pointers are 64-byte aligned.
struct ActivationPlanes {
  int64_t cols = 0;        // inputs, unpadded
  int8_t* hi = nullptr;    // [tokens, NumGroups(cols) * 64]
  int8_t* lo = nullptr;    // likewise
  float* scale = nullptr;  // [tokens, NumGroups(cols)]: the group's scale / 256
  int32_t* sum = nullptr;  // [tokens, NumGroups(cols)]: sum of 256 * hi + lo, for biased weights

  constexpr int64_t groups() const { return NumGroups(cols); }
  constexpr int64_t stride() const { return groups() * kGroup; }
  // The same planes seen as more rows of fewer columns (heads of a token), or from row `row` on.
  constexpr ActivationPlanes FromRow(int64_t row) const {
    return {cols, hi + row * stride(), lo + row * stride(), scale + row * groups(),
            sum + row * groups()};
  }
};

}  // namespace hillstar
