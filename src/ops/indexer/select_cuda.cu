// The largest of a row of scores, by (value descending, index ascending), in ascending order of
// index: the value of the last one that is taken is found by its bits, 11, 11 and 10 at a time,
// from counts of how often each pattern occurs; then one pass writes what is above and the first of
// those that equal it. Counts are integers, so the order of threads does not matter.
#include "ops/indexer/select_cuda.cuh"

#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kSelectThreads = 1024;
constexpr int kSelectWarps = kSelectThreads / kWarpLanes;
constexpr int kBins = 2048;
constexpr int kAtOnce = 4;  // scores of a thread

// Larger floats have larger bits.
__device__ __forceinline__ uint32_t OrderedBits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

struct SelectShared {
  int counts[kBins];
  int warp_sums[2][kSelectWarps];
  int bin, above;
  int not_finite;
};

// Adds this thread's bin, if it has one, to the counts. All lanes of a warp together. Long plateaus
// of one value are counted by a warp at once.
__device__ __forceinline__ void CountBin(int* counts, bool counted, int bin) {
  const int first = __shfl_sync(kAllLanes, bin, 0);
  if (__all_sync(kAllLanes, counted && bin == first)) {
    if (threadIdx.x % kWarpLanes == 0) atomicAdd(counts + bin, kWarpLanes);
  } else if (counted) {
    atomicAdd(counts + bin, 1);
  }
}

// Sums over the threads before this one and of all, of a block. Ends with a barrier.
__device__ __forceinline__ int SumBefore(int value, int* warp_sums, int* total) {
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  int sum = value;
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, delta);
    if (lane >= delta) sum += other;
  }
  if (lane == kWarpLanes - 1) warp_sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    const int own = warp_sums[lane];
    int all = own;
    for (int delta = 1; delta < kWarpLanes; delta *= 2) {
      const int other = __shfl_up_sync(kAllLanes, all, delta);
      if (lane >= delta) all += other;
    }
    warp_sums[lane] = all;
  }
  __syncthreads();
  *total = warp_sums[kSelectWarps - 1];
  const int before = sum - value + (warp == 0 ? 0 : warp_sums[warp - 1]);
  __syncthreads();
  return before;
}

// The bin in which the wanted-th largest lies, and how many lie in larger ones: into shared.bin and
// shared.above. Begins and ends with a barrier; the counts are zero afterwards.
__device__ __forceinline__ void FindBin(SelectShared& shared, int wanted) {
  __syncthreads();
  // Thread i has bins 2 (1023 - i) + 1 and 2 (1023 - i), so that larger ones come first.
  const int low = 2 * (kSelectThreads - 1 - int(threadIdx.x));
  const int high_count = shared.counts[low + 1], low_count = shared.counts[low];
  int total;
  const int before = SumBefore(high_count + low_count, shared.warp_sums[0], &total);
  if (before < wanted && before + high_count >= wanted) {
    shared.bin = low + 1;
    shared.above = before;
  } else if (before + high_count < wanted && before + high_count + low_count >= wanted) {
    shared.bin = low;
    shared.above = before + high_count;
  }
  shared.counts[low] = shared.counts[low + 1] = 0;
  __syncthreads();
}

// What is taken of a row: values of larger bits than `pivot`, and the first `ties` that have them.
struct Cut {
  uint32_t pivot = 0;
  int ties = 0;
};

// Calls visit(valid, bits) for all scores of [0, n), by all threads of the block equally often.
template <typename Visit>
__device__ __forceinline__ void ForEachScore(const float* scores, int n, Visit visit) {
  for (int first = 0; first < n; first += kSelectThreads * kAtOnce) {
    const int i = first + int(threadIdx.x) * kAtOnce;
    // Rows have room for whole vectors.
    const float4 x =
        i < n ? *reinterpret_cast<const float4*>(scores + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    visit(i < n, x.x);
    visit(i + 1 < n, x.y);
    visit(i + 2 < n, x.z);
    visit(i + 3 < n, x.w);
  }
}

// The cut of the k largest of a row. False if a score is not finite.
__device__ __forceinline__ bool FindCut(const float* scores, int n, int k, SelectShared& shared,
                                        Cut* cut) {
  for (int i = int(threadIdx.x); i < kBins; i += kSelectThreads) shared.counts[i] = 0;
  __syncthreads();
  bool finite = true;
  ForEachScore(scores, n, [&](bool valid, float x) {
    finite = finite && (!valid || IsFinite(x));
    CountBin(shared.counts, valid, int(OrderedBits(x) >> 21));
  });
  if (__syncthreads_or(!finite)) return false;
  FindBin(shared, k);
  uint32_t pivot = uint32_t(shared.bin) << 21;
  int wanted = k - shared.above;
  __syncthreads();
  ForEachScore(scores, n, [&](bool valid, float x) {
    const uint32_t bits = OrderedBits(x);
    CountBin(shared.counts, valid && bits >> 21 == pivot >> 21, int(bits >> 10 & 2047));
  });
  FindBin(shared, wanted);
  pivot |= uint32_t(shared.bin) << 10;
  wanted -= shared.above;
  __syncthreads();
  ForEachScore(scores, n, [&](bool valid, float x) {
    const uint32_t bits = OrderedBits(x);
    CountBin(shared.counts, valid && bits >> 10 == pivot >> 10, int(bits & 1023));
  });
  FindBin(shared, wanted);
  cut->pivot = pivot | uint32_t(shared.bin);
  cut->ties = wanted - shared.above;
  __syncthreads();
  return true;
}

// Writes the indices of a row that the cut takes, in ascending order.
__device__ __forceinline__ void WriteTaken(const float* scores, int n, const Cut& cut,
                                           SelectShared& shared, int32_t* list) {
  int above_before = 0, ties_before = 0;  // of the scores so far
  for (int first = 0; first < n; first += kSelectThreads * kAtOnce) {
    const int i = first + int(threadIdx.x) * kAtOnce;
    float x[kAtOnce] = {};
    if (i < n) {
      const float4 v = *reinterpret_cast<const float4*>(scores + i);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    }
    bool is_above[kAtOnce], is_tie[kAtOnce];
    int counts = 0;  // 4096 scores at most: above in the low half, ties in the high one
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const uint32_t bits = OrderedBits(x[j]);
      is_above[j] = i + j < n && bits > cut.pivot;
      is_tie[j] = i + j < n && bits == cut.pivot;
      counts += int(is_above[j]) + (int(is_tie[j]) << 16);
    }
    int total;
    const int before = SumBefore(counts, shared.warp_sums[0], &total);
    int above = above_before + (before & 0xffff), ties = ties_before + (before >> 16);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int taken_ties = ties < cut.ties ? ties : cut.ties;
      if (is_above[j] || (is_tie[j] && ties < cut.ties)) list[above + taken_ties] = i + j;
      above += int(is_above[j]);
      ties += int(is_tie[j]);
    }
    above_before += total & 0xffff;
    ties_before += total >> 16;
  }
}

// A block a token.
__global__ void __launch_bounds__(kSelectThreads, 1)
    SelectRowsKernel(SelectTask task, ScoreRows rows, int64_t first, int32_t* bad, int32_t code) {
  __shared__ SelectShared shared;
  WaitForPrevious();
  const int64_t row = blockIdx.x, token = first + row;
  if (token >= *task.live) return;
  const int n = int(task.positions[token]) + 1, k = int(task.selection.max_keys);
  if (n <= k) {
    if (threadIdx.x == 0) task.selection.counts[token] = 0;
    return;
  }
  int32_t* list = task.selection.lists + token * k;
  if (threadIdx.x == 0) task.selection.counts[token] = k;
  Cut cut;
  if (FindCut(rows.of(row), n, k, shared, &cut)) {
    LetNextBegin();
    WriteTaken(rows.of(row), n, cut, shared, list);
  } else {
    if (threadIdx.x == 0) NoteBad(bad, code, token);
    for (int i = int(threadIdx.x); i < k; i += kSelectThreads) list[i] = i;
  }
}

constexpr int kClearThreads = 128;
__global__ void ClearCountsKernel(SelectTask task) {
  WaitForPrevious();
  const int64_t t = int64_t(blockIdx.x) * kClearThreads + threadIdx.x;
  if (t < task.num_tokens && t < *task.live) task.selection.counts[t] = 0;
}

constexpr int kListThreads = 256;
__global__ void ListAllKernel(const int32_t* live, const int64_t* positions, Selection selection) {
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  if (t >= *live) return;
  const int64_t num_keys = positions[t] + 1;
  if (num_keys > selection.max_keys || selection.counts[t] > 0) return;
  for (int64_t i = threadIdx.x; i < num_keys; i += kListThreads) {
    selection.lists[t * selection.max_keys + i] = int32_t(i);
  }
  __syncthreads();  // every thread has read the count
  if (threadIdx.x == 0) selection.counts[t] = int32_t(num_keys);
}

}  // namespace

void ClearCounts(const KernelContext& context, const SelectTask& task) {
  Launch("counts of selected keys", ClearCountsKernel,
         {dim3(unsigned(CeilDiv(task.num_tokens, kClearThreads))), dim3(kClearThreads)},
         context.stream, task);
}

void SelectTopKeys(const KernelContext& context, const SelectTask& task, const ScoreRows& rows,
                   int64_t first, int64_t count) {
  Launch("selection of keys", SelectRowsKernel, {dim3(unsigned(count)), dim3(kSelectThreads)},
         context.stream, task, rows, first, context.bad.first, context.bad.code);
}

void ListAll(const KernelContext& context, int64_t num_tokens, const int32_t* live,
             const int64_t* positions, const Selection& selection) {
  Launch("lists of all keys", ListAllKernel, {dim3(unsigned(num_tokens)), dim3(kListThreads)},
         context.stream, live, positions, selection);
}

}  // namespace hillstar::cuda
