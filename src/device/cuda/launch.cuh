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
  // What the kernel has to read and write of memory at least, and products of two bytes (or of two
  // floats) that it has to do, where these are worth telling: for shares of what the GPU can do.
  double bytes = 0;
  double products = 0;
};

// Told of every launch of this thread, in its order.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void BeforeLaunch(const char* name, const LaunchShape& shape, cudaStream_t stream) = 0;
};
// Of this thread; may be null.
LaunchObserver*& CurrentObserver();

}  // namespace hillstar::cuda

#include "launch_kernel.cuh"  // of CUDA, or emulated: how a kernel gets going
