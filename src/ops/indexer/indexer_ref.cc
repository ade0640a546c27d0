#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "numerics/planes.h"
#include "ops/kernels.h"

namespace hillstar {

namespace reference {

void IndexScores(const IndexScoreSlice& s) {
  const IndexKeyLayout& layout = s.layout;
  const int64_t dim = layout.dim;
  const std::vector<int8_t> no_plane(static_cast<size_t>(dim));
  std::vector<int8_t> key_hi(static_cast<size_t>(dim)), key_lo(static_cast<size_t>(dim));
  for (int64_t pos = s.first_panel * kIndexPanelTokens;
       pos < (s.first_panel + s.num_panels) * kIndexPanelTokens; ++pos) {
    const uint8_t* panel = s.pages.panel(layout, pos);
    const int64_t lane = pos % kIndexPanelTokens;
    float key_scale;
    std::memcpy(&key_scale, panel + layout.scales_at() + 4 * lane, sizeof key_scale);
    for (int64_t i = 0; i < dim; ++i) {
      key_hi[size_t(i)] = int8_t(panel[layout.high_at(lane, i)] - 128);
      if (layout.num_planes == 2) key_lo[size_t(i)] = int8_t(panel[layout.low_at(lane, i)] - 128);
    }
    float sum[kIndexSums] = {};
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const int8_t* q_lo = layout.num_planes == 2 ? s.q_lo + h * dim : no_plane.data();
      const int32_t d = PlaneProduct(s.q_hi + h * dim, q_lo, key_hi.data(), key_lo.data(), dim);
      const float x = std::max(float(d), 0.0f) * kIndexUnit;
      sum[h % kIndexSums] = std::fma(s.w[h], x, sum[h % kIndexSums]);
    }
    s.scores[pos] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) * key_scale + 0.0f;
  }
}

}  // namespace reference
}  // namespace hillstar
