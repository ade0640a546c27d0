// Attention on a GPU. Long contexts of few tokens are cut: blocks take (split, heads) one after
// another from a list that follows from the positions, leave partial results, and a second kernel
// merges them. A token whose partial results have no room, and every token where there are enough
// to keep the GPU busy, has a block for some heads, which goes through the splits and merges as it
// goes. The bits are the same.
#include <algorithm>
#include <string>

#include "core/integers.h"
#include "device/cuda/launch.cuh"
#include "hillstar/error.h"
#include "ops/attention/attention_block_cuda.cuh"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {
namespace {

// Partial results: of split p and head h sums and values lie at p * heads + h.
struct Partials {
  float2* numbers = nullptr;  // largest, sum
  float* values = nullptr;    // [padded latent]
  int64_t capacity = 0;       // splits
};
struct AttendArguments {
  AttendTask task;
  AttendLayout layout;
  Partials partials;
  int num_head_groups;
  int32_t* bad;
  int32_t code;
};

// Enough for one token of 64 heads with 262,144 keys, or 64 such tokens with 4,096.
constexpr int64_t kMaxPartialBytes = int64_t{144} << 20;
int64_t PartialBytes(int64_t num_heads, const KvRowLayout& layout) {
  return num_heads * (layout.padded_latent() + 2) * int64_t(sizeof(float));
}
// Splits whose partial results are kept for tasks of these sizes.
int64_t PartialCapacity(int64_t num_tokens, int64_t max_keys, int64_t num_heads,
                        const KvRowLayout& layout) {
  const int64_t splits = std::min<int64_t>(num_tokens, kMaxSplitTokens) *
                         CeilDiv(std::max<int64_t>(max_keys, 1), kSplitKeys);
  return std::min(splits, kMaxPartialBytes / PartialBytes(num_heads, layout));
}

__device__ __forceinline__ int64_t NumSplits(const AttendTask& task, int64_t t) {
  const int count = task.selection.counts[t];
  return ((count == 0 ? task.positions[t] + 1 : count) + kSplit - 1) / kSplit;
}

// Which splits a block of 256 threads finds work in: ends[t] is the number of splits of tokens up
// to t. Tokens are split as long as capacity holds their splits.
struct SplitList {
  int ends[kMaxSplitTokens];
  int num_tokens;  // that are split
  int warp_sums[kAttendWarps];

  __device__ __forceinline__ void Make(const AttendTask& task, int64_t capacity) {
    const int i = int(threadIdx.x), lane = i % kWarpLanes, warp = i / kWarpLanes;
    const bool live = i < kMaxSplitTokens && i < task.num_tokens && i < *task.live;
    // A token's splits are capped, so that sums stay within int32.
    int64_t splits = live ? NumSplits(task, i) : 0;
    if (splits > capacity) splits = capacity + 1;
    int end = int(splits);
    for (int delta = 1; delta < kWarpLanes; delta *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, delta);
      if (lane >= delta) end += other;
    }
    if (lane == kWarpLanes - 1) warp_sums[warp] = end;
    __syncthreads();
    for (int w = 0; w < warp; ++w) end += warp_sums[w];
    if (i < kMaxSplitTokens) ends[i] = end;
    const int fitting = __syncthreads_count(live && end <= capacity);
    if (i == 0) num_tokens = fitting;
    __syncthreads();
  }
  __device__ __forceinline__ int Begin(int t) const { return t == 0 ? 0 : ends[t - 1]; }
  __device__ __forceinline__ int NumSplitsInAll() const {
    return num_tokens == 0 ? 0 : ends[num_tokens - 1];
  }
  __device__ __forceinline__ int TokenOf(int split) const {
    int low = 0, high = num_tokens - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (split < ends[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

template <int kTiles, bool kLow, bool kCodes>
__device__ __forceinline__ void StorePartial(const AttendBlock<kTiles, kLow, kCodes>& b,
                                             const TileValues (&values)[kTiles],
                                             const Partials& partials, int64_t split) {
  const int num_heads = int(b.task.num_heads) - b.first_head;
  const int64_t first = split * b.task.num_heads + b.first_head;
  if (threadIdx.x < b.kHeads && int(threadIdx.x) < num_heads) {
    const int h = int(threadIdx.x);
    partials.numbers[first + h] = make_float2(b.head(kLargest)[h], b.head(kSum)[h]);
  }
  if (b.warp * 64 >= b.layout.padded_latent) return;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int r = 0; r < 2; ++r) {
      const int h = tile * kTileHeads + 8 * r + b.g;
      if (h >= num_heads) continue;
      float* to = partials.values + (first + h) * b.layout.padded_latent + b.warp * 64 + 8 * b.t;
      for (int block = 0; block < 2; ++block) {
        for (int j = 0; j < 2; ++j) {
          const auto& v = values[tile].v[block];
          const int c = 2 * r + j;
          *reinterpret_cast<float4*>(to + 32 * block + 4 * j) =
              make_float4(v[0][c], v[1][c], v[2][c], v[3][c]);
        }
      }
    }
  }
}

// Blocks take the (split, group of heads) of all tokens that are split, one after another.
template <int kTiles, bool kLow, bool kCodes>
__global__ void __launch_bounds__(kAttendThreads, 1)
    AttendSplitsKernel(const __grid_constant__ AttendArguments arguments) {
  __shared__ SplitList list;
  WaitForPrevious();
  list.Make(arguments.task, arguments.partials.capacity);
  LetNextBegin();  // all blocks are on the GPU: nobody takes another's place
  AttendBlock<kTiles, kLow, kCodes> block(arguments.task, arguments.layout);
  const int num_items = list.NumSplitsInAll() * arguments.num_head_groups;
  for (int item = int(blockIdx.x); item < num_items; item += int(gridDim.x)) {
    const int split = item / arguments.num_head_groups;
    const int token = list.TokenOf(split), begin = list.Begin(token);
    __syncthreads();  // nobody reads the queries before
    block.LoadQueries(token, item % arguments.num_head_groups * block.kHeads);
    TileValues values[kTiles];
    block.RunSplits(split - begin, split - begin + 1, values, [](int) {});
    if (list.ends[token] - begin > 1) {
      StorePartial(block, values, arguments.partials, split);
    } else {
      block.Finish(values, block.head(kSum), arguments.bad, arguments.code);
    }
  }
}

// Merges the partial results of one head and 64 latents a warp.
constexpr int kMergeWarps = 4;
constexpr int kMergeThreads = kMergeWarps * kWarpLanes;
constexpr int kMergeAtOnce = 32;  // loads on their way: 8 KB a warp
struct MergeStep {
  float before, joins, sum, unused;  // exp(largest - next), exp(part's - next), part's sum
};

// The factors of up to kMergeThreads splits from `first` on; *largest is that of all before.
__device__ __forceinline__ void FindMergeSteps(const float2* numbers, int64_t stride, int first,
                                               int num_splits, float* largest, float* shared,
                                               MergeStep* steps) {
  const int i = int(threadIdx.x), lane = i % kWarpLanes, warp = i / kWarpLanes;
  const float none = -__uint_as_float(0x7f800000u);
  const bool valid = first + i < num_splits;
  const float2 own = valid ? numbers[(first + i) * stride] : make_float2(none, 0.0f);
  float next = own.x;  // the largest up to this split
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const float other = __shfl_up_sync(kAllLanes, next, delta);
    if (lane >= delta && other > next) next = other;
  }
  if (lane == kWarpLanes - 1) shared[warp] = next;
  float before = __shfl_up_sync(kAllLanes, next, 1);
  __syncthreads();
  if (lane == 0) before = *largest;
  for (int w = 0; w < warp; ++w) before = shared[w] > before ? shared[w] : before;
  before = *largest > before ? *largest : before;
  next = before > next ? before : next;
  // The first split starts from zeros.
  steps[i] = {first + i == 0 ? 0.0f : Exp(__fsub_rn(before, next)), Exp(__fsub_rn(own.x, next)),
              own.y, 0.0f};
  for (int w = 0; w < kMergeWarps; ++w) *largest = shared[w] > *largest ? shared[w] : *largest;
  __syncthreads();
}

__global__ void __launch_bounds__(kMergeThreads, 4)
    MergeKernel(const __grid_constant__ AttendArguments arguments) {
  __shared__ MergeStep steps[kMergeThreads];
  __shared__ float shared[kMergeWarps];
  __shared__ int sums[kMergeWarps];
  const AttendTask& task = arguments.task;
  const int64_t token = blockIdx.z, head = blockIdx.y;
  const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
  const int group = int(blockIdx.x) * kMergeWarps + warp;
  WaitForPrevious();
  LetNextBegin();
  if (token >= *task.live) return;
  const int64_t own_splits = NumSplits(task, token);
  if (own_splits == 1) return;
  // Splits of the tokens before, as SplitList counts them.
  int64_t before = 0;
  for (int64_t t = threadIdx.x; t < token; t += kMergeThreads) before += NumSplits(task, t);
  const int64_t capacity = arguments.partials.capacity;
  int part = before > capacity ? int(capacity) + 1 : int(before);
  part = WarpSum(part);
  if (lane == 0) sums[warp] = part;
  __syncthreads();
  int64_t first_split = 0;
  for (int w = 0; w < kMergeWarps; ++w) first_split += sums[w];
  if (first_split + own_splits > capacity) return;

  const int num_splits = int(own_splits), padded = arguments.layout.padded_latent;
  const int64_t at = first_split * task.num_heads + head;
  const float* values = arguments.partials.values + at * padded + group * kGroup + 2 * lane;
  const int64_t stride = task.num_heads * padded;
  const bool exists = group * kGroup < padded;
  float largest = -__uint_as_float(0x7f800000u), sum = 0;
  float2 z = make_float2(0.0f, 0.0f);
  for (int first = 0; first < num_splits; first += kMergeThreads) {
    FindMergeSteps(arguments.partials.numbers + at, task.num_heads, first, num_splits, &largest,
                   shared, steps);
    const int last = num_splits - first < kMergeThreads ? num_splits - first : kMergeThreads;
    const auto join = [&](float2 v, const MergeStep& step) {
      sum = __fmaf_rn(step.sum, step.joins, __fmul_rn(sum, step.before));
      z.x = __fmaf_rn(v.x, step.joins, __fmul_rn(z.x, step.before));
      z.y = __fmaf_rn(v.y, step.joins, __fmul_rn(z.y, step.before));
    };
    const auto value = [&](int i) {
      return *reinterpret_cast<const float2*>(values + (first + i) * stride);
    };
    int i = 0;
    for (; exists && i + kMergeAtOnce <= last; i += kMergeAtOnce) {
      float2 v[kMergeAtOnce];
#pragma unroll
      for (int j = 0; j < kMergeAtOnce; ++j) v[j] = value(i + j);
#pragma unroll
      for (int j = 0; j < kMergeAtOnce; ++j) join(v[j], steps[i + j]);
    }
    for (; exists && i < last; ++i) join(value(i), steps[i]);
    __syncthreads();
  }
  if (!exists) return;
  const int column = group * kGroup + 2 * lane;
  const float x = column < arguments.layout.latent ? __fdiv_rn(z.x, sum) : 0.0f;
  const float y = column + 1 < arguments.layout.latent ? __fdiv_rn(z.y, sum) : 0.0f;
  const PlaneGroup out = GroupOf(task.out, token * task.num_heads + head, group);
  if (!QuantiseByWarp(x, y, out) && lane == 0) NoteBad(arguments.bad, arguments.code, token);
}

// A block for a group of heads of one token, split after split.
template <int kTiles, bool kLow, bool kCodes>
__global__ void __launch_bounds__(kAttendThreads, 1)
    AttendTokensKernel(const __grid_constant__ AttendArguments arguments) {
  __shared__ SplitList list;
  using Block = AttendBlock<kTiles, kLow, kCodes>;
  WaitForPrevious();
  const int token = int(blockIdx.y);
  if (token >= *arguments.task.live) return;
  if (arguments.partials.capacity > 0) {  // a launch before this one took those that fit
    list.Make(arguments.task, arguments.partials.capacity);
    if (token < list.num_tokens) return;
  }
  Block block(arguments.task, arguments.layout);
  block.LoadQueries(token, int(blockIdx.x) * Block::kHeads);
  const int num_splits = (block.num_keys + kSplit - 1) / kSplit;
  TileValues merged[kTiles];
  float* merged_sum = block.head(kMergedSum);
  TileValues values[kTiles];
  block.RunSplits(0, num_splits, values, [&](int split) {
    if (threadIdx.x < Block::kHeads) {
      const int h = int(threadIdx.x);
      const float own = block.head(kLargest)[h];
      const float before = split == 0 ? own : block.head(kMergedLargest)[h];
      const float next = own > before ? own : before;
      const float a = split == 0 ? 0.0f : Exp(__fsub_rn(before, next));
      const float b = Exp(__fsub_rn(own, next));
      const float sum_before = split == 0 ? 0.0f : __fmul_rn(merged_sum[h], a);
      merged_sum[h] = __fmaf_rn(block.head(kSum)[h], b, sum_before);
      block.head(kMergedLargest)[h] = next;
      block.head(kMergedDecay)[h] = a;
      block.head(kSplitDecay)[h] = b;
    }
    __syncthreads();
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int h = tile * kTileHeads + 8 * r + block.g;
        const float a = block.head(kMergedDecay)[h], b = block.head(kSplitDecay)[h];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          float& z = merged[tile].v[i / 8][i % 4][2 * r + i / 4 % 2];
          const float v = values[tile].v[i / 8][i % 4][2 * r + i / 4 % 2];
          z = __fmaf_rn(v, b, split == 0 ? 0.0f : __fmul_rn(z, a));
        }
      }
    }
  });
  LetNextBegin();
  block.Finish(merged, merged_sum, arguments.bad, arguments.code);
}

// What a launch needs to know of its kernel.
struct AttendShape {
  int tiles = 1;
  bool fetches_ahead = false;
  int shared_bytes = 0;
};
AttendShape ShapeFor(const KernelContext& context, const KvRowLayout& layout, int tiles) {
  AttendShape shape;
  for (shape.tiles = tiles; shape.tiles > 0; --shape.tiles) {
    for (bool fetches_ahead : {true, false}) {
      shape.fetches_ahead = fetches_ahead;
      const AttendLayout in_block = AttendLayoutOf(layout, fetches_ahead);
      shape.shared_bytes = AttendSharedBytes(in_block, shape.tiles);
      if (shape.shared_bytes + int(sizeof(SplitList)) <= context.shared_bytes) return shape;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              "64 KV rows of " + std::to_string(layout.row_bytes()) +
                  " bytes do not fit the shared memory of a block on this GPU, " +
                  std::to_string(context.shared_bytes) + " bytes");
}

template <int kTiles>
auto* KernelFor(KvFormat format, bool splits) {
  switch (format) {
    case KvFormat::kQ15:
      return splits ? AttendSplitsKernel<kTiles, true, false>
                    : AttendTokensKernel<kTiles, true, false>;
    case KvFormat::kQ8:
      return splits ? AttendSplitsKernel<kTiles, false, false>
                    : AttendTokensKernel<kTiles, false, false>;
    case KvFormat::kFp8: break;
  }
  return splits ? AttendSplitsKernel<kTiles, true, true> : AttendTokensKernel<kTiles, true, true>;
}

}  // namespace

size_t AttendScratchBytes(int64_t max_tokens, int64_t max_keys, int64_t num_heads,
                          const KvRowLayout& layout) {
  return size_t(PartialCapacity(max_tokens, max_keys, num_heads, layout) *
                PartialBytes(num_heads, layout));
}

void Attend(const KernelContext& context, const AttendTask& task) {
  const int64_t heads = task.num_heads;
  const int64_t max_keys = task.max_keys > 0 ? task.max_keys : task.max_positions;
  const int64_t tokens = task.num_tokens;
  const int64_t max_splits = CeilDiv(std::max<int64_t>(max_keys, 1), kSplitKeys);
  const int64_t max_groups = CeilDiv(heads, 2 * kTileHeads);
  const bool splits =
      tokens <= kMaxSplitTokens && tokens * max_groups < context.num_multiprocessors;
  // Fewer heads a block where blocks are few.
  const bool few = (splits ? tokens * max_splits : tokens) * CeilDiv(heads, kTileHeads) <=
                   context.num_multiprocessors;
  const AttendShape shape = ShapeFor(context, task.layout, heads > kTileHeads && !few ? 2 : 1);
  const int64_t groups = CeilDiv(heads, shape.tiles * kTileHeads);

  AttendArguments arguments{task,
                            AttendLayoutOf(task.layout, shape.fetches_ahead),
                            {},
                            int(groups),
                            context.bad.first,
                            context.bad.code};
  const dim3 block(kAttendThreads);
  const size_t shared = size_t(shape.shared_bytes);
  const auto kernel = [&](bool cut) {
    return shape.tiles == 1 ? KernelFor<1>(task.layout.format, cut)
                            : KernelFor<2>(task.layout.format, cut);
  };
  if (splits) {
    const int64_t capacity =
        std::min(PartialCapacity(tokens, max_keys, heads, task.layout),
                 int64_t(task.scratch_bytes) / PartialBytes(heads, task.layout));
    arguments.partials = {
        reinterpret_cast<float2*>(task.scratch + capacity * heads * task.layout.padded_latent() *
                                                     int64_t(sizeof(float))),
        reinterpret_cast<float*>(task.scratch), capacity};
    const int64_t items = std::min(tokens * max_splits, capacity) * groups;  // at most
    const int64_t blocks = std::min<int64_t>(items, context.num_multiprocessors);
    Launch("attention over splits", kernel(true), {dim3(unsigned(blocks)), block, shared},
           context.stream, arguments);
    if (max_splits > 1) {
      const unsigned merges = unsigned(CeilDiv(NumGroups(task.layout.latent), kMergeWarps));
      Launch("merge of attention", MergeKernel,
             {dim3(merges, unsigned(heads), unsigned(tokens)), dim3(kMergeThreads)}, context.stream,
             arguments);
    }
    if (capacity >= tokens * max_splits) return;  // they all fit
  }
  Launch("attention over tokens", kernel(false),
         {dim3(unsigned(groups), unsigned(tokens)), block, shared}, context.stream, arguments);
}

}  // namespace hillstar::cuda
