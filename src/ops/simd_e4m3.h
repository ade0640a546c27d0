// numerics/e4m3.h in sixteen lanes: the same codes and integers. For kernel files only.
#pragma once

#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {

// E4m3Planes of 64 codes.
struct E4m3PlaneBytes {
  Bytes hi, lo;
};
SIMD_INLINE E4m3PlaneBytes LoadE4m3Planes(const uint8_t* codes) {
  I32 hi[4], lo[4];
  for (int i = 0; i < 4; ++i) {
    const I32 steps = ToInt(Mul(LoadE4m3(codes + i * kLanes), Set(64.0f * 256.0f)));
    hi[i] = ShiftRight<8>(AddInt(steps, SetInt(128)));
    lo[i] = SubInt(steps, ShiftLeft<8>(hi[i]));
  }
  return {PackBytes(hi), PackBytes(lo)};
}

// FloatToE4m3, as signed bytes. Below 2^-6 a code counts steps of 2^-9, of which 8 are the first
// code above; from there on it is the upper bits of the float, which below would be less than the
// steps.
SIMD_INLINE I32 E4m3Codes(F32 x) {
  const I32 magnitude = AbsBits(x);
  const I32 odd = AndInt(ShiftRight<20>(magnitude), SetInt(1));
  const I32 rounded = ShiftRight<20>(AddInt(AddInt(magnitude, SetInt((1 << 19) - 1)), odd));
  const I32 normal = SubInt(rounded, SetInt((127 - 7) << 3));
  const I32 steps = MinInt(ToInt(Mul(AsFloat(magnitude), Set(512.0f))), SetInt(8));
  const I32 code = MinInt(MaxInt(normal, steps), SetInt(0x7e));
  return AddInt(code, AndInt(ShiftRight<31>(AsInt(x)), SetInt(-128)));
}

}  // namespace hillstar::HILLSTAR_LEVEL
