// One row's RMSNorm by a block, for kernels that do more besides.
#pragma once

#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {

inline constexpr int kMaxNormEach = 64;  // values a thread: rows of up to 16,384

// Dynamic shared memory of a block: the partial sums, then the row in whole groups.
constexpr size_t NormSharedBytes(int64_t n) {
  return size_t(kNumPartials + NumGroups(n) * kGroup) * sizeof(float);
}

// v += what joins the row before it is normalised; thread j has values j + 256 k.
template <int kEach>
__device__ __forceinline__ void Join(const NormTask& task, int64_t row, float (&v)[kEach]) {
  const int64_t n = task.n, first = row * n + threadIdx.x;
  const auto is_in = [&](int k) { return threadIdx.x + k * kNumPartials < n; };
  float sum[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) sum[k] = 0.0f;
  const Ops::Mixture& m = task.mixture;
  if (m.rows) {
#pragma unroll 2
    for (int64_t rank = 0; rank < m.num_ranks; ++rank) {
      const float weight = m.weights[row * m.num_ranks + rank];
      const float* values = m.rows + m.slots[row * m.num_ranks + rank] * n + threadIdx.x;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const float value = is_in(k) ? values[k * kNumPartials] : 0.0f;
        sum[k] = __fmaf_rn(weight, value, sum[k]);
      }
    }
  }
  const float* whole = m.rows ? m.shared : task.added;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (!is_in(k)) continue;
    const float value = whole ? whole[first + k * kNumPartials] : 0.0f;
    const float joins = !m.rows ? value : whole ? __fadd_rn(sum[k], value) : sum[k];
    task.sum[first + k * kNumPartials] = v[k] = __fadd_rn(v[k], joins);
  }
}

// Row `row` of the task by 256 threads, kEach values each at most. Weights are fetched before the
// kernel before this one has ended, everything else after it: begins with WaitForPrevious.
template <int kEach>
__device__ __forceinline__ void NormRow(const NormTask& task, int64_t row, int32_t* bad,
                                        int32_t code) {
  float* partials = reinterpret_cast<float*>(DynamicShared());
  float* normed = partials + kNumPartials;
  const int64_t n = task.n;
  const float* x = task.x + row * n;
  float w[kEach], v[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = threadIdx.x + k * kNumPartials;
    w[k] = i < n ? task.weight[i] : 0.0f;
  }
  WaitForPrevious();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = threadIdx.x + k * kNumPartials;
    v[k] = i < n ? x[i] : 0.0f;
  }
  if (task.added || task.mixture.rows) Join(task, row, v);
  float partial = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = threadIdx.x + k * kNumPartials;
    if (i < n) partial = __fmaf_rn(v[k], v[k], partial);
  }
  const float mean = __fdiv_rn(FoldPartials(partial, partials), float(n));
  LetNextBegin();
  const bool finite = IsFinite(mean);
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, row);
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, task.eps)));
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = threadIdx.x + k * kNumPartials;
    const float y = __fmul_rn(__fmul_rn(v[k], inverse), w[k]);
    if (i < NumGroups(n) * kGroup) normed[i] = i < n && finite ? y : 0.0f;
    if (task.y && i < n) task.y[row * n + i] = y;
  }
  if (!task.planes.hi) return;
  __syncthreads();
  const int lane = threadIdx.x % kWarpLanes;
  for (int64_t g = threadIdx.x / kWarpLanes; g < NumGroups(n); g += kNumPartials / kWarpLanes) {
    const float2 pair = reinterpret_cast<const float2*>(normed + g * kGroup)[lane];
    const bool fits = QuantiseByWarp(pair.x, pair.y, GroupOf(task.planes, row, g));
    if (!fits && lane == 0) NoteBad(bad, code, row);
  }
}

}  // namespace hillstar::cuda
