// Planes inside kernels: a warp quantises a group of 64 values, lane l holding values 2 l and 2 l
// + 1.
#pragma once

#include "device/cuda/contract.cuh"

namespace hillstar::cuda {

// Where group g of a row of planes lies.
struct PlaneGroup {
  int8_t* hi;
  int8_t* lo;
  float* scale;
  int32_t* sum;
};
__device__ __forceinline__ PlaneGroup GroupOf(const ActivationPlanes& planes, int64_t row,
                                              int64_t g) {
  const int64_t at = row * planes.groups() + g;
  return {planes.hi + at * kGroup, planes.lo + at * kGroup, planes.scale + at, planes.sum + at};
}

// QuantiseGroups of one group, by all lanes of a warp; padding is passed as zeros. False, and the
// group is zero, if a value of the 64 is not finite.
__device__ __forceinline__ bool QuantiseByWarp(float a, float b, const PlaneGroup& out) {
  const int lane = int(threadIdx.x) % kWarpLanes;
  const bool finite = __all_sync(kAllLanes, IsFinite(a) && IsFinite(b));
  if (!finite) a = b = 0.0f;
  const float first = Magnitude(a), second = Magnitude(b);
  const RowScale scale = ScaleOf(WarpMax(first > second ? first : second));
  const PlanePair p = ToPlanes(a, scale.inverse), q = ToPlanes(b, scale.inverse);
  const int sum = WarpSum(256 * (p.hi + q.hi) + p.lo + q.lo);
  reinterpret_cast<uint16_t*>(out.hi)[lane] = uint16_t(uint8_t(p.hi) | uint8_t(q.hi) << 8);
  reinterpret_cast<uint16_t*>(out.lo)[lane] = uint16_t(uint8_t(p.lo) | uint8_t(q.lo) << 8);
  if (lane == 0) {
    *out.scale = __fmul_rn(scale.scale, 1.0f / 256);
    *out.sum = sum;
  }
  return finite;
}

// The two values of a lane in group g of a row of n floats, zeros behind its end.
__device__ __forceinline__ float2 PairOfGroup(const float* row, int64_t n, int64_t g) {
  const int64_t i = g * kGroup + 2 * (threadIdx.x % kWarpLanes);
  return make_float2(i < n ? row[i] : 0.0f, i + 1 < n ? row[i + 1] : 0.0f);
}

}  // namespace hillstar::cuda
