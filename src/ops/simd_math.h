// numerics/elementary.h in sixteen lanes: the same chains of operations. For kernel files only.
#pragma once

#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

SIMD_INLINE F32 Exp(F32 x) {
  const F32 c = Max(Min(x, Set(88.0f)), Set(-88.0f));
  const F32 n = Rint(Mul(c, Set(0x1.715476p+0f)));
  const F32 r = Fma(n, Set(-0x1.7f7d1cp-20f), Fma(n, Set(-0x1.62e4p-1f), c));
  F32 p = Set(1.f / 5040);
  p = Fma(p, r, Set(1.f / 720));
  p = Fma(p, r, Set(1.f / 120));
  p = Fma(p, r, Set(1.f / 24));
  p = Fma(p, r, Set(1.f / 6));
  p = Fma(p, r, Set(1.f / 2));
  p = Fma(p, r, Set(1.f));
  p = Fma(p, r, Set(1.f));
  const F32 power = AsFloat(ShiftLeft<23>(AddInt(ToInt(n), SetInt(127))));
  return ZeroWhereLess(x, -87.0f, Mul(p, power));
}

SIMD_INLINE F32 Negate(F32 x) { return Mul(x, Set(-1.0f)); }
SIMD_INLINE F32 Sigmoid(F32 x) { return Div(Set(1.0f), Add(Set(1.0f), Exp(Negate(x)))); }
SIMD_INLINE F32 Silu(F32 x) { return Div(x, Add(Set(1.0f), Exp(Negate(x)))); }

// 256 partial sums (numerics/elementary.h), folded: first the vectors, then the lanes.
SIMD_INLINE float FoldPartials(F32 (&partial)[16]) {
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) partial[j] = Add(partial[j], partial[j + stride]);
  }
  return TreeSum(partial[0]);
}

// Quantises `n` values (a multiple of 16, padded with zeros by the caller's buffer or loads) to one
// scale; numerics/planes.h, QuantiseRow. `load(i)` gives lanes i..i+15. Returns the scale; *finite
// becomes false if any value is not finite (the planes are then zero).
template <typename LoadFn>
SIMD_INLINE float QuantiseLanes(int64_t n, const LoadFn& load, int8_t* hi, int8_t* lo,
                                bool* finite) {
  F32 largest = Set(0.0f), poison = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32 x = load(i);
    largest = Max(Abs(x), largest);
    poison = Add(poison, Sub(x, x));
  }
  const float amax = Largest(largest);
  if (!AllZero(poison)) *finite = false;
  if (!*finite || amax < 0x1p-100f) {
    std::memset(hi, 0, static_cast<size_t>(n));
    std::memset(lo, 0, static_cast<size_t>(n));
    return 0.0f;
  }
  const float scale = amax / 127.0f;
  const F32 inverse = Set(1.0f / scale);
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32 t = Mul(load(i), inverse);
    const F32 h = Rint(t);
    const F32 l = Rint(Mul(Sub(t, h), Set(256.0f)));
    StoreBytes(hi + i, ToInt(h));
    StoreBytes(lo + i, ToInt(Max(Min(l, Set(127.0f)), Set(-127.0f))));
  }
  return scale;
}

}  // namespace hillstar::HILLSTAR_LEVEL
