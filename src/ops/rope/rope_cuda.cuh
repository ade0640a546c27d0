// RoPE inside kernels.
#pragma once

#include "device/cuda/contract.cuh"

namespace hillstar::cuda {

// Value i of a rotated row of 2 * half values: pairs in, halves out.
__device__ __forceinline__ float Rotated(const float* in, const float* cos, const float* sin,
                                         int64_t half, int64_t i) {
  if (i < half) {
    const float a = in[2 * i], b = in[2 * i + 1];
    return __fmaf_rn(a, cos[i], -__fmul_rn(b, sin[i]));
  }
  const int64_t j = i - half;
  const float a = in[2 * j], b = in[2 * j + 1];
  return __fmaf_rn(b, cos[j], __fmul_rn(a, sin[j]));
}

}  // namespace hillstar::cuda
