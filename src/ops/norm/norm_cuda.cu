// RMSNorm, what may come before it (rows that join x) and after it (planes): a block of 256 threads
// a row, thread j summing what goes to partial j.
#include "ops/norm/norm_cuda.cuh"

#include "core/check.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

template <int kEach>
__global__ void __launch_bounds__(kNumPartials)
    RmsNormKernel(NormTask task, int32_t* bad, int32_t code) {
  NormRow<kEach>(task, blockIdx.x, bad, code);
}

template <int kEach>
void LaunchNorm(const KernelContext& context, const NormTask& task) {
  Launch("RMSNorm", RmsNormKernel<kEach>,
         {dim3(unsigned(task.rows)), dim3(kNumPartials), NormSharedBytes(task.n)}, context.stream,
         task, context.bad.first, context.bad.code);
}

}  // namespace

void RmsNorm(const KernelContext& context, const NormTask& task) {
  const int64_t each = CeilDiv(task.n, int64_t{kNumPartials});
  CHECK(each <= kMaxNormEach);
  if (each <= 2) return LaunchNorm<2>(context, task);
  if (each <= 8) return LaunchNorm<8>(context, task);
  if (each <= 24) return LaunchNorm<24>(context, task);
  LaunchNorm<kMaxNormEach>(context, task);
}

}  // namespace hillstar::cuda
