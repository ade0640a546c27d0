// The likeliest token of each row of logits, which the next step takes: no host between two steps.
#include <algorithm>

#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;

// The largest so far; ties go to the lower index. A row with +infinity or NaN has none.
struct Best {
  float value;
  int32_t index;  // -1: none
  int32_t is_bad;
};

__device__ __forceinline__ Best Better(const Best& a, const Best& b) {
  const bool takes_b = b.index >= 0 && (a.index < 0 || b.value > a.value ||
                                        (b.value == a.value && b.index < a.index));
  return {takes_b ? b.value : a.value, takes_b ? b.index : a.index, a.is_bad | b.is_bad};
}

__device__ Best BestOfWarp(Best best) {
  for (int bits = kWarpLanes / 2; bits > 0; bits /= 2) {
    const Best other = {__shfl_xor_sync(kAllLanes, best.value, bits),
                        __shfl_xor_sync(kAllLanes, best.index, bits),
                        __shfl_xor_sync(kAllLanes, best.is_bad, bits)};
    best = Better(best, other);
  }
  return best;
}

// Of the block, for thread 0.
__device__ Best BestOfBlock(Best best, Best* shared) {
  best = BestOfWarp(best);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = best;
  __syncthreads();
  if (threadIdx.x < kWarpLanes) {
    best = threadIdx.x < kWarps ? shared[threadIdx.x] : Best{0.0f, -1, 0};
    best = BestOfWarp(best);
  }
  return best;
}

__device__ __forceinline__ Best BestOf(float x, int64_t i) {
  const bool is_bad = !IsFinite(x) && !(x < 0.0f);
  return {x, is_bad || !IsFinite(x) ? -1 : int32_t(i), is_bad ? 1 : 0};
}

// Block (part, row); the last part of a row to end takes the best of all of them.
__global__ void __launch_bounds__(kThreads)
    ArgmaxKernel(ArgmaxTask task, int32_t* bad, int32_t code) {
  __shared__ Best shared[kWarps];
  __shared__ bool is_last;
  WaitForPrevious();
  LetNextBegin();
  const int64_t row = blockIdx.y, parts = gridDim.x;
  const float* logits = task.logits + row * task.n;
  Best best{0.0f, -1, 0};
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < task.n;
       i += parts * kThreads) {
    best = Better(best, BestOf(logits[i], i));
  }
  best = BestOfBlock(best, shared);
  auto* partial =
      reinterpret_cast<Best*>(task.scratch + kArgmaxTickets * sizeof(int32_t)) + row * kArgmaxParts;
  auto* tickets = reinterpret_cast<int32_t*>(task.scratch);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = best;
    __threadfence();
    is_last = atomicAdd(tickets + row, 1) == int32_t(parts) - 1;
  }
  __syncthreads();
  if (!is_last || threadIdx.x >= kWarpLanes) return;
  __threadfence();
  best = {0.0f, -1, 0};
  for (int64_t p = threadIdx.x; p < parts; p += kWarpLanes) {
    const volatile Best* other = partial + p;
    best = Better(best, {other->value, other->index, other->is_bad});
  }
  best = BestOfWarp(best);
  if (threadIdx.x != 0) return;
  tickets[row] = 0;
  const bool has_one = best.index >= 0 && !best.is_bad;
  if (!has_one) NoteBad(bad, code, row);
  const int32_t id = has_one ? best.index : 0;
  task.ids[row] = id;
  if (!task.next_ids) return;
  task.next_ids[row] = id;
  ++task.next_positions[row];
}

}  // namespace

size_t ArgmaxScratchBytes(int64_t max_rows) {
  return kArgmaxTickets * sizeof(int32_t) + size_t(max_rows * kArgmaxParts) * sizeof(Best);
}

void Argmax(const KernelContext& context, const ArgmaxTask& task) {
  const int64_t parts =
      std::clamp<int64_t>(CeilDiv(task.n, 8 * kThreads), 1, task.rows > 8 ? 8 : kArgmaxParts);
  Launch("the likeliest token", ArgmaxKernel,
         {dim3(unsigned(parts), unsigned(task.rows)), dim3(kThreads)}, context.stream, task,
         context.bad.first, context.bad.code);
}

}  // namespace hillstar::cuda
