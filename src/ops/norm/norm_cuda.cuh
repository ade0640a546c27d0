// One row's RMSNorm by a block, for kernels that do more besides.
//
// The sum of squares has an order of its own (256 partial sums), everything else has none: so all
// threads fetch the row, 256 of them sum, and all warps take groups of 64 values to the end.
#pragma once

#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {

inline constexpr int kMaxNormThreads = 1024;
inline constexpr int64_t kMaxNormRow = 16384;

// Dynamic shared memory of a block: the partial sums, then the row in whole groups.
constexpr size_t NormSharedBytes(int64_t n) {
  return size_t(kNumPartials + NumGroups(n) * kGroup) * sizeof(float);
}

// What joins value i of the row: see Ops::Addend.
__device__ __forceinline__ float JoinedValue(const NormTask& task, int64_t row, int64_t i,
                                             float x) {
  const Ops::Mixture& m = task.mixture;
  if (!m.rows) return task.added ? __fadd_rn(x, task.added[row * task.n + i]) : x;
  const int32_t* slots = m.slots + row * m.num_ranks;
  const float* weights = m.weights + row * m.num_ranks;
  float sum = 0;
#pragma unroll 8
  for (int64_t rank = 0; rank < m.num_ranks; ++rank) {
    sum = __fmaf_rn(weights[rank], m.rows[slots[rank] * task.n + i], sum);
  }
  return __fadd_rn(x, m.shared ? __fadd_rn(sum, m.shared[row * task.n + i]) : sum);
}

// Row `row` of the task by kThreads threads, at least 256, who take kGroups groups each warp at
// most. Weights are fetched before the kernel before this one has ended, everything else after it:
// begins with WaitForPrevious.
template <int kThreads, int kGroups>
__device__ __forceinline__ void NormRow(const NormTask& task, int64_t row, int32_t* bad,
                                        int32_t code) {
  constexpr int kWarps = kThreads / kWarpLanes;
  float* partials = reinterpret_cast<float*>(DynamicShared());
  float* values = partials + kNumPartials;
  const int64_t n = task.n, groups = NumGroups(n);
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  float2 w[kGroups];
#pragma unroll
  for (int k = 0; k < kGroups; ++k) w[k] = PairOfGroup(task.weight, n, warp + k * kWarps);
  WaitForPrevious();
  const bool joins = task.added || task.mixture.rows;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < groups * kGroup; i += kThreads) {
    float v = i < n ? task.x[row * n + i] : 0.0f;
    if (joins && i < n) task.sum[row * n + i] = v = JoinedValue(task, row, i, v);
    values[i] = v;
  }
  __syncthreads();
  if (threadIdx.x < kNumPartials) {
    float partial = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += kNumPartials) {
      partial = __fmaf_rn(values[i], values[i], partial);
    }
    partials[threadIdx.x] = partial;
  }
  __syncthreads();
  LetNextBegin();
  const float mean = __fdiv_rn(FoldByWarp(partials), float(n));
  const bool finite = IsFinite(mean);
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, row);
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, task.eps)));
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const int64_t g = warp + k * kWarps, i = g * kGroup + 2 * lane;
    if (g >= groups) continue;
    float2 v = reinterpret_cast<const float2*>(values + g * kGroup)[lane];
    v.x = __fmul_rn(__fmul_rn(v.x, inverse), w[k].x);
    v.y = __fmul_rn(__fmul_rn(v.y, inverse), w[k].y);
    if (task.y && i < n) task.y[row * n + i] = v.x;
    if (task.y && i + 1 < n) task.y[row * n + i + 1] = v.y;
    if (!task.planes.hi) continue;
    if (!finite || i >= n) v.x = 0.0f;
    if (!finite || i + 1 >= n) v.y = 0.0f;
    const bool fits = QuantiseByWarp(v.x, v.y, GroupOf(task.planes, row, g));
    if (!fits && lane == 0) NoteBad(bad, code, row);
  }
}

}  // namespace hillstar::cuda
