// The lightning indexer: scores of one query against cached keys, and the selection.
#pragma once

#include <cstdint>

#include "kv/layout.h"

namespace hillstar {

inline constexpr int kIndexSums = 4;
inline constexpr float kIndexUnit = 0x1p-30f;  // times a product of 128 dimensions: below 1

// score[k] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) * key_scale + 0.0, where head h adds
// w[h] * x to sum[h % 4] (ascending, by fma from 0), with
// x = max(float(PlaneProduct(q, key)), 0) * 2^-30.
//   q_hi, q_lo: int8 [heads, dim], q_lo not read where keys have one plane
//   w: f32 [heads], IndexQueries::weight
//   keys: panels of the pages
//   scores: f32, written for the whole panels [first_panel, first_panel + num_panels) at
//     scores[16 * panel]
// REQUIRES: dim % 16 == 0, dim <= 512. Synchronous, no allocation.
// Numerics: docs/numerics.md, "Indexer". Source: DeepSeek-V3.2 report, section 2 (lightning
// indexer), with GLM-5.2's scaling.
struct IndexScoreSlice {
  IndexKeyLayout layout;
  PageTable pages;
  const int8_t* q_hi = nullptr;
  const int8_t* q_lo = nullptr;
  const float* w = nullptr;
  int64_t num_heads = 0;
  int64_t first_panel = 0;
  int64_t num_panels = 0;
  float* scores = nullptr;
};

// Writes key (two planes [dim] and a scale) of token `pos` into its panel; lo is left out where the
// layout has one plane, and may then be null.
void StoreIndexKey(const IndexKeyLayout& layout, const PageTable& pages, int64_t pos,
                   const int8_t* hi, const int8_t* lo, float scale);

// Writes the indices of scores[first, first + n) that are above `floor` to `above`, in ascending
// order, and returns their number; -1 if one of the scores is not finite.
//   above: int32 [n]
struct CollectAboveSlice {
  const float* scores = nullptr;
  int64_t first = 0;
  int64_t n = 0;
  float floor = 0;
  int32_t* above = nullptr;
};

// The `k` largest of scores[0, n) by (value descending, index ascending), written in ascending
// order of index to selected[k]. False, and nothing is selected, if a score is not finite. A
// function of the values alone: neither kernels nor pool matter. A floor below the k-th largest is
// guessed from some of the scores, so that one pass over the row finds a few candidates; where the
// guess fails, the whole row is.
//   scratch: [n]; kernels: of any level; pool: where a long row is cut, or null
// REQUIRES 0 < k <= n.
struct TopKRow {
  const float* scores = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int32_t* scratch = nullptr;
  int32_t* selected = nullptr;
};
struct CpuKernels;
class ThreadPool;
bool SelectTopK(const CpuKernels& kernels, const TopKRow& row, ThreadPool* pool);

}  // namespace hillstar
