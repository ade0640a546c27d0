// RMSNorm, what may come before it (a row that joins x) and after it (planes): a block of 256
// threads a row, thread j summing what goes to partial j.
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {
namespace {

__global__ void __launch_bounds__(kNumPartials)
    RmsNormKernel(NormTask task, int32_t* bad, int32_t code) {
  __shared__ float partials[kNumPartials];
  WaitForPrevious();
  const int64_t row = blockIdx.x, n = task.n;
  const float* x = task.x + row * n;
  float partial = 0;
  for (int64_t i = threadIdx.x; i < n; i += kNumPartials) {
    float v = x[i];
    if (task.added) task.sum[row * n + i] = v = __fadd_rn(v, task.added[row * n + i]);
    partial = __fmaf_rn(v, v, partial);
  }
  if (task.added) x = task.sum + row * n;
  const float mean = __fdiv_rn(FoldPartials(partial, partials), float(n));
  LetNextBegin();
  const bool finite = IsFinite(mean);
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, row);
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, task.eps)));
  const int lane = threadIdx.x % kWarpLanes;
  for (int64_t g = threadIdx.x / kWarpLanes; g < NumGroups(n); g += kNumPartials / kWarpLanes) {
    const int64_t i = g * kGroup + 2 * lane;
    float2 v = PairOfGroup(x, n, g);
    const float2 w = PairOfGroup(task.weight, n, g);
    v.x = __fmul_rn(__fmul_rn(v.x, inverse), w.x);
    v.y = __fmul_rn(__fmul_rn(v.y, inverse), w.y);
    if (task.y && i < n) task.y[row * n + i] = v.x;
    if (task.y && i + 1 < n) task.y[row * n + i + 1] = v.y;
    if (!task.planes.hi) continue;
    const bool fits =
        QuantiseByWarp(finite ? v.x : 0.0f, finite ? v.y : 0.0f, GroupOf(task.planes, row, g));
    if (!fits && lane == 0) NoteBad(bad, code, row);
  }
}

}  // namespace

void RmsNorm(const KernelContext& context, const NormTask& task) {
  Launch("RMSNorm", RmsNormKernel, {dim3(unsigned(task.rows)), dim3(kNumPartials)}, context.stream,
         task, context.bad.first, context.bad.code);
}

}  // namespace hillstar::cuda
