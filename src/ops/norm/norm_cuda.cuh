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

// Dynamic shared memory of a block: the partial sums, the row in whole groups, what follows where
// it fits, and the ranks of a mixture.
constexpr int64_t kMaxFetchedRow = 10752;  // twice, beside other 14 KB, in the 99 KB of small GPUs
struct Rank {
  int32_t slot;
  float weight;
};
__host__ __device__ constexpr int64_t NormRowFloats(int64_t n) { return NumGroups(n) * kGroup; }
constexpr size_t NormSharedBytes(int64_t n, int64_t num_ranks) {
  const int64_t rows = n <= kMaxFetchedRow ? 2 : 1;
  return size_t(kNumPartials + rows * NormRowFloats(n)) * sizeof(float) +
         size_t(num_ranks) * sizeof(Rank);
}

// What a norm reads and writes.
inline double NormBytes(const NormTask& task) {
  const bool joins = task.added || task.mixture.rows;
  int64_t floats = 1 + (task.added ? 1 : 0) + (joins ? 1 : 0) + (task.y ? 1 : 0);
  if (task.mixture.rows) floats += task.mixture.num_ranks + (task.mixture.shared ? 1 : 0);
  return double(task.rows * task.n * (4 * floats + (task.planes.hi ? 2 : 0)) + 4 * task.n);
}

__device__ __forceinline__ float4 Sum4(const float4& a, const float4& b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z),
                     __fadd_rn(a.w, b.w));
}
__device__ __forceinline__ float4 FourAt(const float* values, int64_t i) {
  return *reinterpret_cast<const float4*>(values + i);
}
// v and what joins values i .. i + 3 of the row: see Ops::Addend. REQUIRES n % 4 == 0, i % 4 == 0.
__device__ __forceinline__ float4 JoinedFour(const NormTask& task, const Rank* ranks, int64_t row,
                                             int64_t i, const float4& v) {
  const Ops::Mixture& m = task.mixture;
  if (!m.rows) return Sum4(v, FourAt(task.added, row * task.n + i));
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int r = 0; r < int(m.num_ranks); ++r) {
    const float weight = ranks[r].weight;
    const float4 x = FourAt(m.rows, ranks[r].slot * task.n + i);
    sum.x = __fmaf_rn(weight, x.x, sum.x);
    sum.y = __fmaf_rn(weight, x.y, sum.y);
    sum.z = __fmaf_rn(weight, x.z, sum.z);
    sum.w = __fmaf_rn(weight, x.w, sum.w);
  }
  if (m.shared) sum = Sum4(sum, FourAt(m.shared, row * task.n + i));
  return Sum4(v, sum);
}

// The same of one value, for rows of any length.
__device__ __forceinline__ float JoinedValue(const NormTask& task, const Rank* ranks, int64_t row,
                                             int64_t i, float v) {
  const Ops::Mixture& m = task.mixture;
  if (!m.rows) return __fadd_rn(v, task.added[row * task.n + i]);
  float sum = 0;
#pragma unroll 1
  for (int r = 0; r < int(m.num_ranks); ++r) {
    sum = __fmaf_rn(ranks[r].weight, m.rows[ranks[r].slot * task.n + i], sum);
  }
  return __fadd_rn(v, m.shared ? __fadd_rn(sum, m.shared[row * task.n + i]) : sum);
}

// Row `row` of the task by kThreads threads, at least 256. The norm's weights, which never change,
// and the mixture's slots and weights, which were there before the kernel before this one began,
// are fetched before that one has ended; the next kernel may begin meanwhile. A step has many of
// these and each is over in a few microseconds, in which its instructions are fetched for the first
// time: so loops are not unrolled where that gains nothing else.
template <int kThreads>
__device__ __forceinline__ void NormRow(const NormTask& task, int64_t row, int32_t* bad,
                                        int32_t code) {
  float* partials = reinterpret_cast<float*>(DynamicShared());
  float* values = partials + kNumPartials;
  const int64_t n = task.n, groups = NumGroups(n);
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const float* x = task.x + row * n;
  const float* weight = task.weight;
  float* fetched = values + NormRowFloats(n);
  auto* ranks = reinterpret_cast<Rank*>(fetched);
  if (n <= kMaxFetchedRow) {
    weight = fetched;
    ranks = reinterpret_cast<Rank*>(fetched + NormRowFloats(n));
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < n; i += kThreads) CopyAsync4(fetched + i, task.weight + i);
    CommitCopies();
  }
  const int64_t num_ranks = task.mixture.rows ? task.mixture.num_ranks : 0;
  for (int64_t r = threadIdx.x; r < num_ranks; r += kThreads) {
    const int64_t at = row * num_ranks + r;
    ranks[r] = {task.mixture.slots[at], task.mixture.weights[at]};
  }
  LetNextBegin();
  __syncthreads();
  WaitForPrevious();
  const bool joins = task.added || task.mixture.rows;
  if (n % 4 == 0) {
#pragma unroll 1
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * kThreads) {
      float4 v = FourAt(x, i);
      if (joins) {
        v = JoinedFour(task, ranks, row, i, v);
        *reinterpret_cast<float4*>(task.sum + row * n + i) = v;
      }
      *reinterpret_cast<float4*>(values + i) = v;
    }
  } else {
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      float v = x[i];
      if (joins) task.sum[row * n + i] = v = JoinedValue(task, ranks, row, i, v);
      values[i] = v;
    }
  }
  WaitForCopies<0>();
  __syncthreads();
  if (threadIdx.x < kNumPartials) {
    float partial = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < n; i += kNumPartials) {
      partial = __fmaf_rn(values[i], values[i], partial);
    }
    partials[threadIdx.x] = partial;
  }
  __syncthreads();
  const float mean = __fdiv_rn(FoldByWarp(partials), float(n));
  const bool finite = IsFinite(mean);
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, row);
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, task.eps)));
#pragma unroll 1
  for (int64_t g = warp; g < groups; g += kThreads / kWarpLanes) {
    const int64_t i = g * kGroup + 2 * lane;
    const float2 w = PairOfGroup(weight, n, g);
    float2 v = reinterpret_cast<const float2*>(values + g * kGroup)[lane];
    v.x = __fmul_rn(__fmul_rn(v.x, inverse), w.x);
    v.y = __fmul_rn(__fmul_rn(v.y, inverse), w.y);
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
