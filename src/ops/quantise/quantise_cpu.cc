#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {

bool QuantiseGroups(const QuantiseGroupsSlice& s) {
  const ActivationPlanes& p = s.planes;
  bool all_finite = true;
  const int64_t num_groups = (p.cols + kGroup - 1) / kGroup;
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t first = g * kGroup;
    const float* x = s.x + first;
    const int64_t left = p.cols - first;
    int8_t *hi = p.hi + first, *lo = p.lo + first;
    bool finite = true;
    const float scale = QuantiseLanes(
        kGroup, [&](int64_t i) { return i < left ? LoadSome(x + i, left - i) : Set(0.0f); }, hi, lo,
        &finite);
    p.scale[g] = scale / 256.0f;
    p.sum[g] = 256 * SumBytes(hi, kGroup) + SumBytes(lo, kGroup);
    all_finite = all_finite && finite;
  }
  return all_finite;
}

bool QuantiseRow(const QuantiseRowSlice& s) {
  bool finite = true;
  *s.scale = QuantiseLanes(
      s.padded, [&](int64_t i) { return i < s.n ? LoadSome(s.x + i, s.n - i) : Set(0.0f); }, s.hi,
      s.lo, &finite);
  return finite;
}

}  // namespace hillstar::HILLSTAR_LEVEL
