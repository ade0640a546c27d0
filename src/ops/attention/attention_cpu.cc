#include "ops/attention/chunk_panels.h"
#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// A vector of 16 rows serves several heads, and a head several vectors, while their sums stay in
// registers: the panels come from the second-level cache, whose reads would be the limit.
#if defined(__AVX512VNNI__)
constexpr int kHeads = 4;
constexpr int kRows = 2;
#else
constexpr int kHeads = 1;
constexpr int kRows = 1;
#endif
constexpr int64_t kKeyVectors = kChunkKeys / kLanes;

// What bytes that carry 128 each add to a PlaneProduct with x.
SIMD_INLINE int32_t Offset(const int8_t* hi, const int8_t* lo, int64_t n) {
  return 128 * (257 * SumBytes(hi, n) + SumBytes(lo, n));
}

// Two planes of one head's query or weights.
struct Operand {
  const int8_t* hi;
  const int8_t* lo;
  int32_t offset;
};

// product[h][r] = PlaneProduct of operand h and vector r of a panel (16 rows each, `row_bytes`
// apart) over num_quads quads (`quad_bytes` apart). Integer sums may wrap; the true values fit.
template <int kNumHeads, int kNumRows>
SIMD_INLINE void DotPanel(const uint8_t* panel, int64_t row_bytes, int64_t quad_bytes,
                          int64_t num_quads, const Operand* x,
                          F32 (&product)[kNumHeads][kNumRows]) {
  I32 high[kNumHeads][kNumRows], cross[kNumHeads][kNumRows];
  for (int h = 0; h < kNumHeads; ++h) {
    for (int r = 0; r < kNumRows; ++r) high[h][r] = cross[h][r] = SetInt(0);
  }
  for (int64_t q = 0; q < num_quads; ++q, panel += quad_bytes) {
    Bytes u[kNumRows], v[kNumRows];
    for (int r = 0; r < kNumRows; ++r) {
      u[r] = LoadBytes(panel + r * row_bytes);
      v[r] = LoadBytes(panel + r * row_bytes + kVector);
    }
    for (int h = 0; h < kNumHeads; ++h) {
      const Quad hi = Broadcast(x[h].hi + 4 * q), lo = Broadcast(x[h].lo + 4 * q);
      for (int r = 0; r < kNumRows; ++r) {
        high[h][r] = Dot4(high[h][r], u[r], hi);
        cross[h][r] = Dot4(cross[h][r], v[r], hi);
        cross[h][r] = Dot4(cross[h][r], u[r], lo);
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

struct Head {
  Operand latent, rope;
  float latent_scale, rope_scale;
  AttentionPartial* out;
};

Head MakeHead(const AttentionSplit& s, const AttentionQuery& q, int64_t head) {
  const int64_t latent = s.layout.padded_latent(), rope = s.layout.padded_rope();
  const int8_t *hi = q.hi + head * s.layout.padded(), *lo = q.lo + head * s.layout.padded();
  return {{hi, lo, Offset(hi, lo, latent)},
          {hi + latent, lo + latent, Offset(hi + latent, lo + latent, rope)},
          q.latent_scale[head],
          q.rope_scale[head],
          &q.out[head]};
}

struct Scores {
  F32 v[kKeyVectors];
  bool finite;
};

template <int kNumHeads, int kNumRows>
SIMD_INLINE void ScoreGroups(const AttentionSplit& s, const ChunkPanels& c, const Head* heads,
                             int64_t group, Scores* scores) {
  const int64_t latent_quads = s.layout.padded_latent() / 4;
  Operand latent[kNumHeads], rope[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) {
    latent[h] = heads[h].latent;
    rope[h] = heads[h].rope;
  }
  const uint8_t* panel = c.score_group(group);
  F32 a[kNumHeads][kNumRows], b[kNumHeads][kNumRows];
  DotPanel<kNumHeads, kNumRows>(panel, c.score_group_bytes, kPairBytes, latent_quads, latent, a);
  DotPanel<kNumHeads, kNumRows>(panel + latent_quads * kPairBytes, c.score_group_bytes, kPairBytes,
                                s.layout.padded_rope() / 4, rope, b);
  for (int r = 0; r < kNumRows; ++r) {
    const int64_t key = (group + r) * kLanes;
    const F32 key_latent = Load(c.latent_scale + key), key_rope = Load(c.rope_scale + key);
    for (int h = 0; h < kNumHeads; ++h) {
      const F32 latent_scale = Mul(Set(heads[h].latent_scale), key_latent);
      const F32 rope_scale = Mul(Set(heads[h].rope_scale), key_rope);
      scores[h].v[group + r] = Fma(a[h][r], latent_scale, Mul(b[h][r], rope_scale));
    }
  }
}

// Scores of the chunk's first n keys; the others become -infinity.
template <int kNumHeads>
void ScoreChunk(const AttentionSplit& s, const ChunkPanels& c, const Head* heads, int64_t n,
                Scores* scores) {
  const int64_t num_groups = (n + kLanes - 1) / kLanes;
  int64_t group = 0;
  for (; group + kRows <= num_groups; group += kRows) {
    ScoreGroups<kNumHeads, kRows>(s, c, heads, group, scores);
  }
  for (; group < num_groups; ++group) ScoreGroups<kNumHeads, 1>(s, c, heads, group, scores);
  for (int h = 0; h < kNumHeads; ++h) {
    F32* v = scores[h].v;
    F32 poison = Set(0.0f);  // NaN as soon as a score is not finite: a maximum would hide a NaN
    for (int64_t g = 0; g < num_groups; ++g) poison = Add(poison, Sub(v[g], v[g]));
    scores[h].finite = AllZero(poison);
    for (int64_t g = num_groups; g < kKeyVectors; ++g) v[g] = Set(-__builtin_inff());
    if (n % kLanes == 0) continue;
    float lanes[kLanes];
    Store(lanes, v[n / kLanes]);
    for (int64_t i = n % kLanes; i < kLanes; ++i) lanes[i] = -__builtin_inff();
    v[n / kLanes] = Load(lanes);
  }
}

struct Weights {
  int8_t hi[kChunkKeys];
  int8_t lo[kChunkKeys];
  float scale;  // / 256
  float decay;  // of what earlier chunks gave
};

// Turns scores into two-plane weights of the values and updates largest and sum.
Weights Soften(const Scores& chunk, const ChunkPanels& c, bool first, AttentionPartial* out) {
  const F32* scores = chunk.v;
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
  weights.scale =
      QuantiseLanes(
          kChunkKeys, [&](int64_t i) { return w[i / kLanes]; }, weights.hi, weights.lo, &finite) *
      0x1p-8f;
  float before[kLanes];
  Store(before, Exp(Set(first ? 0.0f : out->largest - largest)));
  weights.decay = before[0];
  out->sum = first ? sum : __builtin_fmaf(out->sum, weights.decay, sum);
  if (!chunk.finite) out->sum = __builtin_nanf("");
  out->largest = largest;
  return weights;
}

// Values of the chunk, weighted: bytes beyond the last key meet weights of zero.
template <int kNumHeads>
void AddValues(const ChunkPanels& c, const Weights* w, int64_t n, bool first, int64_t latent,
               const Head* heads) {
  Operand x[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) {
    x[h] = {w[h].hi, w[h].lo, Offset(w[h].hi, w[h].lo, kChunkKeys)};
  }
  for (int64_t at = 0; at < latent; at += kRows * kLanes) {
    const uint8_t* panel = c.value_block(at / kBlockDims) + at % kBlockDims / kLanes * kPairBytes;
    F32 sum[kNumHeads][kRows];
    DotPanel<kNumHeads, kRows>(panel, kPairBytes, 4 * kPairBytes, (n + 3) / 4, x, sum);
    for (int h = 0; h < kNumHeads; ++h) {
      const F32 scale = Set(w[h].scale), decay = Set(w[h].decay);
      for (int r = 0; r < kRows; ++r) {
        float* values = heads[h].out->values + at + r * kLanes;
        Store(values,
              first ? Mul(sum[h][r], scale) : Fma(sum[h][r], scale, Mul(Load(values), decay)));
      }
    }
  }
}

template <int kNumHeads>
void AddChunk(const AttentionSplit& s, const ChunkPanels& c, const AttentionQuery& q,
              int64_t first_head, int64_t first_key) {
  const int64_t left = q.num_keys - first_key;
  const int64_t n = left < kChunkKeys ? left : kChunkKeys;
  Head heads[kNumHeads];
  Scores scores[kNumHeads];
  Weights weights[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) heads[h] = MakeHead(s, q, first_head + h);
  ScoreChunk<kNumHeads>(s, c, heads, n, scores);
  for (int h = 0; h < kNumHeads; ++h) {
    weights[h] = Soften(scores[h], c, first_key == 0, heads[h].out);
  }
  AddValues<kNumHeads>(c, weights, n, first_key == 0, s.layout.padded_latent(), heads);
}

}  // namespace

void AttendSplit(const AttentionSplit& s) {
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
      if (s.queries[i].num_keys <= first) continue;
      int64_t h = s.first_head;
      const int64_t end = s.first_head + s.num_heads;
      for (; h + kHeads <= end; h += kHeads) AddChunk<kHeads>(s, c, s.queries[i], h, first);
      for (; h < end; ++h) AddChunk<1>(s, c, s.queries[i], h, first);
    }
  }
}

void MergeSplits(const AttentionMerge& s) {
  float largest = s.partials[0].largest, sum = s.partials[0].sum;
  const float* values = s.partials[0].values;  // of the splits so far; then in s.out
  for (int64_t i = 1; i < s.num_splits; ++i) {
    const AttentionPartial& part = s.partials[i * s.stride];
    const float next = part.largest > largest ? part.largest : largest;
    float decay[2][kLanes];
    Store(decay[0], Exp(Set(largest - next)));
    Store(decay[1], Exp(Set(part.largest - next)));
    const float a = decay[0][0], b = decay[1][0];
    sum = __builtin_fmaf(part.sum, b, sum * a);
    for (int64_t d = 0; d < s.latent; d += kLanes) {
      const F32 before = Mul(LoadSome(values + d, s.latent - d), Set(a));
      StoreSome(s.out + d, Fma(Load(part.values + d), Set(b), before), s.latent - d);
    }
    values = s.out;
    largest = next;
  }
  for (int64_t d = 0; d < s.latent; d += kLanes) {
    StoreSome(s.out + d, Div(LoadSome(values + d, s.latent - d), Set(sum)), s.latent - d);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
