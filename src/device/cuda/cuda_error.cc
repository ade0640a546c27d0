#include <fmt/format.h>

#include "device/cuda/launch.cuh"
#include "hillstar/error.h"

namespace hillstar::cuda {

void ThrowCudaError(cudaError_t error, const char* what) {
  cudaGetLastError();  // what is not sticky is over
  throw Error(ErrorCode::kDevice,
              fmt::format("the GPU failed at {}: {}", what, cudaGetErrorString(error)));
}

LaunchObserver*& CurrentObserver() {
  thread_local LaunchObserver* observer = nullptr;
  return observer;
}

}  // namespace hillstar::cuda
