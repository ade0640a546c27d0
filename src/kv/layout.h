// How a token's latent KV row and index key lie in a page of 64 tokens. Pages hold one layer.
// docs/numerics.md, "KV rows", gives the values; this file gives the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/integers.h"

namespace hillstar {

inline constexpr int64_t kPageTokens = 64;

// A latent KV row in format q15: latent hi, latent lo (int8, padded to 64), rope hi, rope lo
// (likewise), the two scales (f32), padding to 16 bytes. 1,168 bytes for 512 + 64.
struct KvRowLayout {
  int64_t latent = 0;  // values
  int64_t rope = 0;

  constexpr int64_t padded_latent() const { return RoundUp(latent, 64); }
  constexpr int64_t padded_rope() const { return RoundUp(rope, 64); }
  // int8 of one plane of latent and rope together.
  constexpr int64_t padded() const { return padded_latent() + padded_rope(); }
  constexpr int64_t latent_hi() const { return 0; }
  constexpr int64_t latent_lo() const { return padded_latent(); }
  constexpr int64_t rope_hi() const { return 2 * padded_latent(); }
  constexpr int64_t rope_lo() const { return 2 * padded_latent() + padded_rope(); }
  constexpr int64_t latent_scale() const { return 2 * padded(); }
  constexpr int64_t rope_scale() const { return 2 * padded() + 4; }
  constexpr int64_t row_bytes() const { return RoundUp(2 * padded() + 8, 16); }
  constexpr int64_t page_bytes() const { return row_bytes() * kPageTokens; }
};

// Index keys lie in panels of 16 tokens, so that a dot product of one query with 16 keys reads
// whole vectors: for each quad of dimensions 64 bytes (key r owns bytes 4r..4r+3), all quads of
// the high plane, then of the low plane, stored with an offset of 128; then 16 f32 scales.
// 264 bytes a token for 128 dimensions.
inline constexpr int64_t kIndexPanelTokens = 16;
struct IndexKeyLayout {
  int64_t dim = 0;  // a multiple of 16

  constexpr int64_t plane_bytes() const { return dim * kIndexPanelTokens; }
  constexpr int64_t panel_bytes() const { return 2 * plane_bytes() + 4 * kIndexPanelTokens; }
  constexpr int64_t page_bytes() const { return panel_bytes() * (kPageTokens / kIndexPanelTokens); }
};

// Names a page's memory in the pool; the same id holds the same 64 tokens in every layer.
using PageId = int32_t;

// One layer's pages of one sequence; row p lies in page p / 64. A view.
struct PageTable {
  const PageId* ids = nullptr;       // [pages of the sequence], one list for all layers
  uint8_t* const* memory = nullptr;  // [page id]: where the page's bytes of all layers begin
  int64_t offset = 0;                // of the layer's bytes in them

  uint8_t* page(int64_t pos) const { return memory[ids[pos / kPageTokens]] + offset; }
  uint8_t* row(const KvRowLayout& layout, int64_t pos) const {
    return page(pos) + (pos % kPageTokens) * layout.row_bytes();
  }
  uint8_t* panel(const IndexKeyLayout& layout, int64_t pos) const {
    return page(pos) + (pos % kPageTokens) / kIndexPanelTokens * layout.panel_bytes();
  }
};

}  // namespace hillstar
