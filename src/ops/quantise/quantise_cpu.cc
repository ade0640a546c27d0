#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {

namespace {

// load(i): values i..i+15 of the group.
template <typename LoadFn>
SIMD_INLINE bool QuantiseGroup(const ActivationPlanes& p, int64_t g, const LoadFn& load) {
  const F32 x[4] = {load(0), load(kLanes), load(2 * kLanes), load(3 * kLanes)};
  const PlaneBlock block = QuantiseBlock(x);
  StoreAll(p.hi + g * kGroup, block.bytes.hi);
  StoreAll(p.lo + g * kGroup, block.bytes.lo);
  p.scale[g] = block.scale / 256.0f;
  const I32 high = AddQuads(SetInt(0), block.bytes.hi);
  p.sum[g] = SumLanes(AddQuads(ShiftLeft<8>(high), block.bytes.lo));
  return block.finite;
}

// load(i): values i..i+15 of the row, zeros beyond its end.
template <typename LoadFn>
SIMD_INLINE bool QuantiseAll(const QuantiseRowSlice& s, const LoadFn& load) {
  I32 largest = SetInt(0);
  for (int64_t i = 0; i < s.padded; i += kLanes) largest = MaxInt(largest, AbsBits(load(i)));
  PlaneScale scale;
  const bool finite = ScaleOf(largest, &scale);
  *s.scale = scale.scale;
  if (scale.scale == 0.0f) {
    std::memset(s.hi, 0, static_cast<size_t>(s.padded));
    std::memset(s.lo, 0, static_cast<size_t>(s.padded));
    return finite;
  }
  const F32 inverse = Set(scale.inverse);
  int64_t i = 0;
  for (; i + kGroup <= s.padded; i += kGroup) {
    const F32 x[4] = {load(i), load(i + kLanes), load(i + 2 * kLanes), load(i + 3 * kLanes)};
    const PlaneBytes bytes = ToPlanes(x, inverse);
    StoreAll(s.hi + i, bytes.hi);
    StoreAll(s.lo + i, bytes.lo);
  }
  for (; i < s.padded; i += kLanes) {
    I32 high, low;
    ToPlanes(load(i), inverse, &high, &low);
    StoreBytes(s.hi + i, high);
    StoreBytes(s.lo + i, low);
  }
  return true;
}

}  // namespace

bool QuantiseGroups(const QuantiseGroupsSlice& s) {
  const ActivationPlanes& p = s.planes;
  const int64_t num_full = p.cols / kGroup;
  bool finite = true;
  for (int64_t g = 0; g < num_full; ++g) {
    const float* x = s.x + g * kGroup;
    finite = QuantiseGroup(p, g, [&](int64_t i) { return Load(x + i); }) && finite;
  }
  const int64_t left = p.cols - num_full * kGroup;
  if (left == 0) return finite;
  const float* x = s.x + num_full * kGroup;
  return QuantiseGroup(
             p, num_full,
             [&](int64_t i) { return i < left ? LoadSome(x + i, left - i) : Set(0.0f); }) &&
         finite;
}

bool QuantiseRow(const QuantiseRowSlice& s) {
  if (s.n == s.padded) return QuantiseAll(s, [&](int64_t i) { return Load(s.x + i); });
  return QuantiseAll(s,
                     [&](int64_t i) { return i < s.n ? LoadSome(s.x + i, s.n - i) : Set(0.0f); });
}

}  // namespace hillstar::HILLSTAR_LEVEL
