// Gathered KV rows, rearranged for dot products of 16 lanes. For kernel files.
//
// Score panel of 16 keys: [quad of dims][plane hi, lo][16 keys x 4 dims], dims = latent then rope.
// Value panel of 64 latents: [quad of keys][4 x 16 latents][plane hi, lo][16 latents x 4 keys]. All
// bytes carry an offset of 128.
#pragma once

#include "kv/layout.h"
#include "ops/attention/attention.h"
#include "ops/simd.h"
#include "ops/transpose.h"

namespace hillstar::HILLSTAR_LEVEL {

inline constexpr int64_t kVector = 64;              // bytes
inline constexpr int64_t kBlockDims = 64;           // dims of a row moved at once
inline constexpr int64_t kPairBytes = 2 * kVector;  // both planes

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
    std::memcpy(&r.latent_scale[i], r.rows[i] + s.layout.latent_scale(), sizeof(float));
    std::memcpy(&r.rope_scale[i], r.rows[i] + s.layout.rope_scale(), sizeof(float));
  }
  return r;
}

// All dimensions of 16 keys.
SIMD_INLINE void MakeScorePanel(const KvRowLayout& layout, const uint8_t* const* keys,
                                uint8_t* panel) {
  const auto add = [&](int64_t hi, int64_t lo, int64_t dims) {
    for (int64_t d = 0; d < dims; d += kBlockDims, panel += kLanes * kPairBytes) {
      TransposeQuads<true>(keys, hi + d, panel, kPairBytes);
      TransposeQuads<true>(keys, lo + d, panel + kVector, kPairBytes);
    }
  };
  add(layout.latent_hi(), layout.latent_lo(), layout.padded_latent());
  add(layout.rope_hi(), layout.rope_lo(), layout.padded_rope());
}

// 64 latents from `at` on of `count` keys, rounded up to four.
SIMD_INLINE void MakeValuePanel(const KvRowLayout& layout, const uint8_t* const* keys,
                                int64_t count, int64_t at, uint8_t* panel) {
  for (int64_t key = 0; key < count; key += 4, panel += kBlockDims / kLanes * kPairBytes) {
    InterleaveRows(keys + key, layout.latent_hi() + at, panel, kPairBytes);
    InterleaveRows(keys + key, layout.latent_lo() + at, panel + kVector, kPairBytes);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
