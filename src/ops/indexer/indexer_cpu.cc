#include "ops/kernels.h"
#include "ops/plane_dots.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Adds the heads [first, first + kNumHeads) to the scores of every panel; the first heads start
// them.
template <bool kLow, int kNumHeads>
void AddHeads(const IndexScoreSlice& s, int64_t first) {
  const int64_t dim = s.layout.dim, plane_bytes = dim * kLanes;
  Operand x[kNumHeads];
  F32 w[kNumHeads], q_scale[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) {
    const int8_t *hi = s.q_hi + (first + h) * dim, *lo = s.q_lo + (first + h) * dim;
    x[h] = {hi, lo, PlaneOffset<kLow>(hi, lo, dim)};
    w[h] = Set(s.w[first + h]);
    q_scale[h] = Set(s.q_scale[first + h]);
  }
  const bool is_last = first + kNumHeads == s.num_heads;
  for (int64_t p = s.first_panel; p < s.first_panel + s.num_panels; ++p) {
    const uint8_t* panel = s.pages.panel(s.layout, p * kLanes);
    F32 d[kNumHeads][1];
    DotPanels<kLow, kNumHeads, 1>({panel, plane_bytes, 0, 4 * kLanes}, dim / 4, x, d);
    const F32 key_scale = Load(reinterpret_cast<const float*>(panel + s.layout.scales_at()));
    float* out = s.scores + p * kLanes;
    F32 sum = first == 0 ? Set(0.0f) : Load(out);
    for (int h = 0; h < kNumHeads; ++h) {
      sum = Fma(w[h], Max(Mul(d[h][0], Mul(q_scale[h], key_scale)), Set(0.0f)), sum);
    }
    Store(out, is_last ? Add(sum, Set(0.0f)) : sum);
  }
}

template <bool kLow>
void AddAllHeads(const IndexScoreSlice& s) {
  int64_t h = 0;
  for (; h + kDotHeads <= s.num_heads; h += kDotHeads) AddHeads<kLow, kDotHeads>(s, h);
  for (; h < s.num_heads; ++h) AddHeads<kLow, 1>(s, h);
}

}  // namespace

void IndexScores(const IndexScoreSlice& s) {
  if (s.layout.num_planes == 2) {
    AddAllHeads<true>(s);
  } else {
    AddAllHeads<false>(s);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
