// Launches of kernels on a stream, and what becomes of CUDA's errors.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace hillstar::cuda {

// Throws Error kDevice with the call, CUDA's words and the place. Out of memory is for the callers.
[[noreturn]] void ThrowCudaError(cudaError_t error, const char* what);
inline void Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) ThrowCudaError(error, what);
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic
};

}  // namespace hillstar::cuda

#include "launch_kernel.cuh"  // of CUDA, or emulated: how a kernel gets going
