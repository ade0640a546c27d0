// numerics/e4m3.h in sixteen lanes: the same codes and integers. For kernel files only.
#pragma once

#include "numerics/e4m3.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {

// E4m3Planes of 64 codes.
struct E4m3PlaneBytes {
  Bytes hi, lo;
};

#if HILLSTAR_SIMD == 2

// kE4m3Steps of the codes without a sign, in registers.
struct E4m3Table {
  __m512i part[4];
};
SIMD_INLINE E4m3Table LoadE4m3Table() {
  E4m3Table table;
  for (int i = 0; i < 4; ++i) table.part[i] = _mm512_loadu_si512(kE4m3Steps.steps + 32 * i);
  return table;
}

// Of 32 codes, as int16. A conversion through floats takes 2.4 times as long.
SIMD_INLINE __m512i E4m3Steps32(const E4m3Table& table, const uint8_t* codes) {
  const __m512i code =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i below_64 = _mm512_permutex2var_epi16(table.part[0], code, table.part[1]);
  const __m512i from_64 = _mm512_permutex2var_epi16(table.part[2], code, table.part[3]);
  const __mmask32 is_from_64 = _mm512_test_epi16_mask(code, _mm512_set1_epi16(64));
  const __mmask32 is_negative = _mm512_test_epi16_mask(code, _mm512_set1_epi16(128));
  const __m512i steps = _mm512_mask_blend_epi16(is_from_64, below_64, from_64);
  return _mm512_mask_sub_epi16(steps, is_negative, _mm512_setzero_si512(), steps);
}

SIMD_INLINE E4m3PlaneBytes LoadE4m3Planes(const E4m3Table& table, const uint8_t* codes) {
  __m256i hi[2], lo[2];
  for (int h = 0; h < 2; ++h) {
    const __m512i steps = E4m3Steps32(table, codes + 32 * h);
    lo[h] = _mm512_cvtepi16_epi8(steps);
    const __m512i rounded = _mm512_add_epi16(steps, _mm512_set1_epi16(128));
    hi[h] = _mm512_cvtepi16_epi8(_mm512_srli_epi16(rounded, 8));
  }
  return {{_mm512_inserti64x4(_mm512_castsi256_si512(hi[0]), hi[1], 1)},
          {_mm512_inserti64x4(_mm512_castsi256_si512(lo[0]), lo[1], 1)}};
}

#else

struct E4m3Table {};
SIMD_INLINE E4m3Table LoadE4m3Table() { return {}; }

SIMD_INLINE E4m3PlaneBytes LoadE4m3Planes(const E4m3Table&, const uint8_t* codes) {
  I32 hi[4], lo[4];
  for (int i = 0; i < 4; ++i) {
    const I32 steps = ToInt(Mul(LoadE4m3(codes + i * kLanes), Set(64.0f * 256.0f)));
    hi[i] = ShiftRight<8>(AddInt(steps, SetInt(128)));
    lo[i] = SubInt(steps, ShiftLeft<8>(hi[i]));
  }
  return {PackBytes(hi), PackBytes(lo)};
}

#endif

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
