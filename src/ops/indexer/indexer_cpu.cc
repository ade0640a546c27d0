#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// PlaneProduct of a query head with 16 keys, whose bytes carry an offset of 128 each: `offset`
// removes it. Integer sums may wrap; the true value fits.
SIMD_INLINE I32 DotKeys(const uint8_t* panel, int64_t plane_bytes, const int8_t* q_hi,
                        const int8_t* q_lo, int64_t dim, I32 offset) {
  I32 high = SetInt(0), cross = SetInt(0), cross_low = SetInt(0);
  for (int64_t i = 0; i < dim; i += 4) {
    const Bytes key_hi = LoadBytes(panel + 16 * i),
                key_lo = LoadBytes(panel + plane_bytes + 16 * i);
    const Quad q_high = Broadcast(q_hi + i);
    high = Dot4(high, key_hi, q_high);
    cross = Dot4(cross, key_lo, q_high);
    cross_low = Dot4(cross_low, key_hi, Broadcast(q_lo + i));
  }
  return SubInt(AddInt(ShiftLeft<8>(high), AddInt(cross, cross_low)), offset);
}

}  // namespace

void IndexScores(const IndexScoreSlice& s) {
  const int64_t dim = s.layout.dim;
  const int64_t plane_bytes = dim * kLanes;
  for (int64_t h = 0; h < s.num_heads; ++h) {
    const int8_t *q_hi = s.q_hi + h * dim, *q_lo = s.q_lo + h * dim;
    const I32 offset = SetInt(128 * (257 * SumBytes(q_hi, dim) + SumBytes(q_lo, dim)));
    const F32 w = Set(s.w[h]), q_scale = Set(s.q_scale[h]);
    for (int64_t p = s.first_panel; p < s.first_panel + s.num_panels; ++p) {
      const uint8_t* panel = s.pages.panel(s.layout, p * kLanes);
      const F32 d = ToFloat(DotKeys(panel, plane_bytes, q_hi, q_lo, dim, offset));
      const F32 key_scale = Load(reinterpret_cast<const float*>(panel + 2 * plane_bytes));
      const F32 v = Max(Mul(d, Mul(q_scale, key_scale)), Set(0.0f));
      float* out = s.scores + p * kLanes;
      const F32 sum = Fma(w, v, h == 0 ? Set(0.0f) : Load(out));
      Store(out, h + 1 < s.num_heads ? sum : Add(sum, Set(0.0f)));
    }
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
