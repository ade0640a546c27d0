// RMSNorm, what may come before it (rows that join x) and after it (planes): a block a
// row, of which threads 0 .. 255 sum what goes to their partial.
#include "ops/norm/norm_cuda.cuh"

#include "core/check.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    RmsNormKernel(const __grid_constant__ NormTask task, int32_t* bad, int32_t code) {
  NormRow<kThreads>(task, blockIdx.x, bad, code);
}

template <int kThreads>
void LaunchNorm(const KernelContext& context, const NormTask& task) {
  Launch("RMSNorm", RmsNormKernel<kThreads>,
         {dim3(unsigned(task.rows)), dim3(kThreads),
          NormSharedBytes(task.n, task.mixture.num_ranks), NormBytes(task)},
         context.stream, task, context.bad.first, context.bad.code);
}

}  // namespace

void RmsNorm(const KernelContext& context, const NormTask& task) {
  CHECK(task.n <= kMaxNormRow);
  if (task.n <= 4 * kNumPartials) return LaunchNorm<kNumPartials>(context, task);
  LaunchNorm<kMaxNormThreads>(context, task);
}

}  // namespace hillstar::cuda
