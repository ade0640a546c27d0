// RMSNorm, what may come before it (rows that join x) and after it (planes): a block of 256 threads
// a row, thread j summing what goes to partial j.
#include "ops/norm/norm_cuda.cuh"

#include "core/check.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

template <int kThreads, int kGroups>
__global__ void __launch_bounds__(kThreads)
    RmsNormKernel(const __grid_constant__ NormTask task, int32_t* bad, int32_t code) {
  NormRow<kThreads, kGroups>(task, blockIdx.x, bad, code);
}

// A block of kThreads threads a row, for rows of up to kGroups groups a warp.
template <int kThreads, int kGroups>
bool LaunchIfFits(const KernelContext& context, const NormTask& task) {
  if (NumGroups(task.n) > kThreads / kWarpLanes * kGroups) return false;
  Launch("RMSNorm", RmsNormKernel<kThreads, kGroups>,
         {dim3(unsigned(task.rows)), dim3(kThreads), NormSharedBytes(task.n)}, context.stream, task,
         context.bad.first, context.bad.code);
  return true;
}

}  // namespace

void RmsNorm(const KernelContext& context, const NormTask& task) {
  CHECK(task.n <= kMaxNormRow);
  LaunchIfFits<kNumPartials, 1>(context, task) || LaunchIfFits<kMaxNormThreads, 1>(context, task) ||
      LaunchIfFits<kMaxNormThreads, 3>(context, task) ||
      LaunchIfFits<kMaxNormThreads, 8>(context, task);
}

}  // namespace hillstar::cuda
