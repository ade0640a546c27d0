// Kernels on a GPU.
#pragma once

#include <cstdint>
#include <utility>

namespace hillstar::cuda {

#if defined(__CUDACC__)
// Shared memory whose size the launch gives, aligned to 128 bytes.
__device__ __forceinline__ uint8_t* DynamicShared() {
  extern __shared__ __align__(128) uint8_t dynamic_shared[];
  return dynamic_shared;
}
#endif

// Runs kernel(arguments...) on the stream, or puts it into the graph that the stream captures.
// Asynchronous. A kernel launched so may begin as soon as every block of the one before it has
// ended or has a thread that called LetNextBegin(). It calls WaitForPrevious() (hopper.cuh) before
// it writes, before it reads what the kernel before it wrote, and, by some thread of every block,
// in any case. Earlier results it may read sooner only if in the kernel before it every thread
// waits before it ends or calls LetNextBegin(): whatever that kernel waited for has ended then.
// Weights and the step's tables are always old.
template <typename... Parameters, typename... Arguments>
void Launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            cudaStream_t stream, Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (CurrentObserver()) CurrentObserver()->BeforeLaunch(name, shape, stream);
  // Beyond 48 KB, a kernel's own variables among them, a kernel needs leave.
  if (shape.shared_bytes > (32 << 10)) {
    Check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes)),
        name);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  Check(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...),
        name);
}

}  // namespace hillstar::cuda
