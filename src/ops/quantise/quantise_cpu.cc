#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_e4m3.h"
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

// Of values load(0), load(16), ... load(padded - 16).
template <typename LoadFn>
SIMD_INLINE I32 LargestBits(int64_t padded, const LoadFn& load) {
  I32 largest = SetInt(0);
  for (int64_t i = 0; i < padded; i += kLanes) largest = MaxInt(largest, AbsBits(load(i)));
  return largest;
}

// load(i): values i..i+15 of the row, zeros beyond its end.
template <bool kLow, typename LoadFn>
SIMD_INLINE bool QuantiseAll(const QuantiseRowSlice& s, const LoadFn& load) {
  PlaneScale scale;
  const bool finite = ScaleOf(LargestBits(s.padded, load), 127.0f, &scale);
  *s.scale = scale.scale;
  if (scale.scale == 0.0f) {
    std::memset(s.hi, 0, static_cast<size_t>(s.padded));
    if (kLow) std::memset(s.lo, 0, static_cast<size_t>(s.padded));
    return finite;
  }
  const F32 inverse = Set(scale.inverse);
  int64_t i = 0;
  for (; i + kGroup <= s.padded; i += kGroup) {
    const F32 x[4] = {load(i), load(i + kLanes), load(i + 2 * kLanes), load(i + 3 * kLanes)};
    const PlaneBytes bytes = ToPlanes(x, inverse);
    StoreAll(s.hi + i, bytes.hi);
    if (kLow) StoreAll(s.lo + i, bytes.lo);
  }
  for (; i < s.padded; i += kLanes) {
    I32 high, low;
    ToPlanes(load(i), inverse, &high, &low);
    StoreBytes(s.hi + i, high);
    if (kLow) StoreBytes(s.lo + i, low);
  }
  return true;
}

template <typename LoadFn>
SIMD_INLINE bool EncodeAll(const EncodeE4m3Slice& s, const LoadFn& load) {
  PlaneScale scale;
  const bool finite = ScaleOf(LargestBits(s.padded, load), 448.0f, &scale);
  *s.scale = scale.scale * 4.0f;
  if (scale.scale == 0.0f) {
    std::memset(s.codes, 0, static_cast<size_t>(s.padded));
    return finite;
  }
  const F32 inverse = Set(scale.inverse);
  for (int64_t i = 0; i < s.padded; i += kGroup) {
    I32 codes[4];
    for (int v = 0; v < 4; ++v) codes[v] = E4m3Codes(Mul(load(i + v * kLanes), inverse));
    StoreAll(s.codes + i, PackBytes(codes));
  }
  return true;
}

// Calls fn(load) with a load that reads zeros beyond x's end.
template <typename Fn>
SIMD_INLINE bool WithLoad(const float* x, int64_t n, int64_t padded, const Fn& fn) {
  if (n == padded) return fn([&](int64_t i) { return Load(x + i); });
  return fn([&](int64_t i) { return i < n ? LoadSome(x + i, n - i) : Set(0.0f); });
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
  return WithLoad(s.x, s.n, s.padded, [&](const auto& load) {
    return s.lo ? QuantiseAll<true>(s, load) : QuantiseAll<false>(s, load);
  });
}

bool EncodeE4m3(const EncodeE4m3Slice& s) {
  return WithLoad(s.x, s.n, s.padded, [&](const auto& load) { return EncodeAll(s, load); });
}

}  // namespace hillstar::HILLSTAR_LEVEL
