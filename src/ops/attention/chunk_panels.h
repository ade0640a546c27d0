// Gathered KV rows, rearranged for dot products of 16 lanes. For kernel files.
//
// Score panel of 16 keys: [quad of dims][plane hi, lo][16 keys x 4 dims], dims = latent then rope.
// Value panel of 64 latents: [quad of keys][4 x 16 latents][plane hi, lo][16 latents x 4 keys].
// Where latents have one plane (kLow false), so have their panels. All bytes carry an offset of
// 128.
#pragma once

#include "kv/layout.h"
#include "ops/attention/attention.h"
#include "ops/simd.h"
#include "ops/simd_e4m3.h"
#include "ops/transpose.h"

namespace hillstar::HILLSTAR_LEVEL {

inline constexpr int64_t kVector = 64;     // bytes
inline constexpr int64_t kBlockDims = 64;  // dims of a row moved at once
// Bytes of a vector's planes.
template <bool kLow>
inline constexpr int64_t kPlanesBytes = kLow ? 2 * kVector : kVector;

// Where the rows of a chunk's keys lie, and their scales. Keys that are missing have scale 0 and
// another key's bytes.
struct ChunkRows {
  const uint8_t* rows[kChunkKeys];
  float latent_scale[kChunkKeys];
  float rope_scale[kChunkKeys];
};

// Keys [first, first + count) of the split's list, 1 <= count <= 64.
SIMD_INLINE ChunkRows FindRows(const AttentionSplit& s, int64_t first, int64_t count) {
  ChunkRows r;
  for (int64_t i = 0; i < kChunkKeys; ++i) {
    r.rows[i] = s.pages.row(s.layout, s.position(first + (i < count ? i : 0)));
    r.latent_scale[i] = r.rope_scale[i] = 0.0f;
    if (i >= count) continue;
    std::memcpy(&r.latent_scale[i], r.rows[i] + s.layout.latent_part().scale_at, sizeof(float));
    std::memcpy(&r.rope_scale[i], r.rows[i] + s.layout.rope_part().scale_at, sizeof(float));
  }
  return r;
}

// Makes e4m3 rows rows of two planes in `planes`, kChunkKeys * 2 * padded bytes, so that a code is
// turned into integers once for all heads and queries; returns their layout.
SIMD_INLINE KvRowLayout ExpandCodes(const KvRowLayout& layout, int64_t count, uint8_t* planes,
                                    ChunkRows* r) {
  const KvRowLayout expanded{layout.latent, layout.rope, KvFormat::kQ15};
  const E4m3Table table = LoadE4m3Table();
  const auto expand = [&](const KvRowPart& from, const uint8_t* row, const KvRowPart& to,
                          uint8_t* out) {
    for (int64_t d = 0; d < to.padded; d += kBlockDims) {
      const E4m3PlaneBytes bytes = LoadE4m3Planes(table, row + from.at + d);
      StoreAll(out + to.at + d, bytes.hi);
      StoreAll(out + to.low_at() + d, bytes.lo);
    }
  };
  for (int64_t i = 0; i < kChunkKeys; ++i) {
    uint8_t* out = planes + (i < count ? i : 0) * expanded.value_bytes();
    if (i < count) {
      expand(layout.latent_part(), r->rows[i], expanded.latent_part(), out);
      expand(layout.rope_part(), r->rows[i], expanded.rope_part(), out);
    }
    r->rows[i] = out;
  }
  return expanded;
}

template <bool kLow>
SIMD_INLINE uint8_t* AddToScorePanel(const KvRowPart& part, const uint8_t* const* keys,
                                     uint8_t* panel) {
  for (int64_t d = 0; d < part.padded; d += kBlockDims, panel += kLanes * kPlanesBytes<kLow>) {
    TransposeQuads<true>(keys, part.at + d, panel, kPlanesBytes<kLow>);
    if (kLow) TransposeQuads<true>(keys, part.low_at() + d, panel + kVector, kPlanesBytes<kLow>);
  }
  return panel;
}

// All dimensions of 16 keys.
template <bool kLow>
SIMD_INLINE void MakeScorePanel(const KvRowLayout& layout, const uint8_t* const* keys,
                                uint8_t* panel) {
  panel = AddToScorePanel<kLow>(layout.latent_part(), keys, panel);
  AddToScorePanel<true>(layout.rope_part(), keys, panel);
}

// 64 latents from `at` on of `count` keys, rounded up to four.
template <bool kLow>
SIMD_INLINE void MakeValuePanel(const KvRowLayout& layout, const uint8_t* const* keys,
                                int64_t count, int64_t at, uint8_t* panel) {
  constexpr int64_t kBytes = kPlanesBytes<kLow>;
  const KvRowPart part = layout.latent_part();
  for (int64_t key = 0; key < count; key += 4, panel += kBlockDims / kLanes * kBytes) {
    InterleaveRows(keys + key, part.at + at, panel, kBytes);
    if (kLow) InterleaveRows(keys + key, part.low_at() + at, panel + kVector, kBytes);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
