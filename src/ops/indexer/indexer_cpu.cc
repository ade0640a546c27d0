#include "ops/kernels.h"
#include "ops/plane_dots.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Keys whose bytes stay in the second-level cache while all heads go by; and of how many panels
// there are sums on the stack, 16 KB at most.
constexpr int64_t kCachedBytes = 128 * 1024;
constexpr int64_t kMostPanels = 64;
// Heads at once, as many as have their accumulators in registers.
inline constexpr int kHeads = 2 * kDotHeads;
inline constexpr int64_t kMaxDim = 512;

// Queries of some heads, quad by quad: four values of each head's high plane and, with kLow, of its
// low plane. So one address serves all of them.
template <bool kLow, int kNumHeads>
struct PackedQueries {
  static constexpr int64_t kHeadBytes = kLow ? 8 : 4;
  static constexpr int64_t kQuadBytes = kHeadBytes * kNumHeads;
  alignas(64) int8_t bytes[kMaxDim / 4 * kQuadBytes];
  int32_t offset[kNumHeads];  // Operand::offset

  PackedQueries(const int8_t* q_hi, const int8_t* q_lo, int64_t dim) {
    for (int h = 0; h < kNumHeads; ++h, q_hi += dim, q_lo += dim) {
      offset[h] = PlaneOffset<kLow, kLow>(q_hi, q_lo, dim);
      for (int64_t quad = 0; quad < dim / 4; ++quad) {
        int8_t* out = bytes + quad * kQuadBytes + h * kHeadBytes;
        std::memcpy(out, q_hi + 4 * quad, 4);
        if (kLow) std::memcpy(out + 4, q_lo + 4 * quad, 4);
      }
    }
  }
};

// product[h] = PlaneProduct of query h and the 16 keys of a panel. `next`: the panel to come, which
// is fetched meanwhile: a panel is about as long as a page of memory, at whose end the processor's
// own prefetching stops.
template <bool kLow, int kNumHeads>
SIMD_INLINE void DotPanel(const PackedQueries<kLow, kNumHeads>& queries, const uint8_t* quad,
                          const uint8_t* next, int64_t quad_bytes, int64_t num_quads,
                          F32 (&product)[kNumHeads]) {
  I32 high[kNumHeads], cross[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) high[h] = cross[h] = SetInt(0);
  const int8_t* q = queries.bytes;
  for (int64_t i = 0; i < num_quads; ++i, quad += quad_bytes, q += queries.kQuadBytes) {
    __builtin_prefetch(next);
    if (kLow) __builtin_prefetch(next + 4 * kLanes);
    next += quad_bytes;
    const Bytes u = LoadBytes(quad);
    const Bytes v = kLow ? LoadBytes(quad + 4 * kLanes) : u;
    for (int h = 0; h < kNumHeads; ++h) {
      high[h] = Dot4(high[h], u, q + h * queries.kHeadBytes);
      if (kLow) cross[h] = Dot4(cross[h], v, q + h * queries.kHeadBytes);
    }
    for (int h = 0; kLow && h < kNumHeads; ++h) {
      cross[h] = Dot4(cross[h], u, q + h * queries.kHeadBytes + 4);
    }
  }
  for (int h = 0; h < kNumHeads; ++h) {
    const I32 sum = kLow ? AddInt(ShiftLeft<8>(high[h]), cross[h]) : ShiftLeft<8>(high[h]);
    product[h] = ToFloat(SubInt(sum, SetInt(queries.offset[h])));
  }
}

// Adds the heads [first, first + kNumHeads) to the sums of some panels' keys, which the first heads
// begin and the last ones make scores of. kLow: keys and queries have a low plane.
template <bool kLow, int kNumHeads>
void AddHeads(const IndexScoreSlice& s, int64_t first, int64_t first_panel, int64_t end_panel,
              F32 (*sums)[kIndexSums]) {
  const int64_t dim = s.layout.dim;
  const PackedQueries<kLow, kNumHeads> queries(s.q_hi + first * dim, s.q_lo + first * dim, dim);
  const bool is_last = first + kNumHeads == s.num_heads;
  // Whole rounds of sums begin with the first.
  const int64_t first_sum = kNumHeads % kIndexSums == 0 ? 0 : first % kIndexSums;
  for (int64_t p = first_panel; p < end_panel; ++p, ++sums) {
    const uint8_t* panel = s.pages.panel(s.layout, p * kLanes);
    const uint8_t* next = p + 1 < end_panel ? s.pages.panel(s.layout, (p + 1) * kLanes) : panel;
    F32 d[kNumHeads];
    DotPanel<kLow, kNumHeads>(queries, panel, next, s.layout.quad_bytes(), dim / 4, d);
    F32 sum[kIndexSums];
    for (int j = 0; j < kIndexSums; ++j) sum[j] = first == 0 ? Set(0.0f) : (*sums)[j];
    for (int h = 0; h < kNumHeads; ++h) {
      const F32 x = Mul(Max(d[h], Set(0.0f)), Set(kIndexUnit));
      F32& own = sum[(first_sum + h) % kIndexSums];
      own = Fma(Set(s.w[first + h]), x, own);
    }
    if (is_last) {
      const F32 key_scale = Load(reinterpret_cast<const float*>(panel + s.layout.scales_at()));
      const F32 all = Add(Add(sum[0], sum[1]), Add(sum[2], sum[3]));
      Store(s.scores + p * kLanes, Add(Mul(all, key_scale), Set(0.0f)));
    } else {
      for (int j = 0; j < kIndexSums; ++j) (*sums)[j] = sum[j];
    }
  }
}

template <bool kLow>
void AddAllHeads(const IndexScoreSlice& s) {
  const int64_t cached = 1 + kCachedBytes / s.layout.panel_bytes();
  const int64_t at_once = cached < kMostPanels ? cached : kMostPanels;
  F32 sums[kMostPanels][kIndexSums];
  const int64_t end = s.first_panel + s.num_panels;
  for (int64_t p = s.first_panel; p < end; p += at_once) {
    const int64_t next = end - p < at_once ? end : p + at_once;
    int64_t h = 0;
    for (; h + kHeads <= s.num_heads; h += kHeads) AddHeads<kLow, kHeads>(s, h, p, next, sums);
    for (; h < s.num_heads; ++h) AddHeads<kLow, 1>(s, h, p, next, sums);
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
