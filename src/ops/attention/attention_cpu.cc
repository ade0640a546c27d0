#include "ops/attention/chunk_panels.h"
#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Vectors whose sums are built side by side: four planes pairs each, as many as registers hold.
#if defined(__AVX512VNNI__)
constexpr int kBlock = 4;
#else
constexpr int kBlock = 1;
#endif
constexpr int64_t kKeyVectors = kChunkKeys / kLanes;
constexpr int32_t kOffset = 128 * 257;  // of a two-plane value whose bytes carry 128 each

struct Sums {
  I32 high, low;
};

SIMD_INLINE int32_t PlaneSum(const int8_t* x, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

// sums[r] = products of kRows vectors (16 rows each, `row_bytes` apart) with one two-plane x over
// num_quads quads (`quad_bytes` apart). Integer sums may wrap; the true values fit.
template <int kRows>
SIMD_INLINE void DotPairs(const uint8_t* panel, int64_t row_bytes, int64_t quad_bytes,
                          const int8_t* hi, const int8_t* lo, int64_t num_quads, Sums* sums) {
  I32 hh[kRows], hl[kRows], lh[kRows], ll[kRows];
  for (int r = 0; r < kRows; ++r) hh[r] = hl[r] = lh[r] = ll[r] = SetInt(0);
  for (int64_t q = 0; q < num_quads; ++q, panel += quad_bytes) {
    const Quad high = Broadcast(hi + 4 * q), low = Broadcast(lo + 4 * q);
    for (int r = 0; r < kRows; ++r) {
      const Bytes u = LoadBytes(panel + r * row_bytes);
      hh[r] = Dot4(hh[r], u, high);
      lh[r] = Dot4(lh[r], u, low);
      const Bytes v = LoadBytes(panel + r * row_bytes + kVector);
      hl[r] = Dot4(hl[r], v, high);
      ll[r] = Dot4(ll[r], v, low);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    sums[r] = {AddInt(ShiftLeft<8>(hh[r]), hl[r]), AddInt(ShiftLeft<8>(lh[r]), ll[r])};
  }
}

SIMD_INLINE F32 Fold(const Sums& sums, int32_t high_offset, int32_t low_offset) {
  return Fma(Set(256.0f), ToFloat(SubInt(sums.high, SetInt(high_offset))),
             ToFloat(SubInt(sums.low, SetInt(low_offset))));
}

struct Head {
  const int8_t* hi;
  const int8_t* lo;
  float latent_scale, rope_scale;
  int32_t latent_sum[2], rope_sum[2];  // of both planes, times the keys' offset
};

Head MakeHead(const AttentionSplit& s, const AttentionQuery& q, int64_t head) {
  const int64_t padded = s.layout.padded(), latent = s.layout.padded_latent();
  const int8_t *hi = q.hi + head * padded, *lo = q.lo + head * padded;
  return {hi,
          lo,
          q.latent_scale[head],
          q.rope_scale[head],
          {PlaneSum(hi, latent) * kOffset, PlaneSum(lo, latent) * kOffset},
          {PlaneSum(hi + latent, padded - latent) * kOffset,
           PlaneSum(lo + latent, padded - latent) * kOffset}};
}

template <int kRows>
SIMD_INLINE void ScoreGroups(const AttentionSplit& s, const ChunkPanels& c, const Head& head,
                             int64_t group, F32* scores) {
  const int64_t latent = s.layout.padded_latent(), rope = s.layout.padded_rope();
  Sums a[kRows], b[kRows];
  const uint8_t* panel = c.score_group(group);
  DotPairs<kRows>(panel, c.score_group_bytes, kPairBytes, head.hi, head.lo, latent / 4, a);
  DotPairs<kRows>(panel + latent / 4 * kPairBytes, c.score_group_bytes, kPairBytes,
                  head.hi + latent, head.lo + latent, rope / 4, b);
  for (int r = 0; r < kRows; ++r) {
    const int64_t key = (group + r) * kLanes;
    const F32 latent_scale = Mul(Set(head.latent_scale), Load(c.latent_scale + key));
    const F32 rope_scale = Mul(Set(head.rope_scale), Load(c.rope_scale + key));
    const F32 rope_part =
        Mul(Fold(b[r], head.rope_sum[0], head.rope_sum[1]), rope_scale);
    scores[group + r] =
        Fma(Fold(a[r], head.latent_sum[0], head.latent_sum[1]), latent_scale, rope_part);
  }
}

// Scores of the chunk's first n keys; the others become -infinity.
void ScoreChunk(const AttentionSplit& s, const ChunkPanels& c, const Head& head, int64_t n,
                F32* scores) {
  const int64_t num_groups = (n + kLanes - 1) / kLanes;
  int64_t group = 0;
  for (; group + kBlock <= num_groups; group += kBlock) {
    ScoreGroups<kBlock>(s, c, head, group, scores);
  }
  for (; group < num_groups; ++group) ScoreGroups<1>(s, c, head, group, scores);
  const F32 nothing = Set(-__builtin_inff());
  for (; group < kKeyVectors; ++group) scores[group] = nothing;
  if (n % kLanes != 0) {
    float lanes[kLanes];
    Store(lanes, scores[n / kLanes]);
    for (int64_t i = n % kLanes; i < kLanes; ++i) lanes[i] = -__builtin_inff();
    scores[n / kLanes] = Load(lanes);
  }
}

struct Weights {
  int8_t hi[kChunkKeys];
  int8_t lo[kChunkKeys];
  float scale;  // / 65536
  float decay;  // of what earlier chunks gave
};

// Turns scores into two-plane weights of the values and updates largest and sum.
Weights Soften(const F32* scores, const ChunkPanels& c, bool first, AttentionPartial* out) {
  const F32 top = Max(Max(scores[0], scores[1]), Max(scores[2], scores[3]));
  float largest = Largest(top) + 0.0f;  // +0 where zeros of both signs are the largest
  if (!first && out->largest > largest) largest = out->largest;
  F32 p[kKeyVectors], w[kKeyVectors];
  for (int i = 0; i < kKeyVectors; ++i) {
    p[i] = Exp(Sub(scores[i], Set(largest)));
    w[i] = Mul(p[i], Load(c.latent_scale + i * kLanes));
  }
  const float sum = TreeSum(Add(Add(Add(p[0], p[1]), p[2]), p[3]));
  Weights weights;
  bool finite = true;
  weights.scale = QuantiseLanes(
                      kChunkKeys, [&](int64_t i) { return w[i / kLanes]; }, weights.hi, weights.lo,
                      &finite) *
                  0x1p-16f;
  float before[kLanes];
  Store(before, Exp(Set(first ? 0.0f : out->largest - largest)));
  weights.decay = before[0];
  out->sum = first ? sum : __builtin_fmaf(out->sum, weights.decay, sum);
  if (!__builtin_isfinite(largest)) out->sum = __builtin_nanf("");
  out->largest = largest;
  return weights;
}

template <int kRows>
SIMD_INLINE void AddValueVectors(const uint8_t* panel, const Weights& w, const int32_t* offset,
                                 int64_t num_quads, bool first, float* values) {
  Sums sums[kRows];
  DotPairs<kRows>(panel, kPairBytes, 4 * kPairBytes, w.hi, w.lo, num_quads, sums);
  const F32 scale = Set(w.scale), decay = Set(w.decay);
  for (int r = 0; r < kRows; ++r) {
    const F32 sum = Fold(sums[r], offset[0], offset[1]);
    float* at = values + r * kLanes;
    Store(at, first ? Mul(sum, scale) : Fma(sum, scale, Mul(Load(at), decay)));
  }
}

void AddValues(const ChunkPanels& c, const Weights& w, int64_t n, bool first, int64_t latent,
               float* values) {
  // Bytes beyond the last quad's keys meet weights of zero.
  const int32_t offset[2] = {PlaneSum(w.hi, kChunkKeys) * kOffset,
                             PlaneSum(w.lo, kChunkKeys) * kOffset};
  const int64_t num_quads = (n + 3) / 4;
  for (int64_t block = 0; block * kBlockDims < latent; ++block) {
    for (int64_t v = 0; v < 4; v += kBlock) {
      AddValueVectors<kBlock>(c.value_block(block) + v * kPairBytes, w, offset, num_quads, first,
                              values + block * kBlockDims + v * kLanes);
    }
  }
}

}  // namespace

void AttendSplit(const AttentionSplit& s) {
  const int64_t latent = s.layout.padded_latent();
  ChunkPanels c;
  c.score_group_bytes = s.layout.padded() / 4 * kPairBytes;
  c.scores = s.panels;
  c.values = s.panels + kKeyVectors * c.score_group_bytes;
  int64_t most = 0;
  for (int64_t i = 0; i < s.num_queries; ++i) {
    if (s.queries[i].num_keys > most) most = s.queries[i].num_keys;
  }
  for (int64_t first = 0; first < most; first += kChunkKeys) {
    const int64_t count = most - first < kChunkKeys ? most - first : kChunkKeys;
    BuildPanels(s, first, count, &c);
    for (int64_t i = 0; i < s.num_queries; ++i) {
      const AttentionQuery& q = s.queries[i];
      const int64_t left = q.num_keys - first;
      if (left <= 0) continue;
      const int64_t n = left < kChunkKeys ? left : kChunkKeys;
      for (int64_t h = s.first_head; h < s.first_head + s.num_heads; ++h) {
        F32 scores[kKeyVectors];
        ScoreChunk(s, c, MakeHead(s, q, h), n, scores);
        const Weights w = Soften(scores, c, first == 0, &q.out[h]);
        AddValues(c, w, n, first == 0, latent, q.out[h].values);
      }
    }
  }
}

void MergeSplits(const AttentionMerge& s) {
  float largest = s.partials[0].largest, sum = s.partials[0].sum;
  std::memcpy(s.out, s.partials[0].values, static_cast<size_t>(s.latent) * sizeof(float));
  for (int64_t i = 1; i < s.num_splits; ++i) {
    const AttentionPartial& part = s.partials[i * s.stride];
    const float next = part.largest > largest ? part.largest : largest;
    float decay[2][kLanes];
    Store(decay[0], Exp(Set(largest - next)));
    Store(decay[1], Exp(Set(part.largest - next)));
    const float a = decay[0][0], b = decay[1][0];
    sum = __builtin_fmaf(part.sum, b, sum * a);
    for (int64_t d = 0; d < s.latent; d += kLanes) {
      const F32 before = Mul(LoadSome(s.out + d, s.latent - d), Set(a));
      StoreSome(s.out + d, Fma(Load(part.values + d), Set(b), before), s.latent - d);
    }
    largest = next;
  }
  for (int64_t d = 0; d < s.latent; d += kLanes) {
    StoreSome(s.out + d, Div(LoadSome(s.out + d, s.latent - d), Set(sum)), s.latent - d);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
