// Planes of rows: a warp for each group of 64 values.
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    QuantiseKernel(QuantiseTask task, int32_t* bad, int32_t code) {
  WaitForPrevious();
  LetNextBegin();
  const int64_t groups = task.planes.groups();
  const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
  if (i >= task.rows * groups) return;
  const int64_t row = i / groups, g = i % groups;
  const float* x =
      task.x + row / task.heads * task.token_stride + row % task.heads * task.head_stride;
  const float2 v = PairOfGroup(x, task.planes.cols, g);
  if (!QuantiseByWarp(v.x, v.y, GroupOf(task.planes, row, g)) && threadIdx.x % kWarpLanes == 0) {
    NoteBad(bad, code, task.owner.token(row));
  }
}

}  // namespace

void Quantise(const KernelContext& context, const QuantiseTask& task) {
  const int64_t warps = task.rows * task.planes.groups();
  const dim3 grid(unsigned(CeilDiv(warps * kWarpLanes, kThreads)));
  Launch("quantising rows", QuantiseKernel, {grid, dim3(kThreads)}, context.stream, task,
         context.bad.first, context.bad.code);
}

}  // namespace hillstar::cuda
