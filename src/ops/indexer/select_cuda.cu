// The largest of a row of scores, by (value descending, index ascending), in ascending order of
// index: the value of the last one that is taken is found by its bits, 11, 11 and 10 at a time,
// from counts of how often each pattern occurs; then one pass writes what is above and the first of
// those that equal it. Counts are integers, so the order of threads does not matter.
#include "ops/indexer/select_cuda.cuh"

#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/indexer/select_bins_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kSelectThreads = 1024;
constexpr int kSelectWarps = kSelectThreads / kWarpLanes;
constexpr int kAtOnce = 4;  // scores of a thread

struct SelectShared {
  int counts[kBins];
  int warp_sums[2][kSelectWarps];
  int bin, above;
  int not_finite;
};

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

constexpr int kSliceThreads = 256;
constexpr int kSliceWarps = kSliceThreads / kWarpLanes;
constexpr int kMostCandidates = 8192;  // that a block ranks in shared memory

__global__ void ClearBinsKernel(SharedRows shared) {
  WaitForPrevious();
  int32_t* bins = shared.bins + blockIdx.x * SharedRows::kBinsPitch;
  for (int i = int(threadIdx.x); i <= kNotFiniteBin; i += kSelectThreads) bins[i] = 0;
}

// Of a row whose bins are counted: the bin of the k-th largest, and how many lie in larger ones.
struct PivotBin {
  int bin, above;
};

// By 256 threads. Ends with a barrier.
__device__ __forceinline__ PivotBin FindPivotBin(const int32_t* bins, int k) {
  __shared__ int warp_sums[kSliceWarps];
  __shared__ PivotBin found;
  constexpr int kOwn = kBins / kSliceThreads;
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  // Thread i has bins 8 (255 - i) .. + 7: larger ones come first.
  const int low = kOwn * (kSliceThreads - 1 - int(threadIdx.x));
  int counts[kOwn], own = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) own += counts[i] = bins[low + i];
  int sum = own;
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, delta);
    if (lane >= delta) sum += other;
  }
  if (lane == kWarpLanes - 1) warp_sums[warp] = sum;
  __syncthreads();
  int above = sum - own;
  for (int w = 0; w < warp; ++w) above += warp_sums[w];
#pragma unroll
  for (int i = kOwn - 1; i >= 0; --i) {
    if (above < k && above + counts[i] >= k) found = {low + i, above};
    above += counts[i];
  }
  __syncthreads();
  return found;
}

// A block a slice: the candidates of 4096 scores, in ascending order.
__global__ void __launch_bounds__(kSliceThreads)
    CollectKernel(SelectTask task, ScoreRows rows, SharedRows shared) {
  __shared__ int warp_sums[kSliceWarps];
  __shared__ int above_sum;
  __shared__ uint32_t least, largest;
  constexpr int kOwn = kSliceKeys / kSliceThreads;
  WaitForPrevious();
  LetNextBegin();
  const int64_t row = blockIdx.y;
  if (row >= *task.live) return;
  const int n = int(task.positions[row]) + 1, k = int(task.selection.max_keys);
  const int slice = int(blockIdx.x), first = slice * kSliceKeys + int(threadIdx.x) * kOwn;
  if (n <= k || slice * kSliceKeys >= n) return;
  const int32_t* bins = shared.bins + row * SharedRows::kBinsPitch;
  if (bins[kNotFiniteBin] > 0) return;
  if (threadIdx.x == 0) above_sum = 0, least = 0xffffffffu, largest = 0;
  uint32_t bits[kOwn];
  const float* scores = rows.of(row) + first;
#pragma unroll
  for (int i = 0; i < kOwn; i += 4) {
    // Rows have room for whole vectors.
    const float4 v = first + i < n ? *reinterpret_cast<const float4*>(scores + i)
                                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bits[i] = OrderedBits(v.x), bits[i + 1] = OrderedBits(v.y);
    bits[i + 2] = OrderedBits(v.z), bits[i + 3] = OrderedBits(v.w);
  }
  const int bin = FindPivotBin(bins, k).bin;
  int above = 0, taken = 0;
  uint32_t own_least = 0xffffffffu, own_largest = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (first + i >= n || int(bits[i] >> 21) < bin) continue;
    ++taken;
    if (int(bits[i] >> 21) > bin) {
      ++above;
    } else {
      own_least = bits[i] < own_least ? bits[i] : own_least;
      own_largest = bits[i] > own_largest ? bits[i] : own_largest;
    }
  }
  if (above > 0) atomicAdd(&above_sum, above);
  if (taken > above) {
    atomicMin(&least, own_least);
    atomicMax(&largest, own_largest);
  }
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  int sum = taken;
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, delta);
    if (lane >= delta) sum += other;
  }
  if (lane == kWarpLanes - 1) warp_sums[warp] = sum;
  __syncthreads();
  int at = sum - taken;
  for (int w = 0; w < warp; ++w) at += warp_sums[w];
  uint2* to = shared.candidates + row * rows.pitch + slice * kSliceKeys;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (first + i >= n || int(bits[i] >> 21) < bin) continue;
    to[at++] = make_uint2(bits[i], uint32_t(first + i));
  }
  if (int(threadIdx.x) == kSliceThreads - 1) {
    shared.slices[row * shared.num_slices + slice] = {above_sum, at - above_sum, least, largest};
  }
}

// Candidates of a row in shared memory.
struct Candidates {
  uint32_t bits[kMostCandidates];
  int32_t index[kMostCandidates];
};

// The cut of the candidates: the wanted-th largest of those in bin `bin`.
__device__ __forceinline__ Cut CutOfCandidates(const Candidates& c, int count, int bin, int wanted,
                                               SelectShared& shared) {
  const int padded = int((count + kSelectThreads - 1) / kSelectThreads) * kSelectThreads;
  for (int i = int(threadIdx.x); i < kBins; i += kSelectThreads) shared.counts[i] = 0;
  __syncthreads();
  uint32_t pivot = uint32_t(bin) << 21;
  for (int i = int(threadIdx.x); i < padded; i += kSelectThreads) {
    const uint32_t bits = i < count ? c.bits[i] : 0;
    CountBin(shared.counts, i < count && bits >> 21 == pivot >> 21, int(bits >> 10 & 2047));
  }
  FindBin(shared, wanted);
  pivot |= uint32_t(shared.bin) << 10;
  wanted -= shared.above;
  __syncthreads();
  for (int i = int(threadIdx.x); i < padded; i += kSelectThreads) {
    const uint32_t bits = i < count ? c.bits[i] : 0;
    CountBin(shared.counts, i < count && bits >> 10 == pivot >> 10, int(bits & 1023));
  }
  FindBin(shared, wanted);
  const Cut cut{pivot | uint32_t(shared.bin), wanted - shared.above};
  __syncthreads();
  return cut;
}

// Writes the indices of candidates [0, count), in ascending order, that the cut takes.
__device__ __forceinline__ void WriteTakenCandidates(const Candidates& c, int count, const Cut& cut,
                                                     SelectShared& shared, int32_t* list) {
  int above_before = 0, ties_before = 0;
  for (int first = 0; first < count; first += kSelectThreads) {
    const int i = first + int(threadIdx.x);
    const bool is_above = i < count && c.bits[i] > cut.pivot;
    const bool is_tie = i < count && c.bits[i] == cut.pivot;
    int total;
    const int before = SumBefore(int(is_above) + (int(is_tie) << 16), shared.warp_sums[0], &total);
    const int above = above_before + (before & 0xffff), ties = ties_before + (before >> 16);
    const int taken_ties = ties < cut.ties ? ties : cut.ties;
    if (is_above || (is_tie && ties < cut.ties)) list[above + taken_ties] = c.index[i];
    above_before += total & 0xffff;
    ties_before += total >> 16;
  }
}

// A warp writes what a slice's candidates add to the list, where all in the bin are equal: those
// above, and the first `ties` of the row's others.
__device__ __forceinline__ void WriteFlatSlice(const uint2* candidates, int count, int bin,
                                               int ties, int above_before, int ties_before,
                                               int32_t* list) {
  const int lane = int(threadIdx.x) % kWarpLanes;
  const unsigned lower = (1u << lane) - 1;
  for (int first = 0; first < count; first += kWarpLanes) {
    const bool valid = first + lane < count;
    const uint2 c = valid ? candidates[first + lane] : make_uint2(0, 0);
    const bool is_above = valid && int(c.x >> 21) > bin;
    const unsigned above_mask = __ballot_sync(kAllLanes, is_above);
    const unsigned tie_mask = __ballot_sync(kAllLanes, valid && !is_above);
    const int above = above_before + __popc(above_mask & lower);
    const int before = ties_before + __popc(tie_mask & lower);
    const int taken_ties = before < ties ? before : ties;
    if (is_above || (valid && before < ties)) list[above + taken_ties] = int32_t(c.y);
    above_before += __popc(above_mask);
    ties_before += __popc(tie_mask);
  }
}

constexpr int kMostSlices = kSelectThreads;  // a thread each; a longer row takes the slow way
struct RankShared {
  SelectShared select;
  int above[kMostSlices], in_bin[kMostSlices];  // of the slices before
};

// A block a row: ranks the candidates of all slices.
__global__ void __launch_bounds__(kSelectThreads, 1)
    RankKernel(SelectTask task, ScoreRows rows, SharedRows shared_rows, int32_t* bad,
               int32_t code) {
  __shared__ RankShared shared;
  auto& candidates = *reinterpret_cast<Candidates*>(DynamicShared());
  const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  if (row >= *task.live) return;
  const int n = int(task.positions[row]) + 1, k = int(task.selection.max_keys);
  if (threadIdx.x == 0) task.selection.counts[row] = n <= k ? 0 : k;
  if (n <= k) return;
  int32_t* list = task.selection.lists + row * k;
  const int32_t* bins = shared_rows.bins + row * SharedRows::kBinsPitch;
  if (bins[kNotFiniteBin] > 0) {
    if (threadIdx.x == 0) NoteBad(bad, code, row);
    for (int i = int(threadIdx.x); i < k; i += kSelectThreads) list[i] = i;
    return;
  }
  LetNextBegin();
  const int num_slices = (n + kSliceKeys - 1) / kSliceKeys;
  const SliceCounts* slices = shared_rows.slices + row * shared_rows.num_slices;
  const uint2* from = shared_rows.candidates + row * rows.pitch;
  const int slice = int(threadIdx.x);
  const SliceCounts own = slice < num_slices ? slices[slice] : SliceCounts{0, 0, 0xffffffffu, 0};
  int above, in_bin;  // in all
  shared.above[slice] = SumBefore(own.above, shared.select.warp_sums[0], &above);
  shared.in_bin[slice] = SumBefore(own.in_bin, shared.select.warp_sums[1], &in_bin);
  __shared__ uint32_t least, largest;
  if (threadIdx.x == 0) least = 0xffffffffu, largest = 0;
  __syncthreads();
  if (own.in_bin > 0) {
    atomicMin(&least, own.least);
    atomicMax(&largest, own.largest);
  }
  __syncthreads();
  const int bin = int(largest >> 21), wanted = k - above;
  if (num_slices <= kMostSlices && above + in_bin <= kMostCandidates) {
    for (int s = warp; s < num_slices; s += kSelectWarps) {
      const int at = shared.above[s] + shared.in_bin[s];
      const int end =
          s + 1 < num_slices ? shared.above[s + 1] + shared.in_bin[s + 1] : above + in_bin;
      for (int i = lane; i < end - at; i += kWarpLanes) {
        const uint2 c = from[s * kSliceKeys + i];
        candidates.bits[at + i] = c.x;
        candidates.index[at + i] = int32_t(c.y);
      }
    }
    __syncthreads();
    const Cut cut = CutOfCandidates(candidates, above + in_bin, bin, wanted, shared.select);
    WriteTakenCandidates(candidates, above + in_bin, cut, shared.select, list);
  } else if (num_slices <= kMostSlices && least == largest) {
    for (int s = warp; s < num_slices; s += kSelectWarps) {
      const int before = shared.above[s] + shared.in_bin[s];
      const int end =
          s + 1 < num_slices ? shared.above[s + 1] + shared.in_bin[s + 1] : above + in_bin;
      WriteFlatSlice(from + s * kSliceKeys, end - before, bin, wanted, shared.above[s],
                     shared.in_bin[s], list);
    }
  } else {
    Cut cut;
    FindCut(rows.of(row), n, k, shared.select, &cut);
    WriteTaken(rows.of(row), n, cut, shared.select, list);
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

void ClearBins(const KernelContext& context, const SharedRows& shared, int64_t num_rows) {
  Launch("counts of scores", ClearBinsKernel, {dim3(unsigned(num_rows)), dim3(kSelectThreads)},
         context.stream, shared);
}

void SelectFromSharedRows(const KernelContext& context, const SelectTask& task,
                          const ScoreRows& rows, const SharedRows& shared) {
  Launch("candidates of the selection", CollectKernel,
         {dim3(unsigned(shared.num_slices), unsigned(task.num_tokens)), dim3(kSliceThreads)},
         context.stream, task, rows, shared);
  Launch("ranks of candidates", RankKernel,
         {dim3(unsigned(task.num_tokens)), dim3(kSelectThreads), sizeof(Candidates)},
         context.stream, task, rows, shared, context.bad.first, context.bad.code);
}

void ListAll(const KernelContext& context, int64_t num_tokens, const int32_t* live,
             const int64_t* positions, const Selection& selection) {
  Launch("lists of all keys", ListAllKernel, {dim3(unsigned(num_tokens)), dim3(kListThreads)},
         context.stream, live, positions, selection);
}

}  // namespace hillstar::cuda
