// Rows of bytes to columns of quads: what turns rows into panels. For kernel files.
#pragma once

#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

#if HILLSTAR_SIMD == 2

// out[j] = the 4 bytes at 4j of each of 16 rows of 64 bytes, with 128 added to each byte if kFlip.
template <bool kFlip>
SIMD_INLINE void TransposeQuads(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  __m512i r[16], t[16];
  for (int i = 0; i < 16; ++i) {
    const Bytes row = LoadBytes(rows[i] + at);
    r[i] = kFlip ? FlipSign(row).v : row.v;
  }
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
    StoreAll(out + j * stride, {_mm512_shuffle_i32x4(a, b, 0x88)});
    StoreAll(out + (8 + j) * stride, {_mm512_shuffle_i32x4(a, b, 0xdd)});
    StoreAll(out + (4 + j) * stride, {_mm512_shuffle_i32x4(c, d, 0x88)});
    StoreAll(out + (12 + j) * stride, {_mm512_shuffle_i32x4(c, d, 0xdd)});
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

#endif

}  // namespace hillstar::HILLSTAR_LEVEL
