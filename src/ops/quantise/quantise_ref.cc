#include <algorithm>
#include <cmath>
#include <cstring>

#include "numerics/e4m3.h"
#include "numerics/planes.h"
#include "ops/kernels.h"

namespace hillstar::reference {
namespace {

bool AllFinite(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

}  // namespace

bool QuantiseGroups(const QuantiseGroupsSlice& s) {
  const ActivationPlanes& p = s.planes;
  bool finite = true;
  for (int64_t g = 0; g < p.groups(); ++g) {
    const int64_t first = g * kGroup;
    float x[kGroup] = {};
    std::copy_n(s.x + first, std::min<int64_t>(kGroup, p.cols - first), x);
    if (!AllFinite(x, kGroup)) {
      finite = false;
      std::fill_n(x, kGroup, 0.0f);
    }
    p.scale[g] = hillstar::QuantiseRow(x, kGroup, p.hi + first, p.lo + first) / 256.0f;
    p.sum[g] = 0;
    for (int64_t i = first; i < first + kGroup; ++i) p.sum[g] += 256 * p.hi[i] + p.lo[i];
  }
  return finite;
}

bool QuantiseRow(const QuantiseRowSlice& s) {
  std::memset(s.hi, 0, size_t(s.padded));
  if (s.lo) std::memset(s.lo, 0, size_t(s.padded));
  *s.scale = 0;
  if (!AllFinite(s.x, s.n)) return false;
  *s.scale = hillstar::QuantiseRow(s.x, s.n, s.hi, s.lo);
  return true;
}

bool EncodeE4m3(const EncodeE4m3Slice& s) {
  std::memset(s.codes, 0, size_t(s.padded));
  *s.scale = 0;
  if (!AllFinite(s.x, s.n)) return false;
  *s.scale = EncodeE4m3Row(s.x, s.n, s.codes);
  return true;
}

}  // namespace hillstar::reference
