// A chunk of up to 64 gathered KV rows, rearranged for dot products of 16 lanes. For kernel files.
//
// Score panels: [group of 16 keys][quad of dims][plane hi, lo][16 keys x 4 dims], dims = latent
// then rope. Value panels: [64 latents][quad of keys][4 x 16 latents][plane hi, lo][16 latents x 4
// keys]. All bytes carry an offset of 128. Keys that are missing hold arbitrary bytes with scale 0.
#pragma once

#include "kv/layout.h"
#include "ops/attention/attention.h"
#include "ops/simd.h"
#include "ops/transpose.h"

namespace hillstar::HILLSTAR_LEVEL {

inline constexpr int64_t kVector = 64;              // bytes
inline constexpr int64_t kBlockDims = 64;           // dims of a row moved at once
inline constexpr int64_t kPairBytes = 2 * kVector;  // both planes

struct ChunkPanels {
  uint8_t* scores;
  uint8_t* values;
  int64_t score_group_bytes;  // of 16 keys
  float latent_scale[kChunkKeys];
  float rope_scale[kChunkKeys];

  const uint8_t* score_group(int64_t group) const { return scores + group * score_group_bytes; }
  // 64 latents: 16 quads of keys x 4 vectors x 2 planes.
  static constexpr int64_t kValueBlockBytes = kChunkKeys / 4 * 4 * kPairBytes;
  const uint8_t* value_block(int64_t block) const { return values + block * kValueBlockBytes; }
};

#if defined(__AVX512VNNI__)

// out[v] = for 16 columns 16v.. the bytes of 4 rows side by side.
SIMD_INLINE void InterleaveRows(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  __m512i r[4];
  for (int i = 0; i < 4; ++i) r[i] = FlipSign(LoadBytes(rows[i] + at)).v;
  const __m512i ab_lo = _mm512_unpacklo_epi8(r[0], r[1]), ab_hi = _mm512_unpackhi_epi8(r[0], r[1]);
  const __m512i cd_lo = _mm512_unpacklo_epi8(r[2], r[3]), cd_hi = _mm512_unpackhi_epi8(r[2], r[3]);
  const __m512i q0 = _mm512_unpacklo_epi16(ab_lo, cd_lo), q1 = _mm512_unpackhi_epi16(ab_lo, cd_lo);
  const __m512i q2 = _mm512_unpacklo_epi16(ab_hi, cd_hi), q3 = _mm512_unpackhi_epi16(ab_hi, cd_hi);
  // 128-bit part p of q_i holds columns 16p + 4i..: bring the parts of one p together.
  const __m512i a = _mm512_shuffle_i32x4(q0, q1, 0x44), b = _mm512_shuffle_i32x4(q2, q3, 0x44);
  const __m512i c = _mm512_shuffle_i32x4(q0, q1, 0xee), d = _mm512_shuffle_i32x4(q2, q3, 0xee);
  StoreAll(out, {_mm512_shuffle_i32x4(a, b, 0x88)});
  StoreAll(out + stride, {_mm512_shuffle_i32x4(a, b, 0xdd)});
  StoreAll(out + 2 * stride, {_mm512_shuffle_i32x4(c, d, 0x88)});
  StoreAll(out + 3 * stride, {_mm512_shuffle_i32x4(c, d, 0xdd)});
}

#else

SIMD_INLINE void InterleaveRows(const uint8_t* const* rows, int64_t at, uint8_t* out,
                                int64_t stride) {
  for (int v = 0; v < 4; ++v) {
    for (int c = 0; c < kLanes; ++c) {
      for (int r = 0; r < 4; ++r) {
        out[v * stride + 4 * c + r] = static_cast<uint8_t>(rows[r][at + 16 * v + c] ^ 128);
      }
    }
  }
}

#endif

// Gathers keys [first, first + count) of the split's list, 1 <= count <= 64.
SIMD_INLINE void BuildPanels(const AttentionSplit& s, int64_t first, int64_t count,
                             ChunkPanels* out) {
  const KvRowLayout& layout = s.layout;
  const uint8_t* rows[kChunkKeys];
  for (int64_t i = 0; i < kChunkKeys; ++i) {
    rows[i] = s.pages.row(layout, s.position(first + (i < count ? i : 0)));
    const bool missing = i >= count;
    std::memcpy(&out->latent_scale[i], rows[i] + layout.latent_scale(), sizeof(float));
    std::memcpy(&out->rope_scale[i], rows[i] + layout.rope_scale(), sizeof(float));
    if (missing) out->latent_scale[i] = out->rope_scale[i] = 0.0f;
  }
  const int64_t latent = layout.padded_latent(), rope = layout.padded_rope();
  for (int64_t group = 0; group * kLanes < count; ++group) {
    uint8_t* panel = out->scores + group * out->score_group_bytes;
    const uint8_t* const* keys = rows + group * kLanes;
    for (int64_t d = 0; d < latent; d += kBlockDims, panel += kLanes * kPairBytes) {
      TransposeQuads<true>(keys, layout.latent_hi() + d, panel, kPairBytes);
      TransposeQuads<true>(keys, layout.latent_lo() + d, panel + kVector, kPairBytes);
    }
    for (int64_t d = 0; d < rope; d += kBlockDims, panel += kLanes * kPairBytes) {
      TransposeQuads<true>(keys, layout.rope_hi() + d, panel, kPairBytes);
      TransposeQuads<true>(keys, layout.rope_lo() + d, panel + kVector, kPairBytes);
    }
  }
  for (int64_t block = 0; block * kBlockDims < latent; ++block) {
    uint8_t* values = out->values + block * ChunkPanels::kValueBlockBytes;
    for (int64_t key = 0; key < count; key += 4, values += 4 * kPairBytes) {
      const int64_t at = block * kBlockDims;
      InterleaveRows(rows + key, layout.latent_hi() + at, values, kPairBytes);
      InterleaveRows(rows + key, layout.latent_lo() + at, values + kVector, kPairBytes);
    }
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
