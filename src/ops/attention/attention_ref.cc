#include <algorithm>
#include <cmath>
#include <limits>

#include "kv/row_values.h"
#include "numerics/elementary.h"
#include "numerics/planes.h"
#include "ops/kernels.h"

namespace hillstar::reference {
namespace {

// PlaneProduct of a query's planes and a part of a row.
float Dot(const int8_t* hi, const int8_t* lo, const KvRowPart& part, const uint8_t* row) {
  int8_t row_hi[kMaxPartValues], row_lo[kMaxPartValues];
  for (int64_t i = 0; i < part.padded; ++i) {
    const PlanePair value = RowValue(part, row, i);
    row_hi[i] = value.hi;
    row_lo[i] = value.lo;
  }
  return float(PlaneProduct(hi, lo, row_hi, row_lo, part.padded));
}

float Score(const KvRowLayout& layout, const AttentionQuery& q, int64_t head, const uint8_t* row) {
  const KvRowPart latent = layout.latent_part(), rope = layout.rope_part();
  const int8_t *hi = q.hi + head * layout.padded(), *lo = q.lo + head * layout.padded();
  const float a = Dot(hi, lo, latent, row);
  const float b = Dot(hi + latent.padded, lo + latent.padded, rope, row);
  const float latent_scale = q.latent_scale[head] * RowScale(latent, row);
  const float rope_scale = q.rope_scale[head] * RowScale(rope, row);
  return std::fma(a, latent_scale, b * rope_scale);
}

// 64 values: vectors of 16 added in ascending order, then the tree over 16 lanes.
float Sum64(const float* p) {
  float lanes[16];
  for (int j = 0; j < 16; ++j) lanes[j] = ((p[j] + p[16 + j]) + p[32 + j]) + p[48 + j];
  for (int stride = 8; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) lanes[j] += lanes[j + stride];
  }
  return lanes[0];
}

void AddChunk(const AttentionSplit& s, const AttentionQuery& q, int64_t head, int64_t first) {
  const KvRowPart latent = s.layout.latent_part();
  const int64_t n = std::min(kChunkKeys, q.num_keys - first);
  const uint8_t* rows[kChunkKeys];
  float score[kChunkKeys], p[kChunkKeys] = {}, w[kChunkKeys] = {};
  AttentionPartial& out = q.out[head];
  float largest = first == 0 ? -std::numeric_limits<float>::infinity() : out.largest;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    rows[i] = s.pages.row(s.layout, s.position(first + i));
    score[i] = Score(s.layout, q, head, rows[i]);
    finite = finite && std::isfinite(score[i]);
    largest = std::max(largest, score[i]);
  }
  largest += 0.0f;  // +0 where zeros of both signs are the largest
  for (int64_t i = 0; i < n; ++i) {
    p[i] = Exp(score[i] - largest);
    w[i] = p[i] * RowScale(latent, rows[i]);
  }
  int8_t hi[kChunkKeys], lo[kChunkKeys];
  float w_scale;
  QuantiseRow({w, kChunkKeys, kChunkKeys, hi, lo, &w_scale});
  w_scale *= 0x1p-8f;
  const float decay = first == 0 ? 0.0f : Exp(out.largest - largest);
  out.sum = first == 0 ? Sum64(p) : std::fma(out.sum, decay, Sum64(p));
  if (!finite) out.sum = std::numeric_limits<float>::quiet_NaN();
  out.largest = largest;
  for (int64_t d = 0; d < latent.padded; ++d) {
    int8_t value_hi[kChunkKeys], value_lo[kChunkKeys];
    for (int64_t i = 0; i < n; ++i) {
      const PlanePair value = RowValue(latent, rows[i], d);
      value_hi[i] = value.hi;
      value_lo[i] = value.lo;
    }
    const float sum = float(PlaneProduct(hi, lo, value_hi, value_lo, n));
    out.values[d] = first == 0 ? sum * w_scale : std::fma(sum, w_scale, out.values[d] * decay);
  }
}

}  // namespace

void AttendSplit(const AttentionSplit& s) {
  for (int64_t i = 0; i < s.num_queries; ++i) {
    for (int64_t h = s.first_head; h < s.first_head + s.num_heads; ++h) {
      for (int64_t first = 0; first < s.queries[i].num_keys; first += kChunkKeys) {
        AddChunk(s, s.queries[i], h, first);
      }
    }
  }
}

void MergeSplits(const AttentionMerge& s) {
  float largest = s.partials[0].largest, sum = s.partials[0].sum;
  std::copy_n(s.partials[0].values, s.latent, s.out);
  for (int64_t i = 1; i < s.num_splits; ++i) {
    const AttentionPartial& part = s.partials[i * s.stride];
    const float next = std::max(largest, part.largest);
    const float a = Exp(largest - next), b = Exp(part.largest - next);
    sum = std::fma(part.sum, b, sum * a);
    for (int64_t d = 0; d < s.latent; ++d) {
      s.out[d] = std::fma(part.values[d], b, s.out[d] * a);
    }
    largest = next;
  }
  for (int64_t d = 0; d < s.latent; ++d) s.out[d] /= sum;
}

}  // namespace hillstar::reference
