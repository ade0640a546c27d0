#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Sum over one plane pair of 16 keys for the two planes of a query head; keys carry an offset of
// 128, which -128 * 257 * sum(q) removes. Integer sums wrap, their true values fit.
struct Sums {
  I32 high, low;
};

SIMD_INLINE int32_t PlaneSum(const int8_t* x, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

SIMD_INLINE Sums DotKeys(const uint8_t* panel, int64_t plane_bytes, const int8_t* q_hi,
                         const int8_t* q_lo, int64_t dim) {
  I32 hh = SetInt(0), hl = SetInt(0), lh = SetInt(0), ll = SetInt(0);
  for (int64_t i = 0; i < dim; i += 4) {
    const Bytes key_hi = LoadBytes(panel + 16 * i), key_lo = LoadBytes(panel + plane_bytes + 16 * i);
    const Quad high = Broadcast(q_hi + i), low = Broadcast(q_lo + i);
    hh = Dot4(hh, key_hi, high);
    hl = Dot4(hl, key_lo, high);
    lh = Dot4(lh, key_hi, low);
    ll = Dot4(ll, key_lo, low);
  }
  return {AddInt(ShiftLeft<8>(hh), hl), AddInt(ShiftLeft<8>(lh), ll)};
}

}  // namespace

void IndexScores(const IndexScoreSlice& s) {
  const int64_t dim = s.layout.dim;
  const int64_t plane_bytes = dim * kLanes;
  for (int64_t h = 0; h < s.num_heads; ++h) {
    const int8_t *q_hi = s.q_hi + h * dim, *q_lo = s.q_lo + h * dim;
    const I32 high_offset = SetInt(PlaneSum(q_hi, dim) * (128 * 257));
    const I32 low_offset = SetInt(PlaneSum(q_lo, dim) * (128 * 257));
    const F32 w = Set(s.w[h]), q_scale = Set(s.q_scale[h]);
    for (int64_t p = s.first_panel; p < s.first_panel + s.num_panels; ++p) {
      const uint8_t* panel = s.pages.panel(s.layout, p * kLanes);
      const Sums sums = DotKeys(panel, plane_bytes, q_hi, q_lo, dim);
      const F32 d = Fma(Set(256.0f), ToFloat(SubInt(sums.high, high_offset)),
                        ToFloat(SubInt(sums.low, low_offset)));
      const F32 key_scale = Load(reinterpret_cast<const float*>(panel + 2 * plane_bytes));
      const F32 v = Max(Mul(d, Mul(q_scale, key_scale)), Set(0.0f));
      float* out = s.scores + p * kLanes;
      const F32 sum = Fma(w, v, h == 0 ? Set(0.0f) : Load(out));
      Store(out, h + 1 < s.num_heads ? sum : Add(sum, Set(0.0f)));
    }
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
