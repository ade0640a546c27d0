// Rows of bytes to columns of quads: what turns rows into panels. For kernel files.
#pragma once

#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

#if HILLSTAR_SIMD == 2

// The 16 bytes at four places side by side: loads that merge, where shuffles would be the limit.
SIMD_INLINE __m512i LoadFour(const uint8_t* a, const uint8_t* b, const uint8_t* c,
                             const uint8_t* d) {
  const auto load = [](const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  __m512i r = _mm512_castsi128_si512(load(a));
  r = _mm512_mask_broadcast_i32x4(r, 0x00f0, load(b));
  r = _mm512_mask_broadcast_i32x4(r, 0x0f00, load(c));
  return _mm512_mask_broadcast_i32x4(r, 0xf000, load(d));
}

// out[j] = the 4 bytes at 4j of each of 16 rows of 64 bytes, with 128 added to each byte if kFlip.
template <bool kFlip>
SIMD_INLINE void TransposeQuads(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  for (int64_t part = 0; part < 4; ++part, at += 16, out += 4 * stride) {
    __m512i r[4];  // part p of r[i] comes from row 4p + i
    for (int i = 0; i < 4; ++i) {
      r[i] = LoadFour(rows[i] + at, rows[4 + i] + at, rows[8 + i] + at, rows[12 + i] + at);
      if (kFlip) r[i] = FlipSign({r[i]}).v;
    }
    const __m512i ab_lo = _mm512_unpacklo_epi32(r[0], r[1]);
    const __m512i ab_hi = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i cd_lo = _mm512_unpacklo_epi32(r[2], r[3]);
    const __m512i cd_hi = _mm512_unpackhi_epi32(r[2], r[3]);
    StoreAll(out, {_mm512_unpacklo_epi64(ab_lo, cd_lo)});
    StoreAll(out + stride, {_mm512_unpackhi_epi64(ab_lo, cd_lo)});
    StoreAll(out + 2 * stride, {_mm512_unpacklo_epi64(ab_hi, cd_hi)});
    StoreAll(out + 3 * stride, {_mm512_unpackhi_epi64(ab_hi, cd_hi)});
  }
}

// out[v] = for 16 columns 16v.. of 64 the bytes of 4 rows side by side, with 128 added to each.
SIMD_INLINE void InterleaveRows(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  // First the quad of columns p of all rows to part p, then its 4 x 4 bytes turned.
  const __m512i quads = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i turn =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  for (int64_t v = 0; v < 4; ++v, at += 16, out += stride) {
    const __m512i r = LoadFour(rows[0] + at, rows[1] + at, rows[2] + at, rows[3] + at);
    const __m512i turned = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(quads, r), turn);
    StoreAll(out, FlipSign({turned}));
  }
}

#else

template <bool kFlip>
SIMD_INLINE void TransposeQuads(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  for (int r = 0; r < kLanes; ++r) {
    for (int j = 0; j < kLanes; ++j) {
      uint32_t word;
      std::memcpy(&word, rows[r] + at + 4 * j, sizeof word);
      if (kFlip) word ^= 0x80808080u;
      std::memcpy(out + j * stride + 4 * r, &word, sizeof word);
    }
  }
}

SIMD_INLINE void InterleaveRows(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  for (int v = 0; v < 4; ++v) {
    for (int c = 0; c < kLanes; ++c) {
      for (int r = 0; r < 4; ++r) {
        out[v * stride + 4 * c + r] = static_cast<uint8_t>(rows[r][at + 16 * v + c] ^ 128);
      }
    }
  }
}

#endif

}  // namespace hillstar::HILLSTAR_LEVEL
