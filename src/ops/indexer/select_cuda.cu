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
    const int before =
        SumBefore(counts, shared.warp_sums[first / (kSelectThreads * kAtOnce) % 2], &total);
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

  __device__ __forceinline__ SharedRow(const SelectTask& task, const ScoreRows& rows,
                                       const SharedRows& shared, int64_t row)
      : k(int(task.selection.max_keys)), bins(shared.bins + row * kRowBins), scores(rows.of(row)) {
    if (row < *task.live) n = int(task.positions[row]) + 1;
    if (n <= k) n = 0;
  }
};

// A thread's scores of a slice, four neighbours.
static_assert(kSliceKeys == kSelectThreads * kAtOnce);
struct OwnScores {
  uint32_t bits[kAtOnce];
  int first, n;

  __device__ __forceinline__ OwnScores(const SharedRow& row, int slice)
      : first(slice * kSliceKeys + int(threadIdx.x) * kAtOnce), n(row.n) {
    // Rows have room for whole vectors.
    const float4 x = first < n ? *reinterpret_cast<const float4*>(row.scores + first)
                               : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    bits[0] = OrderedBits(x.x), bits[1] = OrderedBits(x.y);
    bits[2] = OrderedBits(x.z), bits[3] = OrderedBits(x.w);
  }
  __device__ __forceinline__ bool valid(int i) const { return first + i < n; }
};

// A block a slice: counts the next bits of scores whose first bits are the pivot's.
__global__ void __launch_bounds__(kSelectThreads, 1)
    NextBitsKernel(SelectTask task, ScoreRows rows, SharedRows shared_rows) {
  __shared__ SelectShared shared;
  const SharedRow row(task, rows, shared_rows, blockIdx.y);
  int2& own_counts = *reinterpret_cast<int2*>(shared.counts + FirstOfOwnBins());
  own_counts = make_int2(0, 0);
  WaitForPrevious();
  LetNextBegin();
  const int slice = int(blockIdx.x);
  if (slice * kSliceKeys >= row.n) return;
  const OwnScores own(row, slice);
  const int2 first_bits = *reinterpret_cast<const int2*>(row.bins + FirstOfOwnBins());
  if (row.bins[kNotFiniteAt] > 0) return;
  const PivotBin found = FindPivot(shared, first_bits, row.k);
  const int bin = found.bin;
  if (slice == 0 && threadIdx.x == 0) {
    *reinterpret_cast<int2*>(row.bins + kPivotAt) = make_int2(found.bin, found.above);
  }
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    CountBin(shared.counts, own.valid(i) && int(own.bits[i] >> 21) == bin,
             int(own.bits[i] >> 10 & 2047));
  }
  __syncthreads();
  int32_t* next_bits = row.bins + kNextBitsAt + FirstOfOwnBins();
  if (own_counts.x > 0) atomicAdd(next_bits, own_counts.x);
  if (own_counts.y > 0) atomicAdd(next_bits + 1, own_counts.y);
}

constexpr int kMostSlices = kSelectThreads;  // a thread each; a longer row takes the slow way
constexpr int kMostTies = 8192;              // that a block ranks, if they are not equal
constexpr int kTaken = 1 << 15;
struct RankShared {
  SelectShared select;
  int above[kMostSlices], ties[kMostSlices];  // of the slices before
  uint16_t tie[kMostTies];  // its last bits, then how many before it are taken, and kTaken if it is
  uint32_t least, largest;
  bool is_last;
};

// Gives up what its slice has, `pivot` being the 22 bits of the last of the largest.
__device__ __forceinline__ void GiveUp(const OwnScores& own, uint32_t pivot, uint2* to,
                                       SliceCounts* counts, RankShared& shared) {
  uint32_t least = 0xffffffffu, largest = 0;
  int own_above = 0, own_ties = 0;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (!own.valid(i) || own.bits[i] >> 10 < pivot) continue;
    if (own.bits[i] >> 10 > pivot) {
      ++own_above;
    } else {
      ++own_ties;
      const uint32_t last_bits = own.bits[i] & 1023;
      least = last_bits < least ? last_bits : least;
      largest = last_bits > largest ? last_bits : largest;
    }
  }
  if (own_ties > 0) {
    atomicMin(&shared.least, least);
    atomicMax(&shared.largest, largest);
  }
  int total;
  const int before = SumBefore(own_above | own_ties << 16, shared.select.warp_sums[1], &total);
  int above = before & 0xffff, ties = before >> 16;
  const int all_above = total & 0xffff;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    if (!own.valid(i) || own.bits[i] >> 10 < pivot) continue;
    const uint32_t index = uint32_t(own.first + i);
    if (own.bits[i] >> 10 > pivot) {
      to[above++] = make_uint2(index, uint32_t(ties));
    } else {
      to[all_above + ties++] = make_uint2(index, (own.bits[i] & 1023) | uint32_t(above) << 10);
    }
  }
  if (threadIdx.x == 0) *counts = {all_above, total >> 16, shared.least, shared.largest};
}

// Of values that ascend from 0, the last that is not above i.
__device__ __forceinline__ int SliceOf(const int* before, int num_slices, int i) {
  int low = 0;
  for (int end = num_slices; end - low > 1;) {
    const int middle = (low + end) / 2;
    if (before[middle] <= i) {
      low = middle;
    } else {
      end = middle;
    }
  }
  return low;
}

// From the last bits of `count` ties in shared.tie, of which the `wanted` largest are taken, how
// many before each are. Last bits are counted in shared.select.counts. Ends with a barrier.
__device__ __forceinline__ void RankTies(int count, int wanted, RankShared& shared) {
  SelectShared& select = shared.select;
  const PivotBin found = FindBin(select, wanted);
  const int equal = wanted - found.above;  // that are taken
  const int each = (count + kSelectThreads - 1) / kSelectThreads;
  const int first = int(threadIdx.x) * each, end = min(first + each, count);
  int own = 0;  // above in the low half, equal in the high one
  for (int i = first; i < end; ++i) {
    own += shared.tie[i] > found.bin ? 1 : shared.tie[i] == found.bin ? 1 << 16 : 0;
  }
  int total;
  int before = SumBefore(own, select.warp_sums[1], &total);
  for (int i = first; i < end; ++i) {
    const int last_bits = shared.tie[i];
    const bool is_taken = last_bits > found.bin || (last_bits == found.bin && before >> 16 < equal);
    shared.tie[i] =
        uint16_t((before & 0xffff) + min(before >> 16, equal)) | (is_taken ? kTaken : 0);
    before += last_bits > found.bin ? 1 : last_bits == found.bin ? 1 << 16 : 0;
  }
  __syncthreads();
}

struct Candidate {
  int index = 0;
  int before = 0;  // in the row: ties before one above, those above before a tie
  uint32_t last_bits = 0;
};

// The list of a row whose slices have given up what they have, by the last block. wanted: of the
// ties. REQUIRES: shared.select.counts are 0.
__device__ __forceinline__ void WriteList(const SharedRow& row, const SliceCounts* slices,
                                          const uint2* from, int wanted, int32_t* list,
                                          RankShared& shared) {
  const int num_slices = (row.n + kSliceKeys - 1) / kSliceKeys, slice = int(threadIdx.x);
  const int4 words = slice < num_slices ? __ldcg(reinterpret_cast<const int4*>(slices + slice))
                                        : make_int4(0, 0, -1, 0);
  const SliceCounts own{words.x, words.y, uint32_t(words.z), uint32_t(words.w)};
  if (threadIdx.x == 0) shared.least = 0xffffffffu, shared.largest = 0;
  int num_above, num_ties;
  shared.above[slice] = SumBefore(own.above, shared.select.warp_sums[0], &num_above);
  shared.ties[slice] = SumBefore(own.ties, shared.select.warp_sums[1], &num_ties);
  if (own.ties > 0) {
    atomicMin(&shared.least, own.least);
    atomicMax(&shared.largest, own.largest);
  }
  __syncthreads();
  const bool are_equal = shared.least == shared.largest;
  if (num_slices > kMostSlices || (!are_equal && num_ties > kMostTies)) {
    Cut cut;
    FindCut(row.scores, row.n, row.k, nullptr, shared.select, &cut);
    WriteTaken(row.scores, row.n, cut, shared.select, list);
    return;
  }
  const auto tie = [&](int i) {
    if (i >= num_ties) return Candidate{};
    const int s = SliceOf(shared.ties, num_slices, i);
    const int above = s + 1 < num_slices ? shared.above[s + 1] : num_above;  // up to its end
    const uint2 c = __ldcg(from + s * kSliceKeys + above - shared.above[s] + i - shared.ties[s]);
    return Candidate{int(c.x), shared.above[s] + int(c.y >> 10), c.y & 1023};
  };
  const auto above = [&](int i) {
    if (i >= num_above) return Candidate{};
    const int s = SliceOf(shared.above, num_slices, i);
    const uint2 c = __ldcg(from + s * kSliceKeys + i - shared.above[s]);
    return Candidate{int(c.x), shared.ties[s] + int(c.y), 0};
  };
  // Most have no more; on their way while ties are ranked.
  const int thread = int(threadIdx.x);
  const Candidate first_tie = tie(thread), first_above = above(thread);
  const Candidate second_above = above(thread + kSelectThreads);
  if (!are_equal) {
    for (int i = thread; i < num_ties; i += kSelectThreads) {
      const uint32_t last_bits = (i == thread ? first_tie : tie(i)).last_bits;
      shared.tie[i] = uint16_t(last_bits);
      atomicAdd(shared.select.counts + last_bits, 1);
    }
    RankTies(num_ties, wanted, shared);
  }
  const auto taken_before = [&](int i) {  // of ties, before tie i
    if (are_equal) return min(i, wanted);
    return i < num_ties ? shared.tie[i] & (kTaken - 1) : wanted;
  };
  for (int i = thread; i < num_above; i += kSelectThreads) {
    const Candidate c = i == thread                    ? first_above
                        : i == thread + kSelectThreads ? second_above
                                                       : above(i);
    list[i + taken_before(c.before)] = c.index;
  }
  for (int i = thread; i < (are_equal ? wanted : num_ties); i += kSelectThreads) {
    if (!are_equal && !(shared.tie[i] & kTaken)) continue;
    const Candidate c = i == thread ? first_tie : tie(i);
    list[taken_before(i) + c.before] = c.index;
  }
}

// A block a slice gives up what it has; a row's last to end writes the list.
__global__ void __launch_bounds__(kSelectThreads, 1)
    TakeKernel(SelectTask task, ScoreRows rows, SharedRows shared_rows, int32_t* bad,
               int32_t code) {
  __shared__ RankShared shared;
  const int64_t row_index = blockIdx.y;
  const int slice = int(blockIdx.x);
  const SharedRow row(task, rows, shared_rows, row_index);
  const bool is_live = row_index < *task.live;
  *reinterpret_cast<int2*>(shared.select.counts + FirstOfOwnBins()) = make_int2(0, 0);
  if (threadIdx.x == 0) shared.least = 0xffffffffu, shared.largest = 0;
  WaitForPrevious();
  LetNextBegin();
  if (slice == 0 && threadIdx.x == 0 && is_live) {
    task.selection.counts[row_index] = row.n > 0 ? row.k : 0;
  }
  if (slice * kSliceKeys >= row.n) return;
  SliceCounts* slices = shared_rows.slices + row_index * shared_rows.num_slices;
  uint2* candidates = shared_rows.candidates + row_index * rows.pitch;
  const OwnScores own(row, slice);
  int32_t* own_bins = row.bins + FirstOfOwnBins();
  const int2 pivot = *reinterpret_cast<const int2*>(row.bins + kPivotAt);  // PivotBin
  const int2 next_bits = *reinterpret_cast<const int2*>(own_bins + kNextBitsAt);
  const bool is_finite = row.bins[kNotFiniteAt] == 0;
  int wanted = row.k;
  if (is_finite) {
    wanted -= pivot.y;
    const PivotBin next = FindPivot(shared.select, next_bits, wanted);
    wanted -= next.above;
    GiveUp(own, uint32_t(pivot.x) << 11 | uint32_t(next.bin), candidates + slice * kSliceKeys,
           slices + slice, shared);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int num_slices = (row.n + kSliceKeys - 1) / kSliceKeys;
    __threadfence();  // of what the block wrote, then of what the others did
    shared.is_last = atomicAdd(row.bins + kTicketAt, 1) == num_slices - 1;
    __threadfence();
  }
  __syncthreads();
  if (!shared.is_last) return;
  *reinterpret_cast<int2*>(own_bins) = make_int2(0, 0);
  *reinterpret_cast<int2*>(own_bins + kNextBitsAt) = make_int2(0, 0);
  if (threadIdx.x == 0) {
    *reinterpret_cast<int4*>(row.bins + kNotFiniteAt) = make_int4(0, 0, 0, 0);
  }
  int32_t* list = task.selection.lists + row_index * row.k;
  if (is_finite) return WriteList(row, slices, candidates, wanted, list, shared);
  if (threadIdx.x == 0) NoteBad(bad, code, row_index);
  for (int i = int(threadIdx.x); i < row.k; i += kSelectThreads) list[i] = i;
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
                   int64_t first, int64_t count, int32_t* bins) {
  Launch("selection of keys", SelectRowsKernel, {dim3(unsigned(count)), dim3(kSelectThreads)},
         context.stream, task, rows, first, bins, context.bad.first, context.bad.code);
}

void SelectFromSharedRows(const KernelContext& context, const SelectTask& task,
                          const ScoreRows& rows, const SharedRows& shared) {
  const LaunchShape shape{dim3(unsigned(shared.num_slices), unsigned(task.num_tokens)),
                          dim3(kSelectThreads)};
  Launch("counts of the pivot's next bits", NextBitsKernel, shape, context.stream, task, rows,
         shared);
  Launch("the largest of slices", TakeKernel, shape, context.stream, task, rows, shared,
         context.bad.first, context.bad.code);
}

void ListAll(const KernelContext& context, int64_t num_tokens, const int32_t* live,
             const int64_t* positions, const Selection& selection) {
  Launch("lists of all keys", ListAllKernel, {dim3(unsigned(num_tokens)), dim3(kListThreads)},
         context.stream, live, positions, selection);
}

}  // namespace hillstar::cuda
