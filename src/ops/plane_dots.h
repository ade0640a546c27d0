// Plane products of some heads with panels of 16 keys (or latents): what attention and indexer
// spend their time in. For kernel files only.
#pragma once

#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

// A vector of 16 rows serves several heads, and a head several vectors, while their sums stay in
// registers: reading panels once for each head would be the limit.
#if HILLSTAR_SIMD == 2
inline constexpr int kDotHeads = 4;
inline constexpr int kDotRows = 2;
#else
inline constexpr int kDotHeads = 1;
inline constexpr int kDotRows = 1;
#endif

// The planes of one head's query or weights. Panels carry 128 more in each byte, which adds
// `offset` (PlaneOffset for the planes that panels and operand have) to a product.
struct Operand {
  const int8_t* hi;
  const int8_t* lo;
  int32_t offset;
};

template <bool kLow, bool kOperandLow = true>
SIMD_INLINE int32_t PlaneOffset(const int8_t* hi, const int8_t* lo, int64_t n) {
  return 128 * ((kLow ? 257 : 256) * SumBytes(hi, n) + (kOperandLow ? SumBytes(lo, n) : 0));
}

// Where quad q of vector r lies: 16 rows x 4 bytes of the upper plane at upper + r * vector_bytes +
// q * quad_bytes, the lower plane, if there is one, plane_bytes further.
struct PanelPlanes {
  const uint8_t* upper;
  int64_t plane_bytes;
  int64_t vector_bytes;
  int64_t quad_bytes;
};

// product[h][r] = PlaneProduct (numerics/planes.h) of operand h and vector r over num_quads quads.
// Integer sums may wrap; the true values fit. Without kLow the panels' low plane is zero and not
// there, without kOperandLow the operands'.
template <bool kLow, int kNumHeads, int kNumRows, bool kOperandLow = true>
SIMD_INLINE void DotPanels(const PanelPlanes& panel, int64_t num_quads, const Operand* x,
                           F32 (&product)[kNumHeads][kNumRows]) {
  I32 high[kNumHeads][kNumRows], cross[kNumHeads][kNumRows];
  for (int h = 0; h < kNumHeads; ++h) {
    for (int r = 0; r < kNumRows; ++r) high[h][r] = cross[h][r] = SetInt(0);
  }
  const uint8_t* quad = panel.upper;
  for (int64_t q = 0; q < num_quads; ++q, quad += panel.quad_bytes) {
    Bytes u[kNumRows], v[kNumRows];
    for (int r = 0; r < kNumRows; ++r) {
      u[r] = LoadBytes(quad + r * panel.vector_bytes);
      if (kLow) v[r] = LoadBytes(quad + r * panel.vector_bytes + panel.plane_bytes);
    }
    for (int h = 0; h < kNumHeads; ++h) {
      const int8_t *hi = x[h].hi + 4 * q, *lo = x[h].lo + 4 * q;
      for (int r = 0; r < kNumRows; ++r) {
        high[h][r] = Dot4(high[h][r], u[r], hi);
        if (kLow) cross[h][r] = Dot4(cross[h][r], v[r], hi);
        if (kOperandLow) cross[h][r] = Dot4(cross[h][r], u[r], lo);
      }
    }
  }
  for (int h = 0; h < kNumHeads; ++h) {
    const I32 offset = SetInt(x[h].offset);
    for (int r = 0; r < kNumRows; ++r) {
      product[h][r] = ToFloat(SubInt(AddInt(ShiftLeft<8>(high[h][r]), cross[h][r]), offset));
    }
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
