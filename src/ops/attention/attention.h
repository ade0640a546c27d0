// Attention in the latent space, absorbed: one split of a query's list of keys, and the merge.
#pragma once

#include <cstdint>

#include "kv/layout.h"

namespace hillstar {

inline constexpr int64_t kChunkKeys = 64;   // keys whose probabilities share a scale
inline constexpr int64_t kSplitKeys = 256;  // keys of one partial result: four chunks
inline constexpr int64_t kMaxSplitQueries = 8;
inline constexpr int64_t kMaxPartValues = 512;  // latent or rope, padded: products stay int32

// A partial result of one query and head over some of its keys: largest score, sum of
// exp(score - largest), and the sum of exp(score - largest) * latent.
struct AttentionPartial {
  float largest = 0;
  float sum = 0;
  float* values = nullptr;  // [padded latent]
};

// One query's part of a split. Planes of a head: latent then rope, each padded to 64.
struct AttentionQuery {
  const int8_t* hi = nullptr;           // [heads, padded]
  const int8_t* lo = nullptr;           // [heads, padded]
  const float* latent_scale = nullptr;  // [heads]: scale / 256 * softmax scale
  const float* rope_scale = nullptr;    // [heads]: likewise
  int64_t num_keys = 0;                 // of this split, 0..256; 0: nothing is written
  AttentionPartial* out = nullptr;      // [heads]
};

// For heads [first_head, first_head + num_heads) and keys list[0..num_keys) of each query:
//   score = fma(latent_dot, latent_scale * key_latent_scale,
//               rope_dot * (rope_scale * key_rope_scale)), dots are float(PlaneProduct);
//   per chunk of 64 keys: m' = max(m, scores); p = exp(score - m'); l = l * a + sum(p), a = exp(m -
//   m'); w = p * key_latent_scale as two planes with one scale; values = fma(float(PlaneProduct(w,
//   latents)), w_scale / 256, values * a). The first chunk starts without m, l and values.
// A score that is not finite makes the sum NaN. The queries share one list, each seeing its
// first num_keys entries.
//   list: int32, or null for positions first_key, first_key + 1, ...
//   scratch: AttentionScratchBytes(layout, num_heads), 64-byte aligned, one a thread
// REQUIRES: padded latent and rope <= kMaxPartValues, 1 <= num_queries <= kMaxSplitQueries.
// Synchronous, no allocation. Numerics: docs/numerics.md, "Attention".
// Source: DeepSeek-V2 report, 2.1 (MLA), absorbed; FlashAttention's online softmax.
struct AttentionSplit {
  KvRowLayout layout;
  PageTable pages;
  const int32_t* list = nullptr;
  int64_t first_key = 0;
  const AttentionQuery* queries = nullptr;
  int64_t num_queries = 0;
  int64_t first_head = 0;
  int64_t num_heads = 0;
  uint8_t* scratch = nullptr;

  int64_t position(int64_t i) const { return list ? list[i] : first_key + i; }
};

// Bytes that one thread works in: what it keeps of each query and head (64 scores, two planes of 64
// weights and five numbers, in whole cache lines), a panel of gathered keys, and for fp8 the planes
// of a chunk's keys.
inline constexpr int64_t kAttentionHeadBytes = 448;
constexpr int64_t AttentionPanelBytes(const KvRowLayout& layout) {
  const int64_t score_panel = 16 * 2 * layout.padded();
  const int64_t value_panel = kChunkKeys * 2 * 64;
  return score_panel > value_panel ? score_panel : value_panel;
}
constexpr int64_t AttentionScratchBytes(const KvRowLayout& layout, int64_t num_heads) {
  const int64_t planes = layout.format == KvFormat::kFp8 ? kChunkKeys * 2 * layout.padded() : 0;
  return kMaxSplitQueries * num_heads * kAttentionHeadBytes + AttentionPanelBytes(layout) + planes;
}

// Merges the partial results of one head's splits in ascending order and divides by the sum:
// out f32 [latent]. REQUIRES num_splits >= 1; partials[i * stride] of split i.
struct AttentionMerge {
  const AttentionPartial* partials = nullptr;
  int64_t stride = 0;
  int64_t num_splits = 0;
  int64_t latent = 0;
  float* out = nullptr;
};

}  // namespace hillstar
