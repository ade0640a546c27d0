// How a token's latent KV row and index key lie in a page of 64 tokens. Pages hold one layer.
// docs/numerics.md, "KV rows", gives the values; this file gives the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/integers.h"
#include "kv/kv_format.h"

namespace hillstar {

inline constexpr int64_t kPageTokens = 64;

// The values of one part of a row, latent or rope.
enum class PartFormat { kTwoPlanes, kOnePlane, kE4m3 };
struct KvRowPart {
  PartFormat format = PartFormat::kTwoPlanes;
  int64_t num_values = 0;
  int64_t padded = 0;    // to 64; the padding holds zeros
  int64_t at = 0;        // byte of the row: the high plane (or codes) [padded], then the low one
  int64_t scale_at = 0;  // f32

  constexpr int64_t low_at() const { return at + padded; }  // of two planes
  constexpr int64_t num_bytes() const {
    return format == PartFormat::kTwoPlanes ? 2 * padded : padded;
  }
};

// A row: the latent part, the rope part, their scales, padding to 16 bytes.
struct KvRowLayout {
  int64_t latent = 0;  // values
  int64_t rope = 0;
  KvFormat format = KvFormat::kQ15;

  constexpr int64_t padded_latent() const { return RoundUp(latent, 64); }
  constexpr int64_t padded_rope() const { return RoundUp(rope, 64); }
  // Values of latent and rope together.
  constexpr int64_t padded() const { return padded_latent() + padded_rope(); }
  constexpr KvRowPart latent_part() const {
    const PartFormat part = format == KvFormat::kQ15  ? PartFormat::kTwoPlanes
                            : format == KvFormat::kQ8 ? PartFormat::kOnePlane
                                                      : PartFormat::kE4m3;
    return {part, latent, padded_latent(), 0, value_bytes()};
  }
  constexpr KvRowPart rope_part() const {
    return {format == KvFormat::kFp8 ? PartFormat::kE4m3 : PartFormat::kTwoPlanes, rope,
            padded_rope(), latent_bytes(), value_bytes() + 4};
  }
  constexpr int64_t latent_bytes() const {
    return format == KvFormat::kQ15 ? 2 * padded_latent() : padded_latent();
  }
  constexpr int64_t value_bytes() const {
    return latent_bytes() + (format == KvFormat::kFp8 ? 1 : 2) * padded_rope();
  }
  constexpr int64_t row_bytes() const { return RoundUp(value_bytes() + 8, 16); }
  constexpr int64_t page_bytes() const { return row_bytes() * kPageTokens; }
};

// Index keys lie in panels of 16 tokens, so that a dot product of one query with 16 keys reads
// whole vectors: for each quad of dimensions 64 bytes of the high plane (key r owns bytes
// 4r..4r+3), then 64 of the low plane if there is one, stored with an offset of 128; after the last
// quad 16 f32 scales. 260 bytes a token for two planes of 128 dimensions, 132 for one. One stream
// of bytes: with a plane behind the other a scan from memory takes twice as long.
inline constexpr int64_t kIndexPanelTokens = 16;
// Beside latents in q15 keys have two planes, beside the smaller formats one.
constexpr int64_t NumIndexPlanes(KvFormat format) { return format == KvFormat::kQ15 ? 2 : 1; }
struct IndexKeyLayout {
  int64_t dim = 0;  // a multiple of 16
  int64_t num_planes = 2;

  constexpr int64_t plane_bytes() const { return dim * kIndexPanelTokens; }
  constexpr int64_t quad_bytes() const { return num_planes * 4 * kIndexPanelTokens; }
  // Byte of dimension i of key `lane` in the high and the low plane.
  constexpr int64_t high_at(int64_t lane, int64_t i) const {
    return i / 4 * quad_bytes() + lane * 4 + i % 4;
  }
  constexpr int64_t low_at(int64_t lane, int64_t i) const { return high_at(lane, i) + 64; }
  constexpr int64_t scales_at() const { return num_planes * plane_bytes(); }
  constexpr int64_t panel_bytes() const { return scales_at() + 4 * kIndexPanelTokens; }
  constexpr int64_t page_bytes() const { return panel_bytes() * (kPageTokens / kIndexPanelTokens); }
};

// Names a page's memory in the pool; the same id holds the same 64 tokens in every layer.
using PageId = int32_t;

// One layer's pages of one sequence; row p lies in page p / 64. A view.
struct PageTable {
  const PageId* ids = nullptr;       // [pages of the sequence], one list for all layers
  uint8_t* const* memory = nullptr;  // [page id]: where the page's bytes of all layers begin
  int64_t offset = 0;                // of the layer's bytes in them

  constexpr uint8_t* page(int64_t pos) const { return memory[ids[pos / kPageTokens]] + offset; }
  constexpr uint8_t* row(const KvRowLayout& layout, int64_t pos) const {
    return page(pos) + (pos % kPageTokens) * layout.row_bytes();
  }
  constexpr uint8_t* panel(const IndexKeyLayout& layout, int64_t pos) const {
    return page(pos) + (pos % kPageTokens) / kIndexPanelTokens * layout.panel_bytes();
  }
};

// A sequence's pages, as the host has them. A view. Lists with one version are the same.
struct PageList {
  const PageId* ids = nullptr;
  int64_t num_pages = 0;
  uint64_t sequence = 0;  // whose list: unique, not 0
  uint64_t version = 0;
};
// Where pages' rows lie: of page i, of all layers, at latents[i] and index_keys[i]. A view: what is
// there stays as it is, and entries are added.
struct PageAddresses {
  uint8_t* const* latents = nullptr;
  uint8_t* const* index_keys = nullptr;
  int64_t num_pages = 0;
};

// The pages of a step's tokens in one layer: ids[t] is the list of token t's sequence. A view, of
// the memory of whoever computes.
struct StepPages {
  const PageId* const* ids = nullptr;  // [tokens]
  uint8_t* const* memory = nullptr;
  int64_t offset = 0;

  constexpr PageTable of(int64_t t) const { return {ids[t], memory, offset}; }
};

}  // namespace hillstar
