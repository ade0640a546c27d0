#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "core/check.h"
#include "numerics/planes.h"
#include "ops/kernels.h"

namespace hillstar {

namespace {

// Byte of dimension i of key `lane` inside a panel's plane.
int64_t PlaneByte(int64_t lane, int64_t i) { return i / 4 * 64 + lane * 4 + i % 4; }

}  // namespace

void StoreIndexKey(const IndexKeyLayout& layout, const PageTable& pages, int64_t pos,
                   const int8_t* hi, const int8_t* lo, float scale) {
  uint8_t* panel = pages.panel(layout, pos);
  const int64_t lane = pos % kIndexPanelTokens;
  for (int64_t i = 0; i < layout.dim; ++i) {
    panel[PlaneByte(lane, i)] = uint8_t(hi[i] + 128);
    if (layout.num_planes == 2) {
      panel[layout.plane_bytes() + PlaneByte(lane, i)] = uint8_t(lo[i] + 128);
    }
  }
  std::memcpy(panel + layout.scales_at() + 4 * lane, &scale, sizeof scale);
}

void SelectTopK(const float* scores, int64_t n, int64_t k, float* scratch, int32_t* selected) {
  CHECK(k > 0 && k <= n);
  std::copy_n(scores, n, scratch);
  std::nth_element(scratch, scratch + (k - 1), scratch + n, std::greater<float>());
  const float threshold = scratch[k - 1];
  int64_t num_above = 0;
  for (int64_t i = 0; i < n; ++i) num_above += scores[i] > threshold;
  int64_t ties_left = k - num_above;
  int64_t num_selected = 0;
  for (int64_t i = 0; i < n && num_selected < k; ++i) {
    const bool is_tie = scores[i] == threshold;
    if (is_tie && ties_left == 0) continue;
    if (is_tie) --ties_left;
    if (is_tie || scores[i] > threshold) selected[num_selected++] = int32_t(i);
  }
}

namespace reference {

void IndexScores(const IndexScoreSlice& s) {
  const int64_t dim = s.layout.dim;
  std::vector<int8_t> key_hi(static_cast<size_t>(dim)), key_lo(static_cast<size_t>(dim));
  for (int64_t pos = s.first_panel * kIndexPanelTokens;
       pos < (s.first_panel + s.num_panels) * kIndexPanelTokens; ++pos) {
    const uint8_t* panel = s.pages.panel(s.layout, pos);
    const int64_t lane = pos % kIndexPanelTokens;
    float key_scale;
    std::memcpy(&key_scale, panel + s.layout.scales_at() + 4 * lane, sizeof key_scale);
    for (int64_t i = 0; i < dim; ++i) {
      key_hi[size_t(i)] = int8_t(panel[PlaneByte(lane, i)] - 128);
      if (s.layout.num_planes == 1) continue;
      key_lo[size_t(i)] = int8_t(panel[s.layout.plane_bytes() + PlaneByte(lane, i)] - 128);
    }
    float sum = 0;
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const int32_t d =
          PlaneProduct(s.q_hi + h * dim, s.q_lo + h * dim, key_hi.data(), key_lo.data(), dim);
      const float v = float(d) * (s.q_scale[h] * key_scale);
      sum = std::fma(s.w[h], v > 0.0f ? v : 0.0f, sum);
    }
    s.scores[pos] = sum + 0.0f;
  }
}

}  // namespace reference
}  // namespace hillstar
