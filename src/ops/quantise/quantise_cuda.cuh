// Planes inside kernels: a warp quantises a group of 64 values, lane l holding values 2 l and 2 l
// + 1.
#pragma once

#include "device/cuda/contract.cuh"
#include "ops/cuda_kernels.h"

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
  const RowScale scale = ScaleOf(LargestOfWarp(first > second ? first : second));
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

// 16 values of a group, and what the four lanes that have it share: scale and sum as
// ActivationPlanes have them.
struct PlaneSixteenth {
  uint32_t hi[4], lo[4];
  float scale;
  int sum;
  bool finite;  // all of the group; else it is zero
};
// QuantiseGroups of eight groups, by all lanes of a warp: lanes 4 g .. 4 g + 3 have group g, each
// 16 values from `from` on, of which there are `left`; what is missing is zero.
__device__ __forceinline__ PlaneSixteenth QuantiseByFour(const float* from, int64_t left) {
  float v[16];
  if (left >= 16 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      v[i] = four.x;
      v[i + 1] = four.y;
      v[i + 2] = four.z;
      v[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) v[i] = i < left ? from[i] : 0.0f;
  }
  uint32_t largest = 0;  // magnitudes order as their bits do
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = max(largest, __float_as_uint(Magnitude(v[i])));
#pragma unroll
  for (int bits = 1; bits < 4; bits *= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, bits));
  }
  PlaneSixteenth out;
  out.finite = IsFinite(__uint_as_float(largest));
  const RowScale scale = ScaleOf(out.finite ? __uint_as_float(largest) : 0.0f);
  out.scale = __fmul_rn(scale.scale, 1.0f / 256);
  int sums[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    PlaneWords w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      w[j] = ToPlaneWords(out.finite ? v[4 * i + j] : 0.0f, scale.inverse);
    out.hi[i] = LowBytes(w[0].hi, w[1].hi, w[2].hi, w[3].hi);
    out.lo[i] = LowBytes(w[0].lo, w[1].lo, w[2].lo, w[3].lo);
    sums[0] = __dp4a(int(out.hi[i]), 0x01010101, sums[0]);
    sums[1] = __dp4a(int(out.lo[i]), 0x01010101, sums[1]);
  }
  out.sum = 256 * sums[0] + sums[1];
#pragma unroll
  for (int bits = 1; bits < 4; bits *= 2) out.sum += __shfl_xor_sync(kAllLanes, out.sum, bits);
  return out;
}

// Where a row begins.
__device__ __forceinline__ const float* RowOf(const FloatRows& x, int64_t row) {
  if (x.heads == 1) return x.data + row * x.token_stride;
  const auto token = int64_t(uint32_t(row) / uint32_t(x.heads));
  return x.data + token * x.token_stride + (row - token * x.heads) * x.head_stride;
}

// The two values of a lane in group g of a row of n floats, zeros behind its end.
__device__ __forceinline__ float2 PairOfGroup(const float* row, int64_t n, int64_t g) {
  const int64_t i = g * kGroup + 2 * (threadIdx.x % kWarpLanes);
  return make_float2(i < n ? row[i] : 0.0f, i + 1 < n ? row[i + 1] : 0.0f);
}

}  // namespace hillstar::cuda
