#include "ops/kernels.h"
#include "ops/plane_dots.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Keys whose bytes stay in the second-level cache while all heads go by.
constexpr int64_t kCachedBytes = 128 * 1024;
// Heads at once. A product of single planes has one accumulator a head instead of two.
template <bool kLow>
inline constexpr int kHeads = kLow ? kDotHeads : 2 * kDotHeads;

// Adds the heads [first, first + kNumHeads) to the scores of some panels; the first heads start
// them. kLow: keys and queries have a low plane.
template <bool kLow, int kNumHeads>
void AddHeads(const IndexScoreSlice& s, int64_t first, int64_t first_panel, int64_t end_panel) {
  const int64_t dim = s.layout.dim;
  Operand x[kNumHeads];
  F32 w[kNumHeads], q_scale[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) {
    const int8_t *hi = s.q_hi + (first + h) * dim, *lo = s.q_lo + (first + h) * dim;
    x[h] = {hi, lo, PlaneOffset<kLow, kLow>(hi, lo, dim)};
    w[h] = Set(s.w[first + h]);
    q_scale[h] = Set(s.q_scale[first + h]);
  }
  const bool is_last = first + kNumHeads == s.num_heads;
  for (int64_t p = first_panel; p < end_panel; ++p) {
    const uint8_t* panel = s.pages.panel(s.layout, p * kLanes);
    F32 d[kNumHeads][1];
    DotPanels<kLow, kNumHeads, 1, kLow>({panel, 4 * kLanes, 0, s.layout.quad_bytes()}, dim / 4, x,
                                        d);
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
  const int64_t at_once = 1 + kCachedBytes / s.layout.panel_bytes();
  const int64_t end = s.first_panel + s.num_panels;
  for (int64_t p = s.first_panel; p < end; p += at_once) {
    const int64_t next = end - p < at_once ? end : p + at_once;
    int64_t h = 0;
    for (; h + kHeads<kLow> <= s.num_heads; h += kHeads<kLow>) {
      AddHeads<kLow, kHeads<kLow>>(s, h, p, next);
    }
    for (; h < s.num_heads; ++h) AddHeads<kLow, 1>(s, h, p, next);
  }
}

// Adds the indices of the lanes in `mask`, the first lane being index `at`.
SIMD_INLINE int64_t AddLanes(uint32_t mask, int64_t at, int32_t* above, int64_t count) {
  for (; mask != 0; mask &= mask - 1) {
    above[count++] = static_cast<int32_t>(at + __builtin_ctz(mask));
  }
  return count;
}

}  // namespace

void IndexScores(const IndexScoreSlice& s) {
  if (s.layout.num_planes == 2) {
    AddAllHeads<true>(s);
  } else {
    AddAllHeads<false>(s);
  }
}

// Few scores are above: most vectors have none.
int64_t CollectAbove(const CollectAboveSlice& s) {
  const F32 floor = Set(s.floor);
  const int64_t end = s.first + s.n;
  F32 poison = Set(0.0f);  // NaN as soon as a score is not finite
  int64_t count = 0, i = s.first;
  for (; i + kLanes <= end; i += kLanes) {
    const F32 x = Load(s.scores + i);
    poison = Add(poison, Sub(x, x));
    count = AddLanes(GreaterMask(x, floor), i, s.above, count);
  }
  if (i < end) {
    const F32 x = LoadSome(s.scores + i, end - i);
    poison = Add(poison, Sub(x, x));
    const uint32_t here = (1u << (end - i)) - 1;
    count = AddLanes(GreaterMask(x, floor) & here, i, s.above, count);
  }
  return AllZero(poison) ? count : -1;
}

}  // namespace hillstar::HILLSTAR_LEVEL
