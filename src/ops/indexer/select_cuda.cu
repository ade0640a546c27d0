// The largest of a row of scores, by (value descending, index ascending), in ascending order of
// index: the value of the last one that is taken is found by its bits, 11, 11 and 10 at a time,
// from counts of how often each pattern occurs; then one pass writes what is above and the first of
// those that equal it. Counts are integers, so the order of threads does not matter. A block does
// it for a row, or many blocks for slices of one.
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
  alignas(8) int counts[kBins];
  int warp_sums[2][kSelectWarps];
  int bin, above;
};

// Sums over the threads before this one and of all, of a block. Has one barrier; warp_sums may be
// used again behind the next.
__device__ __forceinline__ int SumBefore(int value, int* warp_sums, int* total) {
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const int sum = SumUpToLane(value);
  if (lane == kWarpLanes - 1) warp_sums[warp] = sum;
  __syncthreads();
  static_assert(kSelectWarps == kWarpLanes);
  const int of_warp = warp_sums[lane];
  *total = WarpSum(of_warp);
  return sum - value + WarpSum(lane < warp ? of_warp : 0);
}

// Thread i has bins 2 (1023 - i) and the one after it, so that larger ones come first.
__device__ __forceinline__ int FirstOfOwnBins() {
  return 2 * (kSelectThreads - 1 - int(threadIdx.x));
}
// Where the wanted-th largest lies, and how many lie in larger bins.
struct PivotBin {
  int bin, above;
};
// own: counts of the thread's bins. Has two barriers, one of them at the end.
__device__ __forceinline__ PivotBin FindPivot(SelectShared& shared, int2 own, int wanted) {
  const int low = FirstOfOwnBins();
  int total;
  const int before = SumBefore(own.x + own.y, shared.warp_sums[0], &total);
  if (before < wanted && before + own.y >= wanted) {
    shared.bin = low + 1;
    shared.above = before;
  } else if (before + own.y < wanted && before + own.y + own.x >= wanted) {
    shared.bin = low;
    shared.above = before + own.y;
  }
  __syncthreads();
  return {shared.bin, shared.above};
}
// Of shared.counts, which are zero afterwards. Begins and ends with a barrier.
__device__ __forceinline__ PivotBin FindBin(SelectShared& shared, int wanted) {
  __syncthreads();
  int2& own = *reinterpret_cast<int2*>(shared.counts + FirstOfOwnBins());
  const int2 counts = own;
  own = make_int2(0, 0);
  return FindPivot(shared, counts, wanted);
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

// The cut of the k largest of a row. False if a score is not finite. bins: of the row where its
// first bits are counted, 0 afterwards; or null.
__device__ __forceinline__ bool FindCut(const float* scores, int n, int k, int32_t* bins,
                                        SelectShared& shared, Cut* cut) {
  int2& own_counts = *reinterpret_cast<int2*>(shared.counts + FirstOfOwnBins());
  own_counts = make_int2(0, 0);
  PivotBin found;
  if (bins) {
    int2& own = *reinterpret_cast<int2*>(bins + FirstOfOwnBins());
    const int2 counts = own;
    const bool finite = bins[kNotFiniteAt] == 0;
    own = make_int2(0, 0);
    found = FindPivot(shared, counts, k);
    if (threadIdx.x == 0) bins[kNotFiniteAt] = 0;  // all have read it
    if (!finite) return false;
  } else {
    __syncthreads();
    bool finite = true;
    ForEachScore(scores, n, [&](bool valid, float x) {
      finite = finite && (!valid || IsFinite(x));
      CountBin(shared.counts, valid, int(OrderedBits(x) >> 21));
    });
    if (__syncthreads_or(!finite)) return false;
    found = FindBin(shared, k);
  }
  uint32_t pivot = uint32_t(found.bin) << 21;
  int wanted = k - found.above;
  ForEachScore(scores, n, [&](bool valid, float x) {
    const uint32_t bits = OrderedBits(x);
    CountBin(shared.counts, valid && bits >> 21 == pivot >> 21, int(bits >> 10 & 2047));
  });
  found = FindBin(shared, wanted);
  pivot |= uint32_t(found.bin) << 10;
  wanted -= found.above;
  ForEachScore(scores, n, [&](bool valid, float x) {
    const uint32_t bits = OrderedBits(x);
    CountBin(shared.counts, valid && bits >> 10 == pivot >> 10, int(bits & 1023));
  });
  found = FindBin(shared, wanted);
  cut->pivot = pivot | uint32_t(found.bin);
  cut->ties = wanted - found.above;
  return true;
}

// A thread's scores of a slice, four neighbours.
static_assert(kSliceKeys == kSelectThreads * kAtOnce);
struct OwnScores {
  uint32_t bits[kAtOnce];
  int first, n;

  __device__ __forceinline__ OwnScores(const float* scores, int num_scores, int slice)
      : first(slice * kSliceKeys + int(threadIdx.x) * kAtOnce), n(num_scores) {
    // Rows have room for whole vectors. Past the L1 cache, which knows nothing of other kernels.
    const float4 x = first < n ? __ldcg(reinterpret_cast<const float4*>(scores + first))
                               : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bits[0] = OrderedBits(x.x), bits[1] = OrderedBits(x.y);
    bits[2] = OrderedBits(x.z), bits[3] = OrderedBits(x.w);
  }
  __device__ __forceinline__ bool valid(int i) const { return first + i < n; }
};

// How many scores are above the cut's pivot and equal to it.
struct TakenCounts {
  int above = 0, equal = 0;
};
// Writes the indices of a slice that the cut takes, in ascending order. before: of the slices
// before; afterwards of this one too. Has one barrier; warp_sums may be used again behind the next.
__device__ __forceinline__ void WriteSlice(const OwnScores& own, const Cut& cut,
                                           TakenCounts* before, int* warp_sums, int32_t* list) {
  bool is_above[kAtOnce], is_equal[kAtOnce];
  int counts = 0;  // 4096 scores at most: above in the low half, equal in the high one
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    is_above[i] = own.valid(i) && own.bits[i] > cut.pivot;
    is_equal[i] = own.valid(i) && own.bits[i] == cut.pivot;
    counts += int(is_above[i]) + (int(is_equal[i]) << 16);
  }
  int total;
  const int sum = SumBefore(counts, warp_sums, &total);
  int above = before->above + (sum & 0xffff), equal = before->equal + (sum >> 16);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (is_above[i] || (is_equal[i] && equal < cut.ties)) {
      list[above + min(equal, cut.ties)] = own.first + i;
    }
    above += int(is_above[i]);
    equal += int(is_equal[i]);
  }
  before->above += total & 0xffff;
  before->equal += total >> 16;
}

// Writes the indices of a row that the cut takes, in ascending order.
__device__ __forceinline__ void WriteTaken(const float* scores, int n, const Cut& cut,
                                           SelectShared& shared, int32_t* list) {
  TakenCounts before;
  for (int slice = 0; slice * kSliceKeys < n; ++slice) {
    const OwnScores own(scores, n, slice);
    WriteSlice(own, cut, &before, shared.warp_sums[slice % 2], list);
  }
}

// A block a token.
__global__ void __launch_bounds__(kSelectThreads, 1)
    SelectRowsKernel(SelectTask task, ScoreRows rows, int64_t first, int32_t* bins, int32_t* bad,
                     int32_t code) {
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
  if (FindCut(rows.of(row), n, k, bins ? bins + row * kRowBins : nullptr, shared, &cut)) {
    LetNextBegin();
    WriteTaken(rows.of(row), n, cut, shared, list);
  } else {
    if (threadIdx.x == 0) NoteBad(bad, code, token);
    for (int i = int(threadIdx.x); i < k; i += kSelectThreads) list[i] = i;
  }
}

// A row that blocks share, as all of its kernels begin with it: the step's tables are older than
// the kernel before them.
struct SharedRow {
  int n = 0;  // 0: nothing is selected
  int k;
  int32_t* bins;
  const float* scores;
  RowState* state;
  int32_t* last_bits;     // [kLastBins]
  SliceCounts* slices;    // [slices]
  uint16_t* last_of_tie;  // [slices][kSliceKeys]

  __device__ __forceinline__ SharedRow(const SelectTask& task, const ScoreRows& rows,
                                       const SharedRows& shared, int64_t row)
      : k(int(task.selection.max_keys)),
        bins(shared.bins + row * kRowBins),
        scores(rows.of(row)),
        state(shared.states + row),
        last_bits(shared.last_bits + row * kLastBins),
        slices(shared.slices + row * shared.num_slices),
        last_of_tie(shared.last_of_tie + row * shared.num_slices * kSliceKeys) {
    if (row < *task.live) n = int(task.positions[row]) + 1;
    if (n <= k) n = 0;
  }
};

// Adds the block's counts of the thread's bins to those in memory.
__device__ __forceinline__ void AddOwnCounts(int2 own, int32_t* bins) {
  if (own.x > 0) atomicAdd(bins + FirstOfOwnBins(), own.x);
  if (own.y > 0) atomicAdd(bins + FirstOfOwnBins() + 1, own.y);
}

// A block a slice: counts the next bits of scores whose first bits are the pivot's.
__global__ void __launch_bounds__(kSelectThreads, 1)
    NextBitsKernel(SelectTask task, ScoreRows rows, SharedRows shared_rows) {
  __shared__ SelectShared shared;
  const SharedRow row(task, rows, shared_rows, blockIdx.y);
  const int slice = int(blockIdx.x);
  int2& own_counts = *reinterpret_cast<int2*>(shared.counts + FirstOfOwnBins());
  own_counts = make_int2(0, 0);
  WaitForPrevious();
  LetNextBegin();
  if (slice * kSliceKeys >= row.n) return;
  const OwnScores own(row.scores, row.n, slice);
  const int2 first_bits = *reinterpret_cast<const int2*>(row.bins + FirstOfOwnBins());
  const bool is_finite = row.bins[kNotFiniteAt] == 0;
  static_assert(kSelectThreads == kLastBins);
  if (slice == 0) row.last_bits[threadIdx.x] = 0;
  if (slice == 0 && threadIdx.x == 0) row.state->is_finite = is_finite;
  if (!is_finite) return;
  const PivotBin found = FindPivot(shared, first_bits, row.k);
  if (slice == 0 && threadIdx.x == 0) {
    row.state->first_bits = uint32_t(found.bin);
    row.state->wanted_of_first = row.k - found.above;
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    CountBin(shared.counts, own.valid(i) && int(own.bits[i] >> 21) == found.bin,
             int(own.bits[i] >> 10 & 2047));
  }
  __syncthreads();
  AddOwnCounts(own_counts, row.bins + kNextBitsAt);
}

// A block a slice: counts what is above the pivot's first 22 bits, and the last bits of what has
// them, the ties, which it also lists.
__global__ void __launch_bounds__(kSelectThreads, 1)
    LastBitsKernel(SelectTask task, ScoreRows rows, SharedRows shared_rows) {
  __shared__ SelectShared shared;
  __shared__ int last_of_first_tie;
  const SharedRow row(task, rows, shared_rows, blockIdx.y);
  const int slice = int(blockIdx.x);
  int2& own_counts = *reinterpret_cast<int2*>(shared.counts + FirstOfOwnBins());
  own_counts = make_int2(0, 0);
  const OwnScores own(row.scores, row.n, slice);  // older than the kernel before
  WaitForPrevious();
  LetNextBegin();
  if (slice * kSliceKeys >= row.n) return;
  const bool is_finite = row.state->is_finite;
  const uint32_t first_bits = row.state->first_bits;
  const int wanted = row.state->wanted_of_first;
  const int2 next_bits = *reinterpret_cast<const int2*>(row.bins + kNextBitsAt + FirstOfOwnBins());
  if (slice == 0) {  // has been read by the kernel before
    *reinterpret_cast<int2*>(row.bins + FirstOfOwnBins()) = make_int2(0, 0);
    if (threadIdx.x == 0) row.bins[kNotFiniteAt] = 0;
  }
  if (!is_finite) return;
  const PivotBin found = FindPivot(shared, next_bits, wanted);
  const uint32_t pivot = first_bits << 11 | uint32_t(found.bin);
  if (slice == 0 && threadIdx.x == 0) {
    row.state->pivot = pivot;
    row.state->wanted = wanted - found.above;
  }
  bool is_tie[kAtOnce];
  int last[kAtOnce];
  int counts = 0;  // above in the low half, ties in the high one
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    is_tie[i] = own.valid(i) && own.bits[i] >> 10 == pivot;
    last[i] = int(own.bits[i] & (kLastBins - 1));
    counts += int(own.valid(i) && own.bits[i] >> 10 > pivot) + (int(is_tie[i]) << 16);
    CountBin(shared.counts, is_tie[i], last[i]);
  }
  int total;
  int at = SumBefore(counts, shared.warp_sums[1], &total) >> 16;
  uint16_t* list = row.last_of_tie + slice * kSliceKeys;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (!is_tie[i]) continue;
    if (at == 0) last_of_first_tie = last[i];
    list[at++] = uint16_t(last[i]);
  }
  __syncthreads();
  bool differs = false;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    differs = differs || (is_tie[i] && last[i] != last_of_first_tie);
  }
  const bool are_equal = __syncthreads_or(differs) == 0;
  AddOwnCounts(own_counts, row.last_bits);
  if (threadIdx.x == 0) row.slices[slice] = {total & 0xffff, total >> 16, int(are_equal)};
}

// Adds the ties of a word of a slice's list, each `times`; n: of the list from this word on; last:
// the pivot's last bits.
constexpr int kWordTies = int(sizeof(uint4) / sizeof(uint16_t));
__device__ __forceinline__ void AddTies(const uint16_t* word, int n, int times, int last,
                                        TakenCounts* counts) {
  const uint4 all = *reinterpret_cast<const uint4*>(word);
  const uint32_t pairs[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
  for (int i = 0; i < kWordTies; ++i) {
    const int tie = int(pairs[i / 2] >> 16 * (i % 2) & 0xffff);
    if (i < n && tie > last) counts->above += times;
    if (i < n && tie == last) counts->equal += times;
  }
}
// Of the slices before this one, by all threads of the block. Has three barriers. last: the
// pivot's last bits.
__device__ __forceinline__ TakenCounts CountsBefore(const SharedRow& row, int slice, int last,
                                                    int (&warp_sums)[2][kSelectWarps]) {
  TakenCounts own;
  bool any_long = false;
  for (int s = int(threadIdx.x); s < slice; s += kSelectThreads) {
    const SliceCounts counts = row.slices[s];
    own.above += counts.above;
    if (counts.are_equal || counts.ties <= kWordTies) {
      AddTies(row.last_of_tie + s * kSliceKeys,
              counts.are_equal ? min(counts.ties, 1) : counts.ties,
              counts.are_equal ? counts.ties : 1, last, &own);
    } else {
      any_long = true;
    }
  }
  if (__syncthreads_or(any_long)) {  // a warp for each
    const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
    for (int s = warp; s < slice; s += kSelectWarps) {
      const SliceCounts counts = row.slices[s];
      if (counts.are_equal || counts.ties <= kWordTies) continue;
      for (int i = lane * kWordTies; i < counts.ties; i += kWarpLanes * kWordTies) {
        AddTies(row.last_of_tie + s * kSliceKeys + i, counts.ties - i, 1, last, &own);
      }
    }
  }
  TakenCounts before;
  SumBefore(own.above, warp_sums[0], &before.above);
  SumBefore(own.equal, warp_sums[1], &before.equal);
  return before;
}

// A block a slice: writes what is taken of it behind what is taken of the slices before.
__global__ void __launch_bounds__(kSelectThreads, 1)
    TakeKernel(SelectTask task, ScoreRows rows, SharedRows shared_rows, int32_t* bad,
               int32_t code) {
  __shared__ SelectShared shared;
  __shared__ int slice_sums[2][kSelectWarps];
  const int64_t row_index = blockIdx.y;
  const int slice = int(blockIdx.x), thread = int(threadIdx.x);
  const SharedRow row(task, rows, shared_rows, row_index);
  const OwnScores own(row.scores, row.n, slice);  // older than the kernel before
  WaitForPrevious();
  LetNextBegin();
  if (slice == 0 && thread == 0 && row_index < *task.live) {
    task.selection.counts[row_index] = row.n > 0 ? row.k : 0;
  }
  if (slice * kSliceKeys >= row.n) return;
  int32_t* list = task.selection.lists + row_index * row.k;
  const RowState state = *row.state;
  if (slice == 0) {  // has been read by the kernel before
    *reinterpret_cast<int2*>(row.bins + kNextBitsAt + FirstOfOwnBins()) = make_int2(0, 0);
  }
  if (!state.is_finite) {
    if (slice > 0) return;
    if (thread == 0) NoteBad(bad, code, row_index);
    for (int i = thread; i < row.k; i += kSelectThreads) list[i] = i;
    return;
  }
  const int2 last_bits = FirstOfOwnBins() < kLastBins
                             ? *reinterpret_cast<const int2*>(row.last_bits + FirstOfOwnBins())
                             : make_int2(0, 0);
  const PivotBin last = FindPivot(shared, last_bits, state.wanted);
  TakenCounts before = CountsBefore(row, slice, last.bin, slice_sums);
  const Cut cut{state.pivot << 10 | uint32_t(last.bin), state.wanted - last.above};
  WriteSlice(own, cut, &before, shared.warp_sums[1], list);
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
         {dim3(unsigned(CeilDiv(task.num_tokens, kClearThreads))), dim3(kClearThreads), 0,
          4 * double(task.num_tokens)},
         context.stream, task);
}

void SelectTopKeys(const KernelContext& context, const SelectTask& task, const ScoreRows& rows,
                   int64_t first, int64_t count, int32_t* bins) {
  Launch("selection of keys", SelectRowsKernel,
         {dim3(unsigned(count)), dim3(kSelectThreads), 0,
          4 * double(context.seen_keys + context.attended_keys)},
         context.stream, task, rows, first, bins, context.bad.first, context.bad.code);
}

void SelectFromSharedRows(const KernelContext& context, const SelectTask& task,
                          const ScoreRows& rows, const SharedRows& shared) {
  // Each kernel reads the scores again.
  const LaunchShape shape{dim3(unsigned(shared.num_slices), unsigned(task.num_tokens)),
                          dim3(kSelectThreads), 0, 4 * double(context.seen_keys)};
  Launch("counts of the pivot's next bits", NextBitsKernel, shape, context.stream, task, rows,
         shared);
  Launch("counts of the pivot's last bits", LastBitsKernel, shape, context.stream, task, rows,
         shared);
  Launch("the largest of slices", TakeKernel, shape, context.stream, task, rows, shared,
         context.bad.first, context.bad.code);
}

void ListAll(const KernelContext& context, int64_t num_tokens, const int32_t* live,
             const int64_t* positions, const Selection& selection) {
  Launch("lists of all keys", ListAllKernel,
         {dim3(unsigned(num_tokens)), dim3(kListThreads), 0, 4 * double(context.attended_keys)},
         context.stream, live, positions, selection);
}

}  // namespace hillstar::cuda
