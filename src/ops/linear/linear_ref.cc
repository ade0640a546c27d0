#include <cmath>

#include "numerics/elementary.h"
#include "ops/kernels.h"

namespace hillstar::reference {
namespace {

// The dot product of 64 weights and 64 activations in steps of their scales: exact integers, one
// for each plane of the weights; of two planes, one rounding each and one in the fma.
float GroupDot(WeightFormat format, const QuantisedGroup& w, const int8_t* hi, const int8_t* lo) {
  int32_t high = 0, low = 0;
  for (int i = 0; i < kGroup; ++i) {
    const int32_t x = 256 * hi[i] + lo[i];
    high += w.hi[i] * x;
    low += w.lo[i] * x;
  }
  return format == WeightFormat::kW15 ? std::fma(256.0f, float(high), float(low)) : float(high);
}

float RowDot(const LinearSlice& s, int64_t row, int64_t x_row) {
  const ActivationPlanes x = s.x.FromRow(x_row);
  const uint8_t* tile = s.w.panel(row / kPanelRows);
  float total = 0;
  for (int64_t first = 0; first < x.groups(); first += kSegmentGroups) {
    float segment = 0;
    for (int64_t g = first; g < first + kSegmentGroups && g < x.groups(); ++g) {
      const QuantisedGroup w = ReadTile(s.w.format, tile, int(row % kPanelRows));
      const float scale = s.w.format == WeightFormat::kW15 ? w.scale * 0x1p-8f : w.scale;
      const float d = GroupDot(s.w.format, w, x.hi + g * kGroup, x.lo + g * kGroup);
      segment = std::fma(d, scale * x.scale[g], segment);
      tile += TileBytes(s.w.format);
    }
    total += segment;
  }
  return total;
}

template <typename Fn>
void ForEachOutput(const LinearSlice& s, const Fn& value) {
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    for (int64_t r = s.first_panel * kPanelRows;
         r < (s.first_panel + s.num_panels) * kPanelRows && r < s.w.rows; ++r) {
      s.y[t * s.y_stride + r] = value(r, s.x_row(t));
    }
  }
}

}  // namespace

void Linear(const LinearSlice& s) {
  ForEachOutput(s, [&](int64_t row, int64_t x_row) { return RowDot(s, row, x_row); });
}

void SwiGlu(const SwiGluSlice& s) {
  LinearSlice up = s.linear;
  up.w = s.up;
  ForEachOutput(s.linear, [&](int64_t row, int64_t x_row) {
    return Silu(RowDot(s.linear, row, x_row)) * RowDot(up, row, x_row);
  });
}

}  // namespace hillstar::reference
