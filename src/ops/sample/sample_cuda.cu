// The next tokens from rows of logits, drawn as sample.h says, into the next step's table: no host
// between two steps. Weights are integers, so blocks may add them in any order.
//
// Several blocks share a row, each a part of its ids: the last of a row's blocks to end goes on
// with what they found. Three kernels: the largest logit, which is all that greedy rows need; the
// weights, counted by bins of like logits, and then the last of the most likely that is kept; the
// sums of what is kept, and then the token.
#include <algorithm>
#include <type_traits>

#include "core/check.h"
#include "core/integers.h"
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

// 64-bit integers as CUDA's atomics have them.
using Word = unsigned long long;

constexpr int kLargestThreads = 256;
constexpr int kThreads = 1024;
constexpr int kBins = 2048;
constexpr int kBinBits = 11;
constexpr int kListed = 2048;  // candidates of one bin that shared memory holds

// The largest so far; ties go to the lower index. A row with +infinity or NaN has none.
struct Best {
  float value;
  int32_t index;  // -1: none
  int32_t is_bad;
  float least;  // of the finite ones
};

// What a row's blocks leave for the next kernel.
struct RowState {
  int32_t tickets;  // of blocks that have ended; 0 between kernels
  int32_t best;     // the most likely id; -1: no token is to be drawn
  float largest;
  float bins_per_logit;
  uint64_t cut;  // the least KeyOf that is kept
};

// In a launch's scratch, for `rows` rows.
struct Scratch {
  RowState* states;      // [rows]
  Best* best;            // [rows, kDrawParts]
  uint64_t* part_sums;   // [rows, kDrawParts]
  uint64_t* bin_sums;    // [rows, kBins], zero between launches
  uint32_t* bin_counts;  // likewise

  Scratch(uint8_t* bytes, int64_t rows) {
    const auto take = [&](auto** array, int64_t count) {
      *array = reinterpret_cast<std::remove_reference_t<decltype(*array)>>(bytes);
      bytes += count * int64_t(sizeof(**array));
    };
    take(&bin_sums, rows * kBins);
    take(&part_sums, rows * kDrawParts);
    take(&states, rows);
    take(&best, rows * kDrawParts);
    take(&bin_counts, rows * kBins);
  }
  static size_t Bytes(int64_t rows) {
    return size_t(rows) * (sizeof(RowState) + kDrawParts * (sizeof(Best) + sizeof(uint64_t)) +
                           kBins * (sizeof(uint64_t) + sizeof(uint32_t)));
  }
};

// The ids of a block.
struct Part {
  int first, end;
};
__device__ __forceinline__ Part PartOf(int n, int number, int num_parts) {
  const int each = (n + num_parts - 1) / num_parts, first = number * each;
  return {first < n ? first : n, first + each < n ? first + each : n};
}

// Calls visit(is_there, id, logit) for ids [first, end), by all of a block's kBlock threads equally
// often, with kAtOnce logits on their way to each.
template <int kBlock, int kAtOnce, typename Visit>
__device__ __forceinline__ void ForEachLogit(const float* logits, int first, int end, Visit visit) {
  for (int at = first; at < end; at += kBlock * kAtOnce) {
    float x[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = at + j * kBlock + int(threadIdx.x);
      x[j] = i < end ? logits[i] : -3e38f;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = at + j * kBlock + int(threadIdx.x);
      if (at + j * kBlock < end) visit(i < end, i, x[j]);
    }
  }
}

// Whether this block is the last of its row to get here; what the others wrote before is then seen.
// For all threads.
__device__ bool IsLastOfRow(RowState* state) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&state->tickets, 1) == int32_t(gridDim.x) - 1;
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
  if (threadIdx.x == 0) state->tickets = 0;
  return true;
}

// The largest logit -------------------------------------------------------------------------------

__device__ __forceinline__ Best Better(const Best& a, const Best& b) {
  const bool takes_b = b.index >= 0 && (a.index < 0 || b.value > a.value ||
                                        (b.value == a.value && b.index < a.index));
  return {takes_b ? b.value : a.value, takes_b ? b.index : a.index, a.is_bad | b.is_bad,
          b.least < a.least ? b.least : a.least};
}

__device__ __forceinline__ Best NoBest() { return {0.0f, -1, 0, 3e38f}; }

__device__ Best BestOfWarp(Best best) {
  for (int bits = kWarpLanes / 2; bits > 0; bits /= 2) {
    const Best other = {__shfl_xor_sync(kAllLanes, best.value, bits),
                        __shfl_xor_sync(kAllLanes, best.index, bits),
                        __shfl_xor_sync(kAllLanes, best.is_bad, bits),
                        __shfl_xor_sync(kAllLanes, best.least, bits)};
    best = Better(best, other);
  }
  return best;
}

__device__ __forceinline__ Best BestOf(float x, int32_t i) {
  if (IsFinite(x)) return {x, i, 0, x};
  Best none = NoBest();
  none.is_bad = x < 0.0f ? 0 : 1;
  return none;
}

// The next step's token of a row.
__device__ __forceinline__ void WriteToken(const DrawTask& task, int64_t row, int32_t id) {
  task.ids[row] = id;
  if (!task.next_ids) return;
  task.next_ids[row] = id;
  ++task.next_positions[row];
}

// Block (part, row).
__global__ void __launch_bounds__(kLargestThreads)
    LargestKernel(DrawTask task, Scratch scratch, int32_t* bad, int32_t code) {
  constexpr int kWarps = kLargestThreads / kWarpLanes;
  __shared__ Best shared[kWarps];
  WaitForPrevious();
  LetNextBegin();
  const int64_t row = blockIdx.y, parts = gridDim.x;
  const float* logits = task.logits + row * task.n;
  Best best = NoBest();
  const Part part = PartOf(int(task.n), int(blockIdx.x), int(parts));
  ForEachLogit<kLargestThreads, 8>(logits, part.first, part.end,
                                   [&](bool is_there, int i, float x) {
                                     if (is_there) best = Better(best, BestOf(x, i));
                                   });
  best = BestOfWarp(best);
  if (threadIdx.x % kWarpLanes == 0) shared[threadIdx.x / kWarpLanes] = best;
  __syncthreads();
  if (threadIdx.x < kWarpLanes) {
    best = BestOfWarp(threadIdx.x < kWarps ? shared[threadIdx.x] : NoBest());
    if (threadIdx.x == 0) scratch.best[row * kDrawParts + blockIdx.x] = best;
  }
  RowState* state = scratch.states + row;
  if (!IsLastOfRow(state) || threadIdx.x >= kWarpLanes) return;
  best = NoBest();
  for (int64_t p = threadIdx.x; p < parts; p += kWarpLanes) {
    const volatile Best* other = scratch.best + row * kDrawParts + p;
    best = Better(best, {other->value, other->index, other->is_bad, other->least});
  }
  best = BestOfWarp(best);
  if (threadIdx.x != 0) return;
  const bool has_one = best.index >= 0 && !best.is_bad;
  if (!has_one) NoteBad(bad, code, row);
  const bool is_drawn = has_one && task.draws && !task.draws[row].is_greedy();
  state->best = is_drawn ? best.index : -1;
  if (!is_drawn) return WriteToken(task, row, has_one ? best.index : 0);
  // Bins serve to find things fast: they are of any width. All weights lie within these.
  const float least_gap = float(-kLeastGap * task.draws[row].temperature);
  const float range = __fsub_rn(best.value, best.least);
  const float width = range < least_gap ? range : least_gap;
  const float per_logit = width > 0.0f ? __fdiv_rn(float(kBins), width) : 0.0f;
  state->largest = best.value;
  state->bins_per_logit = per_logit < 1e30f ? per_logit : 1e30f;
  state->cut = 0;
}

// Weights -----------------------------------------------------------------------------------------

// W of sample.h.
__device__ __forceinline__ uint64_t WeightOf(float x, float largest, double temperature) {
  const double gap = __ddiv_rn(__dsub_rn(double(x), double(largest)), temperature);
  if (!(gap > kLeastGap)) return 0;
  const double rounded = __dadd_rn(__dmul_rn(gap, kExpLog2E), kExpRound);
  const double k = __dsub_rn(rounded, kExpRound);
  const double r = __dsub_rn(__dsub_rn(gap, __dmul_rn(k, kExpLn2High)), __dmul_rn(k, kExpLn2Low));
  constexpr double kTaylor[] = {kExpTaylor[0],  kExpTaylor[1], kExpTaylor[2],  kExpTaylor[3],
                                kExpTaylor[4],  kExpTaylor[5], kExpTaylor[6],  kExpTaylor[7],
                                kExpTaylor[8],  kExpTaylor[9], kExpTaylor[10], kExpTaylor[11],
                                kExpTaylor[12], kExpTaylor[13]};
  double p = kTaylor[0];
#pragma unroll
  for (int t = 1; t < 14; ++t) p = __dadd_rn(__dmul_rn(p, r), kTaylor[t]);
  const auto power = (uint64_t(__double_as_longlong(rounded)) + 1023 + kWeightBits) << 52;
  const double scaled = __dmul_rn(p, __longlong_as_double(static_cast<long long>(power)));
  constexpr double kInteger = 0x1p52;  // a double from here to twice as much holds an integer
  return uint64_t(__double_as_longlong(__dadd_rn(scaled, kInteger))) & ((uint64_t{1} << 52) - 1);
}

// Larger for the more likely of two tokens, whose logits it holds; no two have the same.
__device__ __forceinline__ uint64_t KeyOf(float x, int id) {
  const uint32_t ordered = OrderedBits(__fadd_rn(x, 0.0f));  // -0 becomes +0
  return uint64_t(ordered) << 32 | uint32_t(~uint32_t(id));
}
__device__ __forceinline__ float LogitOf(uint64_t key) {
  const auto ordered = uint32_t(key >> 32);
  return __uint_as_float(ordered ^ (ordered >> 31 ? 0x80000000u : 0xffffffffu));
}

// The bins of a row begin with the most likely.
__device__ __forceinline__ int BinOf(float x, const RowState& state) {
  const float at = __fmul_rn(__fsub_rn(state.largest, x), state.bins_per_logit);
  return at < float(kBins - 1) ? int(at) : kBins - 1;
}

__device__ __forceinline__ uint64_t WarpSum64(uint64_t x) {
  for (int bits = kWarpLanes / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(kAllLanes, x, bits);
  return x;
}

// Sums of the threads before this one and of all, by all threads of the block.
struct Sums {
  uint64_t before, all;
};
__device__ __forceinline__ Sums SumThreads(uint64_t value) {
  __shared__ uint64_t warps[kThreads / kWarpLanes];
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const uint64_t sum = SumUpToLane(value);
  __syncthreads();  // the last call's sums are read
  if (lane == kWarpLanes - 1) warps[warp] = sum;
  __syncthreads();
  const uint64_t other = SumUpToLane(warps[lane]);
  const uint64_t before = __shfl_sync(kAllLanes, other, warp > 0 ? warp - 1 : 0);
  const uint64_t all = __shfl_sync(kAllLanes, other, kWarpLanes - 1);
  return {(warp > 0 ? before : 0) + sum - value, all};
}
static_assert(kThreads == kWarpLanes * kWarpLanes);

struct Bins {
  uint64_t sums[kBins];
  uint32_t counts[kBins];

  __device__ void Clear() {
    for (int i = int(threadIdx.x); i < kBins; i += kThreads) sums[i] = 0, counts[i] = 0;
  }
  // Adds this thread's weight, if it is not 0. All lanes of a warp together; long plateaus of one
  // bin are added by a warp at once.
  __device__ __forceinline__ void Add(int bin, uint64_t weight) {
    const int first = __shfl_sync(kAllLanes, bin, 0);
    if (__all_sync(kAllLanes, weight > 0 && bin == first)) {
      const uint64_t sum = WarpSum64(weight);
      if (threadIdx.x % kWarpLanes != 0) return;
      atomicAdd(reinterpret_cast<Word*>(sums + bin), Word(sum));
      atomicAdd(counts + bin, uint32_t(kWarpLanes));
    } else if (weight > 0) {
      atomicAdd(reinterpret_cast<Word*>(sums + bin), Word(weight));
      atomicAdd(counts + bin, 1u);
    }
  }
};

// What a cut needs: so many candidates, or so large a sum.
struct Need {
  bool is_count;
  uint64_t amount;
};
// A bin and what lies in those before it.
struct Found {
  int bin;
  uint32_t count;               // in the bin
  uint64_t sum;                 // likewise
  uint64_t amount, sum_before;  // before it
};

struct WeighShared {
  RowState state;
  DrawParams params;
  Bins bins;
  Word keys[kListed];
  uint32_t num_keys;
  Word least, largest;
  Found found;
};

// The bin where what is needed is reached. Begins and ends with a barrier. REQUIRES that it is.
__device__ __forceinline__ Found FindBin(WeighShared& shared, Need need) {
  __syncthreads();
  static_assert(kBins == 2 * kThreads);
  const int bin = 2 * int(threadIdx.x);
  const uint64_t sum0 = shared.bins.sums[bin], sum1 = shared.bins.sums[bin + 1];
  const uint32_t count0 = shared.bins.counts[bin], count1 = shared.bins.counts[bin + 1];
  const uint64_t sum_before = SumThreads(sum0 + sum1).before;
  const uint64_t before = need.is_count ? SumThreads(count0 + count1).before : sum_before;
  const uint64_t own0 = need.is_count ? count0 : sum0, own1 = need.is_count ? count1 : sum1;
  if (before < need.amount && need.amount <= before + own0) {
    shared.found = {bin, count0, sum0, before, sum_before};
  } else if (before + own0 < need.amount && need.amount <= before + own0 + own1) {
    shared.found = {bin + 1, count1, sum1, before + own0, sum_before + sum0};
  }
  __syncthreads();
  return shared.found;
}

// Lists the keys in a bin, perhaps of weight 0 too, as many as there is room for, and finds the
// least and the largest. Ends with a barrier.
__device__ __forceinline__ void ListBin(const float* logits, int n, int bin, WeighShared& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared.num_keys = 0, shared.least = ~Word{0}, shared.largest = 0;
  __syncthreads();
  ForEachLogit<kThreads, 8>(logits, 0, n, [&](bool is_there, int i, float x) {
    if (!is_there || BinOf(x, shared.state) != bin) return;
    const Word key = KeyOf(x, i);
    atomicMin(&shared.least, key);
    atomicMax(&shared.largest, key);
    const uint32_t at = atomicAdd(&shared.num_keys, 1u);
    if (at < uint32_t(kListed)) shared.keys[at] = key;
  });
  __syncthreads();
}

// Counts the candidates with keys in [least, largest] by their distance from `least`, 2^shift a
// bin, those of larger keys first.
__device__ __forceinline__ void CountKeys(const float* logits, int n, Word least, Word largest,
                                          int shift, WeighShared& shared) {
  __syncthreads();
  shared.bins.Clear();
  __syncthreads();
  const bool is_listed = shared.num_keys <= uint32_t(kListed);
  const int end = is_listed ? int(shared.num_keys) : n;
  for (int first = 0; first < end; first += kThreads) {
    const int i = first + int(threadIdx.x);
    const Word key = i >= end ? 0 : is_listed ? shared.keys[i] : KeyOf(logits[i], i);
    const bool counts = i < end && key >= least && key <= largest;
    const uint64_t weight =
        counts ? WeightOf(LogitOf(key), shared.state.largest, shared.params.temperature) : 0;
    shared.bins.Add(counts ? kBins - 1 - int((key - least) >> shift) : -1, weight);
  }
}

// The key of the last candidate that is needed, and the sum up to it.
struct Cut {
  Word key;
  uint64_t sum;
};
__device__ __forceinline__ Cut FindCut(const float* logits, int n, const Scratch& scratch,
                                       int64_t row, Need need, WeighShared& shared) {
  __syncthreads();
  for (int i = int(threadIdx.x); i < kBins; i += kThreads) {
    shared.bins.sums[i] = __ldcg(scratch.bin_sums + row * kBins + i);
    shared.bins.counts[i] = __ldcg(scratch.bin_counts + row * kBins + i);
  }
  uint64_t sum_before = 0;
  Word least = 0, largest = 0;
  for (int shift = -1;;) {
    const Found found = FindBin(shared, need);
    sum_before += found.sum_before;
    need.amount -= found.amount;
    if (shift < 0) {
      ListBin(logits, n, found.bin, shared);
      least = shared.least;
      largest = shared.largest;
    } else {
      least += Word(kBins - 1 - found.bin) << shift;
      // Only one is left at the latest where bins are one key wide.
      if (found.count == 1) return {least, sum_before + found.sum};
      const Word last = least + ((Word{1} << shift) - 1);
      largest = last < largest ? last : largest;
    }
    const int bits = 64 - __clzll(static_cast<long long>(largest - least));
    shift = bits > kBinBits ? bits - kBinBits : 0;
    CountKeys(logits, n, least, largest, shift, shared);
  }
}

// Adds the weights of a part's ids to the row's.
__device__ __forceinline__ void WeighPart(const DrawTask& task, const Scratch& scratch,
                                          bool has_cut, WeighShared& shared) {
  const int64_t row = blockIdx.y;
  const float largest = shared.state.largest;
  const double temperature = shared.params.temperature;
  const Part part = PartOf(int(task.n), int(blockIdx.x), int(gridDim.x));
  uint64_t own = 0;
  ForEachLogit<kThreads, 4>(
      task.logits + row * task.n, part.first, part.end, [&](bool is_there, int, float x) {
        const uint64_t weight = is_there ? WeightOf(x, largest, temperature) : 0;
        own += weight;
        if (has_cut) shared.bins.Add(BinOf(x, shared.state), weight);
      });
  const uint64_t part_sum = SumThreads(own).all;
  if (threadIdx.x == 0) scratch.part_sums[row * kDrawParts + blockIdx.x] = part_sum;
  if (!has_cut) return;
  for (int i = int(threadIdx.x); i < kBins; i += kThreads) {
    if (shared.bins.counts[i] == 0) continue;
    atomicAdd(reinterpret_cast<Word*>(scratch.bin_sums + row * kBins + i),
              Word(shared.bins.sums[i]));
    atomicAdd(scratch.bin_counts + row * kBins + i, shared.bins.counts[i]);
  }
}

// Cuts a row whose weights are added.
__device__ __forceinline__ void CutRow(const DrawTask& task, const Scratch& scratch,
                                       WeighShared& shared) {
  const int64_t row = blockIdx.y;
  uint64_t sum = 0, count = 0;
  for (int i = int(threadIdx.x); i < kBins; i += kThreads) {
    sum += __ldcg(scratch.bin_sums + row * kBins + i);
    count += __ldcg(scratch.bin_counts + row * kBins + i);
  }
  Cut cut{0, SumThreads(sum).all};
  count = SumThreads(count).all;
  for (const bool is_top_k : {true, false}) {
    const uint64_t amount =
        is_top_k ? uint64_t(shared.params.top_k) : NucleusSum(shared.params.top_p, cut.sum);
    const bool cuts = is_top_k ? amount > 0 && amount < count : amount < cut.sum;
    if (!cuts) continue;
    cut =
        FindCut(task.logits + row * task.n, int(task.n), scratch, row, {is_top_k, amount}, shared);
  }
  if (threadIdx.x == 0) scratch.states[row].cut = cut.key;
  for (int i = int(threadIdx.x); i < kBins; i += kThreads) {
    scratch.bin_sums[row * kBins + i] = 0;
    scratch.bin_counts[row * kBins + i] = 0;
  }
}

// Block (part, row).
__global__ void __launch_bounds__(kThreads, 1) WeighKernel(DrawTask task, Scratch scratch) {
  __shared__ WeighShared shared;
  WaitForPrevious();
  LetNextBegin();
  RowState* const state = scratch.states + blockIdx.y;
  if (state->best < 0) return;
  const DrawParams* params = task.draws + blockIdx.y;
  const bool has_cut = params->top_k > 0 || params->top_p < UINT64_MAX;
  if (threadIdx.x == 0) shared.state = *state, shared.params = *params;
  if (has_cut) shared.bins.Clear();
  __syncthreads();
  WeighPart(task, scratch, has_cut, shared);
  if (IsLastOfRow(state) && has_cut) CutRow(task, scratch, shared);
}

// The token ---------------------------------------------------------------------------------------

// Its weight if it is kept, else 0.
__device__ __forceinline__ uint64_t KeptWeight(float x, int id, const RowState& state,
                                               const DrawParams& params) {
  if (state.cut > 0 && KeyOf(x, id) < state.cut) return 0;
  const uint64_t weight = WeightOf(x, state.largest, params.temperature);
  return weight >= params.min_weight ? weight : 0;
}

// Finds the token among the ids of one part, of which `target` of the sum comes before: warps take
// stretches of them, and one of them the ids of its stretch.
__device__ void DrawInPart(const DrawTask& task, int64_t row, const RowState& state,
                           const DrawParams& params, const Part& part, uint64_t target) {
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const float* logits = task.logits + row * task.n;
  constexpr int kWarps = kThreads / kWarpLanes;
  const int each = (part.end - part.first + kWarps - 1) / kWarps;
  const int first = part.first + warp * each;
  const int end = first + each < part.end ? first + each : part.end;
  uint64_t own = 0;
  for (int i = first + lane; i < end; i += kWarpLanes) {
    own += KeptWeight(logits[i], i, state, params);
  }
  own = WarpSum64(own);
  const uint64_t before = __shfl_sync(kAllLanes, SumThreads(lane == 0 ? own : 0).before, 0);
  if (target < before || target - before >= own) return;
  uint64_t running = before;
  for (int at = first; at < end; at += kWarpLanes) {
    const int i = at + lane;
    const uint64_t own_weight = i < end ? KeptWeight(logits[i], i, state, params) : 0;
    const uint64_t sum = SumUpToLane(own_weight);
    const unsigned beyond = __ballot_sync(kAllLanes, running + sum > target);
    if (beyond != 0) {
      if (lane == 0) WriteToken(task, row, at + __ffs(int(beyond)) - 1);
      return;
    }
    running += __shfl_sync(kAllLanes, sum, kWarpLanes - 1);
  }
}

// Block (part, row), the parts being those of the weights.
__global__ void __launch_bounds__(kThreads, 1) DrawKernel(DrawTask task, Scratch scratch) {
  __shared__ uint64_t target_in_part;
  __shared__ int drawn_part;
  WaitForPrevious();
  LetNextBegin();
  const int64_t row = blockIdx.y;
  RowState* const row_state = scratch.states + row;
  const RowState state = *row_state;
  if (state.best < 0) return;
  const DrawParams params = task.draws[row];
  const float* logits = task.logits + row * task.n;
  uint64_t* part_sums = scratch.part_sums + row * kDrawParts;
  if (state.cut > 0 || params.min_weight > 1) {
    const Part part = PartOf(int(task.n), int(blockIdx.x), int(gridDim.x));
    uint64_t own = 0;
    ForEachLogit<kThreads, 4>(logits, part.first, part.end, [&](bool is_there, int i, float x) {
      if (is_there) own += KeptWeight(x, i, state, params);
    });
    const uint64_t sum = SumThreads(own).all;
    if (threadIdx.x == 0) part_sums[blockIdx.x] = sum;
  }
  if (!IsLastOfRow(row_state)) return;
  const uint64_t own = threadIdx.x < gridDim.x ? __ldcg(part_sums + threadIdx.x) : 0;
  const Sums sums = SumThreads(own);
  const auto position = uint64_t(task.positions[row] + 1);
  const uint64_t target = DrawTarget(RandomWord(params.seed, position), sums.all);
  if (sums.before <= target && target - sums.before < own) {
    drawn_part = int(threadIdx.x);
    target_in_part = target - sums.before;
  }
  __syncthreads();
  DrawInPart(task, row, state, params, PartOf(int(task.n), drawn_part, int(gridDim.x)),
             target_in_part);
}

}  // namespace

size_t DrawTaskBytes() { return Scratch::Bytes(kDrawRows); }

void Draw(const KernelContext& context, const DrawTask& task) {
  CHECK(task.rows <= kDrawRows && task.n <= kMaxDrawnLogits);
  const Scratch scratch(task.scratch, kDrawRows);
  const int64_t most = task.rows > 8 ? 8 : kDrawParts;
  const auto parts = unsigned(std::clamp<int64_t>(CeilDiv(task.n, 8 * kLargestThreads), 1, most));
  const auto rows = unsigned(task.rows);
  const double bytes = double(task.rows * task.n * 4);  // each kernel reads all logits
  Launch("the likeliest token", LargestKernel, {dim3(parts, rows), dim3(kLargestThreads), 0, bytes},
         context.stream, task, scratch, context.bad.first, context.bad.code);
  if (!task.draws) return;
  const LaunchShape shape{dim3(parts, rows), dim3(kThreads), 0, bytes};
  Launch("weights of tokens", WeighKernel, shape, context.stream, task, scratch);
  Launch("the drawn token", DrawKernel, shape, context.stream, task, scratch);
}

}  // namespace hillstar::cuda
