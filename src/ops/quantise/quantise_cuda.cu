// Planes of rows: a warp for each group of 64 values.
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 256;

// Warps of task a, then of task b.
__global__ void __launch_bounds__(kThreads)
    QuantiseKernel(const __grid_constant__ QuantiseTask a, const __grid_constant__ QuantiseTask b,
                   int32_t* bad, int32_t code) {
  int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
  const int64_t warps = a.rows * a.planes.groups();
  const bool is_first = i < warps;
  const QuantiseTask& task = is_first ? a : b;
  if (!is_first) i -= warps;
  LetNextBegin();
  WaitForPrevious();
  const int64_t groups = task.planes.groups();
  if (i >= task.rows * groups) return;
  const int64_t row = i / groups, g = i % groups;
  const float2 v = PairOfGroup(RowOf(task.x, row), task.planes.cols, g);
  if (!QuantiseByWarp(v.x, v.y, GroupOf(task.planes, row, g)) && threadIdx.x % kWarpLanes == 0) {
    NoteBad(bad, code, task.x.owner.token(row));
  }
}

}  // namespace

void QuantiseBoth(const KernelContext& context, const QuantiseTask& a, const QuantiseTask& b) {
  const int64_t warps = a.rows * a.planes.groups() + b.rows * b.planes.groups();
  const dim3 grid(unsigned(CeilDiv(warps * kWarpLanes, kThreads)));
  const double bytes = 6 * double(a.rows * a.planes.cols + b.rows * b.planes.cols);
  Launch("quantising rows", QuantiseKernel, {grid, dim3(kThreads), 0, bytes}, context.stream, a, b,
         context.bad.first, context.bad.code);
}

void Quantise(const KernelContext& context, const QuantiseTask& task) {
  QuantiseBoth(context, task, {});
}

}  // namespace hillstar::cuda
