// The arithmetic contract inside kernels: the functions of numerics/elementary.h and planes.h, and
// sums over the threads of a block. Every rounding is written out; the compiler contracts nothing.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/elementary_constants.h"
#include "numerics/planes.h"
#include "ptx.cuh"

namespace hillstar::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr int kWarpLanes = 32;

// A float of magnitude below 2^22 plus this is rounded to an integer, ties to even, whose two's
// complement are the sum's low bits: cheaper than conversions.
inline constexpr float kIntegerOffset = 0x1.8p23f;

// numerics/elementary.h, for x up to kExpHigh; of -inf 0, of NaN NaN.
__device__ __forceinline__ float ExpOfSmall(float x) {
  const float rounded = __fadd_rn(__fmul_rn(x, kLog2E), kIntegerOffset);
  const float n = __fsub_rn(rounded, kIntegerOffset);
  const float r = __fmaf_rn(n, -kLn2Low, __fmaf_rn(n, -kLn2High, x));
  float p = 1.f / 5040;
  p = __fmaf_rn(p, r, 1.f / 720);
  p = __fmaf_rn(p, r, 1.f / 120);
  p = __fmaf_rn(p, r, 1.f / 24);
  p = __fmaf_rn(p, r, 1.f / 6);
  p = __fmaf_rn(p, r, 1.f / 2);
  p = __fmaf_rn(p, r, 1.f);
  p = __fmaf_rn(p, r, 1.f);
  const float y = __fmul_rn(p, __uint_as_float((__float_as_uint(rounded) + 127) << 23));
  return x < kExpLow ? 0.0f : y;
}
__device__ __forceinline__ float Exp(float x) { return ExpOfSmall(x < kExpHigh ? x : kExpHigh); }
__device__ __forceinline__ float Sigmoid(float x) {
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, Exp(-x)));
}
__device__ __forceinline__ float Silu(float x) { return __fdiv_rn(x, __fadd_rn(1.0f, Exp(-x))); }

__device__ __forceinline__ bool IsFinite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}
__device__ __forceinline__ float Magnitude(float x) {
  return __uint_as_float(__float_as_uint(x) & 0x7fffffffu);
}

// numerics/planes.h: a value of a row whose 1 / scale is `inverse`, as words whose lowest bytes are
// the planes' values.
struct PlaneWords {
  uint32_t hi, lo;
};
__device__ __forceinline__ PlaneWords ToPlaneWords(float x, float inverse) {
  const float t = __fmul_rn(x, inverse);
  const float h = __fadd_rn(t, kIntegerOffset);
  // The factor is a power of two: nothing is rounded but the sum.
  float l = __fmaf_rn(__fsub_rn(t, __fsub_rn(h, kIntegerOffset)), 256.0f, kIntegerOffset);
  l = l < kIntegerOffset + 127.0f ? l : kIntegerOffset + 127.0f;
  l = l > kIntegerOffset - 127.0f ? l : kIntegerOffset - 127.0f;
  return {__float_as_uint(h), __float_as_uint(l)};
}
__device__ __forceinline__ PlanePair ToPlanes(float x, float inverse) {
  const PlaneWords words = ToPlaneWords(x, inverse);
  return {int8_t(words.hi), int8_t(words.lo)};
}
// The lowest bytes of four words.
__device__ __forceinline__ uint32_t LowBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x40), __byte_perm(c, d, 0x40), 0x5410);
}
// The scale of a row with this largest magnitude, and its inverse.
struct RowScale {
  float scale;
  float inverse;
};
__device__ __forceinline__ RowScale ScaleOf(float amax) {
  if (amax < kSmallestRowAmax) return {0.0f, 0.0f};
  const float scale = __fdiv_rn(amax, 127.0f);
  return {scale, __fdiv_rn(1.0f, scale)};
}

// Of the lanes of a warp, for all of them.
__device__ __forceinline__ uint32_t WarpMax(uint32_t x) { return __reduce_max_sync(kAllLanes, x); }
// Of a value that all lanes of a warp have, that value: the compiler then knows that they do, and
// may keep it in a register of the warp.
__device__ __forceinline__ int Uniform(int x) { return int(WarpMax(uint32_t(x))); }
// Of magnitudes that are finite, whose bits are in their order.
__device__ __forceinline__ float LargestOfWarp(float magnitude) {
  return __uint_as_float(WarpMax(__float_as_uint(magnitude)));
}
__device__ __forceinline__ int WarpSum(int x) { return __reduce_add_sync(kAllLanes, x); }

// Of this lane and those before it.
template <typename T>
__device__ __forceinline__ T SumUpToLane(T x) {
  const int lane = int(threadIdx.x) % kWarpLanes;
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const T other = __shfl_up_sync(kAllLanes, x, unsigned(delta));
    if (lane >= delta) x += other;
  }
  return x;
}

// Larger floats have larger bits. x is not NaN; -0 is below +0.
__device__ __forceinline__ uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// FoldPartials of numerics/elementary.h by one warp, for all its lanes; partial j is at
// partials[j].
__device__ __forceinline__ float FoldByWarp(const float* partials) {
  constexpr int kEach = kNumPartials / kWarpLanes;
  const int lane = int(threadIdx.x) % kWarpLanes;
  float p[kEach];
#pragma unroll
  for (int m = 0; m < kEach; ++m) p[m] = partials[m * kWarpLanes + lane];
#pragma unroll
  for (int stride = kEach / 2; stride > 0; stride /= 2) {
#pragma unroll
    for (int m = 0; m < stride; ++m) p[m] = __fadd_rn(p[m], p[m + stride]);
  }
  float sum = p[0];
#pragma unroll
  for (int stride = kWarpLanes / 2; stride > 0; stride /= 2) {
    sum = __fadd_rn(sum, __shfl_down_sync(kAllLanes, sum, stride));
  }
  return __shfl_sync(kAllLanes, sum, 0);
}

// The same over the block's 256 threads, thread j holding partial j; for all threads. `shared`: f32
// [256] of the block. Every warp folds for itself, so that one barrier does; another one in front
// lets the array be used again.
__device__ __forceinline__ float FoldPartials(float partial, float* shared) {
  __syncthreads();
  shared[threadIdx.x] = partial;
  __syncthreads();
  return FoldByWarp(shared);
}

// Notes that token t met a value that is not finite. `code`: KernelContext::bad.
__device__ __forceinline__ void NoteBad(int32_t* first, int32_t code, int64_t t) {
  atomicCAS(first + t, 0, code);
}

}  // namespace hillstar::cuda
