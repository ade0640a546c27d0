#include <type_traits>

#include "ops/attention/chunk_panels.h"
#include "ops/kernels.h"
#include "ops/plane_dots.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

constexpr int64_t kKeyVectors = kChunkKeys / kLanes;

// What one head of one query keeps while a chunk is in work.
struct alignas(64) HeadChunk {
  float scores[kChunkKeys];
  int8_t hi[kChunkKeys], lo[kChunkKeys];              // weights of the values
  float weight_scale;                                 // / 256
  float decay;                                        // of what earlier chunks gave
  int32_t weight_offset, latent_offset, rope_offset;  // Operand::offset
};
static_assert(sizeof(HeadChunk) == kAttentionHeadBytes);

// Scores of the keys of one group, whose panel lies in the first-level cache.
template <bool kLow, int kNumHeads>
SIMD_INLINE void ScoreHeads(const AttentionSplit& s, const uint8_t* panel, const ChunkRows& rows,
                            int64_t group, const AttentionQuery& q, int64_t first_head,
                            HeadChunk* heads) {
  const int64_t latent_quads = s.layout.padded_latent() / 4;
  Operand latent[kNumHeads], rope[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) {
    const int64_t at = (first_head + h) * s.layout.padded();
    latent[h] = {q.hi + at, q.lo + at, heads[h].latent_offset};
    rope[h] = {latent[h].hi + 4 * latent_quads, latent[h].lo + 4 * latent_quads,
               heads[h].rope_offset};
  }
  F32 a[kNumHeads][1], b[kNumHeads][1];
  constexpr int64_t kLatentBytes = kPlanesBytes<kLow>, kRopeBytes = kPlanesBytes<true>;
  DotPanels<kLow, kNumHeads, 1>({panel, kVector, 0, kLatentBytes}, latent_quads, latent, a);
  DotPanels<true, kNumHeads, 1>({panel + latent_quads * kLatentBytes, kVector, 0, kRopeBytes},
                                s.layout.padded_rope() / 4, rope, b);
  const F32 key_latent = Load(rows.latent_scale + group * kLanes);
  const F32 key_rope = Load(rows.rope_scale + group * kLanes);
  for (int h = 0; h < kNumHeads; ++h) {
    const F32 latent_scale = Mul(Set(q.latent_scale[first_head + h]), key_latent);
    const F32 rope_scale = Mul(Set(q.rope_scale[first_head + h]), key_rope);
    Store(heads[h].scores + group * kLanes, Fma(a[h][0], latent_scale, Mul(b[h][0], rope_scale)));
  }
}

// Turns the scores of a chunk's first n keys into two-plane weights of the values and updates
// largest and sum.
template <bool kLow>
SIMD_INLINE void Soften(const ChunkRows& rows, int64_t n, bool first, HeadChunk* head,
                        AttentionPartial* out) {
  F32 scores[kKeyVectors];
  for (int64_t i = n; i < kChunkKeys; ++i) head->scores[i] = 0.0f;
  F32 poison = Set(0.0f);  // NaN as soon as a score is not finite: a maximum would hide a NaN
  for (int i = 0; i < kKeyVectors; ++i) {
    scores[i] = Load(head->scores + i * kLanes);
    poison = Add(poison, Sub(scores[i], scores[i]));
  }
  if (n < kChunkKeys) {
    for (int64_t i = n; i < kChunkKeys; ++i) head->scores[i] = -__builtin_inff();
    for (int i = 0; i < kKeyVectors; ++i) scores[i] = Load(head->scores + i * kLanes);
  }
  const F32 top = Max(Max(scores[0], scores[1]), Max(scores[2], scores[3]));
  float largest = Largest(top) + 0.0f;  // +0 where zeros of both signs are the largest
  if (!first && out->largest > largest) largest = out->largest;
  F32 p[kKeyVectors], w[kKeyVectors];
  for (int i = 0; i < kKeyVectors; ++i) {
    p[i] = Exp(Sub(scores[i], Set(largest)));
    w[i] = Mul(p[i], Load(rows.latent_scale + i * kLanes));
  }
  const float sum = TreeSum(Add(Add(Add(p[0], p[1]), p[2]), p[3]));
  const PlaneBlock block = QuantiseBlock(w);
  StoreAll(head->hi, block.bytes.hi);
  StoreAll(head->lo, block.bytes.lo);
  head->weight_scale = block.scale * 0x1p-8f;
  const I32 high = AddQuads(SetInt(0), block.bytes.hi);
  const I32 planes = kLow ? AddInt(ShiftLeft<8>(high), high) : ShiftLeft<8>(high);
  const I32 sums = AddQuads(planes, block.bytes.lo);
  head->weight_offset = 128 * SumLanes(sums);
  float before[kLanes];
  Store(before, Exp(Set(first ? 0.0f : out->largest - largest)));
  head->decay = before[0];
  out->sum = first ? sum : __builtin_fmaf(out->sum, head->decay, sum);
  if (!AllZero(poison)) out->sum = __builtin_nanf("");
  out->largest = largest;
}

// Adds 64 latents from `at` on of the chunk's first n keys, weighted, to the values. Bytes beyond
// the last key meet weights of zero.
template <bool kLow, int kNumHeads>
SIMD_INLINE void AddValues(const uint8_t* panel, int64_t at, int64_t n, bool first,
                           const HeadChunk* heads, const AttentionPartial* out) {
  constexpr int64_t kBytes = kPlanesBytes<kLow>;
  Operand x[kNumHeads];
  for (int h = 0; h < kNumHeads; ++h) x[h] = {heads[h].hi, heads[h].lo, heads[h].weight_offset};
  for (int64_t v = 0; v < kBlockDims / kLanes; v += kDotRows) {
    F32 sum[kNumHeads][kDotRows];
    DotPanels<kLow, kNumHeads, kDotRows>(
        {panel + v * kBytes, kVector, kBytes, kBlockDims / kLanes * kBytes}, (n + 3) / 4, x, sum);
    for (int h = 0; h < kNumHeads; ++h) {
      const F32 scale = Set(heads[h].weight_scale), decay = Set(heads[h].decay);
      for (int r = 0; r < kDotRows; ++r) {
        float* values = out[h].values + at + (v + r) * kLanes;
        Store(values,
              first ? Mul(sum[h][r], scale) : Fma(sum[h][r], scale, Mul(Load(values), decay)));
      }
    }
  }
}

// Calls fn(n as an integral_constant, query, first of n heads) for all heads of all queries that
// see a key from `first_key` on.
template <typename Fn>
SIMD_INLINE void ForHeads(const AttentionSplit& s, int64_t first_key, const Fn& fn) {
  for (int64_t i = 0; i < s.num_queries; ++i) {
    if (s.queries[i].num_keys <= first_key) continue;
    int64_t h = 0;
    for (; h + kDotHeads <= s.num_heads; h += kDotHeads)
      fn(std::integral_constant<int, kDotHeads>(), i, h);
    for (; h < s.num_heads; ++h) fn(std::integral_constant<int, 1>(), i, h);
  }
}

template <bool kLow>
SIMD_INLINE void PrepareHeads(const AttentionSplit& s, HeadChunk* heads) {
  const int64_t latent = s.layout.padded_latent(), rope = s.layout.padded_rope();
  for (int64_t i = 0; i < s.num_queries; ++i) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const int64_t at = (s.first_head + h) * s.layout.padded();
      const int8_t *hi = s.queries[i].hi + at, *lo = s.queries[i].lo + at;
      HeadChunk& head = heads[i * s.num_heads + h];
      head.latent_offset = PlaneOffset<kLow>(hi, lo, latent);
      head.rope_offset = PlaneOffset<true>(hi + latent, lo + latent, rope);
    }
  }
}

// A panel of 16 keys, then one of 64 latents, is made once and meets all heads of all queries while
// it lies in the first-level cache. kLow: the latents have a low plane.
template <bool kLow>
void AttendChunks(const AttentionSplit& s) {
  HeadChunk* heads = reinterpret_cast<HeadChunk*>(s.scratch);
  uint8_t* panel = s.scratch + s.num_queries * s.num_heads * kAttentionHeadBytes;
  PrepareHeads<kLow>(s, heads);
  int64_t most = 0;
  for (int64_t i = 0; i < s.num_queries; ++i) {
    if (s.queries[i].num_keys > most) most = s.queries[i].num_keys;
  }
  for (int64_t first = 0; first < most; first += kChunkKeys) {
    const bool is_first = first == 0;
    const int64_t count = most - first < kChunkKeys ? most - first : kChunkKeys;
    const auto keys_of = [&](int64_t query) {
      const int64_t left = s.queries[query].num_keys - first;
      return left < kChunkKeys ? left : kChunkKeys;
    };
    ChunkRows rows = FindRows(s, first, count);
    KvRowLayout layout = s.layout;
    if (kLow && layout.format == KvFormat::kFp8) {
      layout = ExpandCodes(layout, count, panel + AttentionPanelBytes(layout), &rows);
    }
    for (int64_t group = 0; group * kLanes < count; ++group) {
      MakeScorePanel<kLow>(layout, rows.rows + group * kLanes, panel);
      ForHeads(s, first + group * kLanes, [&](auto num_heads, int64_t i, int64_t h) {
        ScoreHeads<kLow, num_heads.value>(s, panel, rows, group, s.queries[i], s.first_head + h,
                                          heads + i * s.num_heads + h);
      });
    }
    ForHeads(s, first, [&](auto num_heads, int64_t i, int64_t h) {
      for (int64_t j = h; j < h + num_heads.value; ++j) {
        Soften<kLow>(rows, keys_of(i), is_first, heads + i * s.num_heads + j,
                     s.queries[i].out + s.first_head + j);
      }
    });
    for (int64_t at = 0; at < layout.padded_latent(); at += kBlockDims) {
      MakeValuePanel<kLow>(layout, rows.rows, count, at, panel);
      ForHeads(s, first, [&](auto num_heads, int64_t i, int64_t h) {
        AddValues<kLow, num_heads.value>(panel, at, keys_of(i), is_first,
                                         heads + i * s.num_heads + h,
                                         s.queries[i].out + s.first_head + h);
      });
    }
  }
}

}  // namespace

void AttendSplit(const AttentionSplit& s) {
  if (s.layout.latent_part().format == PartFormat::kOnePlane) {
    AttendChunks<false>(s);
  } else {
    AttendChunks<true>(s);
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
