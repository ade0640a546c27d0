#include <cstring>

#include "ops/indexer/indexer.h"

namespace hillstar {

void StoreIndexKey(const IndexKeyLayout& layout, const PageTable& pages, int64_t pos,
                   const int8_t* hi, const int8_t* lo, float scale) {
  uint8_t* panel = pages.panel(layout, pos);
  const int64_t lane = pos % kIndexPanelTokens;
  for (int64_t i = 0; i < layout.dim; ++i) {
    panel[layout.high_at(lane, i)] = uint8_t(hi[i] + 128);
    if (layout.num_planes == 2) panel[layout.low_at(lane, i)] = uint8_t(lo[i] + 128);
  }
  std::memcpy(panel + layout.scales_at() + 4 * lane, &scale, sizeof scale);
}

}  // namespace hillstar
