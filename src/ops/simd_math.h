// numerics/elementary.h in sixteen lanes: the same chains of operations. For kernel files only.
#pragma once

#include "numerics/elementary_constants.h"
#include "numerics/planes.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

SIMD_INLINE F32 Exp(F32 x) {
  const F32 c = Max(Min(x, Set(kExpHigh)), Set(-kExpHigh));
  const F32 n = Rint(Mul(c, Set(kLog2E)));
  const F32 r = Fma(n, Set(-kLn2Low), Fma(n, Set(-kLn2High), c));
  F32 p = Set(kExpTerms[0]);
  for (int i = 1; i < 8; ++i) p = Fma(p, r, Set(kExpTerms[i]));
  const F32 power = AsFloat(ShiftLeft<23>(AddInt(ToInt(n), SetInt(127))));
  return ZeroWhereLess(x, kExpLow, Mul(p, power));
}

SIMD_INLINE F32 Negate(F32 x) { return Mul(x, Set(-1.0f)); }
SIMD_INLINE F32 Silu(F32 x) { return Div(x, Add(Set(1.0f), Exp(Negate(x)))); }

// The partial sums (numerics/elementary.h), folded: first the vectors, then the lanes.
inline constexpr int kPartialVectors = kNumPartials / kLanes;
SIMD_INLINE float FoldPartials(F32 (&partial)[kPartialVectors]) {
  for (int stride = kPartialVectors / 2; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) partial[j] = Add(partial[j], partial[j + stride]);
  }
  return TreeSum(partial[0]);
}

// Scale of two planes (numerics/planes.h, QuantiseRow), 0 for values that count as zero, and its
// inverse.
struct PlaneScale {
  float scale, inverse;
};

// Of magnitudes' bits, which order as the values do, with infinity and NaN on top: amax / largest,
// `largest` being what amax becomes. False if a value is not finite; the scale is then 0.
SIMD_INLINE bool ScaleOf(I32 largest_bits, float largest, PlaneScale* out) {
  const int32_t bits = LargestInt(largest_bits);
  float amax;
  std::memcpy(&amax, &bits, sizeof amax);
  const bool finite = bits < 0x7f800000;
  *out = {0.0f, 0.0f};
  if (!finite || amax < kSmallestRowAmax) return finite;
  out->scale = amax / largest;
  out->inverse = 1.0f / out->scale;
  return true;
}

// The integers of both planes of 16 values. The low ones may still be 128; stored as bytes they
// become 127.
SIMD_INLINE void ToPlanes(F32 x, F32 inverse, I32* high, I32* low) {
  const F32 t = Mul(x, inverse);
  *high = ToInt(t);
  *low = MaxInt(ToInt(Mul(Sub(t, ToFloat(*high)), Set(256.0f))), SetInt(-127));
}

struct PlaneBytes {
  Bytes hi, lo;
};
// Of 64 values.
SIMD_INLINE PlaneBytes ToPlanes(const F32 (&x)[4], F32 inverse) {
  I32 high[4], low[4];
  for (int i = 0; i < 4; ++i) ToPlanes(x[i], inverse, &high[i], &low[i]);
  return {PackBytes(high), PackBytes(low)};
}

// Planes of 64 values with one scale; zero if one of them is not finite.
struct PlaneBlock {
  PlaneBytes bytes;
  float scale;
  bool finite;
};
SIMD_INLINE PlaneBlock QuantiseBlock(const F32 (&x)[4]) {
  const I32 largest =
      MaxInt(MaxInt(AbsBits(x[0]), AbsBits(x[1])), MaxInt(AbsBits(x[2]), AbsBits(x[3])));
  PlaneScale s;
  const bool finite = ScaleOf(largest, 127.0f, &s);
  PlaneBlock block{{{}, {}}, s.scale, finite};
  if (s.scale != 0.0f) block.bytes = ToPlanes(x, Set(s.inverse));
  return block;
}

SIMD_INLINE void StoreAll(int8_t* p, Bytes a) { StoreAll(reinterpret_cast<uint8_t*>(p), a); }

}  // namespace hillstar::HILLSTAR_LEVEL
