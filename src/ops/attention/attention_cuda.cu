// Attention on a GPU. Few tokens are cut: kernels find the scores of all splits, their weights and
// values, and merge them, each over the whole GPU (attention_splits_cuda.cuh). A token whose splits
// have no room in the scratch memory, and every token where there are enough to keep the GPU busy,
// has a block for some heads, which goes through the splits and merges as it goes. The bits are the
// same.
#include <algorithm>
#include <cmath>
#include <string>

#include "core/integers.h"
#include "device/cuda/launch.cuh"
#include "hillstar/error.h"
#include "ops/attention/attention_long_cuda.cuh"
#include "ops/attention/attention_splits_cuda.cuh"

namespace hillstar::cuda {
namespace {

// Enough for one token of 64 heads with 262,144 keys, or 64 such tokens with 4,096.
constexpr int64_t kMaxScratchBytes = int64_t{208} << 20;
int64_t TicketsEach(int64_t num_heads, const KvRowLayout& layout) {
  return CeilDiv(num_heads, kTileHeads) * CeilDiv(layout.padded_latent(), kValueLatents);
}
// Of a split.
int64_t ScratchBytes(int64_t num_heads, const KvRowLayout& layout) {
  const int64_t words =
      num_heads * (layout.padded_latent() + kSplit + 2) + kSplit + TicketsEach(num_heads, layout);
  return words * 4;
}
// Splits that there is room for with tasks of these sizes.
int64_t ScratchCapacity(int64_t num_tokens, int64_t max_keys, int64_t num_heads,
                        const KvRowLayout& layout) {
  const int64_t splits = std::min<int64_t>(num_tokens, kMaxSplitTokens) *
                         CeilDiv(std::max<int64_t>(max_keys, 1), kSplitKeys);
  return std::min(splits, kMaxScratchBytes / ScratchBytes(num_heads, layout));
}
SplitScratch ScratchOf(const AttendTask& task, int64_t capacity) {
  const int64_t rows = capacity * task.num_heads;
  SplitScratch s;
  s.capacity = capacity;
  s.values = reinterpret_cast<float*>(task.scratch);
  s.scores = s.values + rows * task.layout.padded_latent();
  s.key_scales = s.scores + rows * kSplit;
  s.numbers = reinterpret_cast<float2*>(s.key_scales + capacity * kSplit);
  s.tickets = reinterpret_cast<int32_t*>(s.numbers + rows);
  s.tickets_each = int32_t(TicketsEach(task.num_heads, task.layout));
  return s;
}

// Merges the partial results of 256 latents of one head, a thread each. They come through a ring
// in shared memory, so that many splits' are on their way.
constexpr int kMergeThreads = 256;
constexpr int kMergeWarps = kMergeThreads / kWarpLanes;
constexpr int kMergeStepsEach = 2;  // that a thread finds
constexpr int kMergeSteps = kMergeStepsEach * kMergeThreads;
constexpr int kMergeAtOnce = 16;             // splits
constexpr int kDeepRing = 5, kFlatRing = 2;  // times as many
constexpr size_t MergeSharedBytes(int ring) {
  return size_t(ring) * kMergeAtOnce * kMergeThreads * 4;
}
struct MergeStep {
  float before, joins, sum, unused;  // exp(largest - next), exp(part's - next), part's sum
};

// The factors of up to kMergeSteps splits from `first` on; *largest is that of all before.
__device__ __forceinline__ void FindMergeSteps(const float2* numbers, int64_t stride, int first,
                                               int num_splits, float* largest, float* shared,
                                               MergeStep* steps) {
  const int thread = int(threadIdx.x), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  const float none = -__uint_as_float(0x7f800000u);
  const int own = first + thread * kMergeStepsEach;
  float2 part[kMergeStepsEach];
#pragma unroll
  for (int i = 0; i < kMergeStepsEach; ++i) {
    part[i] = own + i < num_splits ? numbers[(own + i) * stride] : make_float2(none, 0.0f);
  }
  const auto larger = [](float a, float b) { return b > a ? b : a; };
  float up_to = none;  // the largest up to this thread's last split
  for (int i = 0; i < kMergeStepsEach; ++i) up_to = larger(up_to, part[i].x);
  for (int delta = 1; delta < kWarpLanes; delta *= 2) {
    const float other = __shfl_up_sync(kAllLanes, up_to, delta);
    if (lane >= delta) up_to = larger(up_to, other);
  }
  if (lane == kWarpLanes - 1) shared[warp] = up_to;
  float before = __shfl_up_sync(kAllLanes, up_to, 1);
  __syncthreads();
  before = lane == 0 ? *largest : larger(*largest, before);
  for (int w = 0; w < kMergeWarps; ++w) {
    if (w < warp) before = larger(before, shared[w]);
    *largest = larger(*largest, shared[w]);
  }
#pragma unroll
  for (int i = 0; i < kMergeStepsEach; ++i) {
    const float next = larger(before, part[i].x);
    // The first split starts from zeros.
    steps[thread * kMergeStepsEach + i] = {own + i == 0 ? 0.0f : Exp(__fsub_rn(before, next)),
                                           Exp(__fsub_rn(part[i].x, next)), part[i].y, 0.0f};
    before = next;
  }
  __syncthreads();
}

template <int kRing>
__global__ void __launch_bounds__(kMergeThreads, 2)
    MergeKernel(const __grid_constant__ AttendArguments arguments) {
  __shared__ MergeStep steps[kMergeSteps];
  __shared__ float shared[kMergeWarps];
  __shared__ float results[kMergeThreads];
  const AttendTask& task = arguments.task;
  const int64_t token = blockIdx.z, head = blockIdx.y;
  WaitForPrevious();
  LetNextBegin();
  SplitList list;
  list.Make(task, arguments.scratch.capacity);
  if (token >= list.num_tokens) return;
  const int64_t first_split = list.Begin(int(token));
  const int num_splits = (list.KeysOfToken(int(token)).num + kSplit - 1) / kSplit;
  if (num_splits == 1 && !arguments.merges_all) return;
  const int padded = arguments.layout.padded_latent;
  const int first_latent = int(blockIdx.x) * kMergeThreads, thread = int(threadIdx.x);
  const int64_t at = first_split * task.num_heads + head, stride = task.num_heads * padded;
  // Every copy is of four latents: of splits thread / 64, and every fourth from there.
  constexpr int kCopies = kMergeThreads / 4, kCopySplits = kMergeThreads / kCopies;
  const int copied = first_latent + thread % kCopies * 4;
  const float* from = arguments.scratch.values + at * padded + thread / kCopies * stride +
                      (copied < padded ? copied : first_latent);
  auto* ring = reinterpret_cast<float*>(DynamicShared());
  float* to = ring + thread / kCopies * kMergeThreads + thread % kCopies * 4;
  int loaded = thread / kCopies, slot = 0;  // this thread's next split; where it goes
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < kMergeAtOnce; i += kCopySplits) {
      if (loaded < num_splits) CopyAsync16(to + (slot + i) * kMergeThreads, from);
      loaded += kCopySplits;
      from += kCopySplits * stride;
    }
    slot = slot + kMergeAtOnce == kRing * kMergeAtOnce ? 0 : slot + kMergeAtOnce;
    CommitCopies();
  };
  for (int i = 0; i < kRing - 1; ++i) load();
  float largest = -__uint_as_float(0x7f800000u), sum = 0, z = 0;
  const float* values = ring + thread;
  const auto join = [&](int i, const MergeStep& step) {
    sum = __fmaf_rn(step.sum, step.joins, __fmul_rn(sum, step.before));
    z = __fmaf_rn(values[i * kMergeThreads], step.joins, __fmul_rn(z, step.before));
  };
#pragma unroll 1
  for (int first = 0; first < num_splits; first += kMergeAtOnce) {
    if (first % kMergeSteps == 0) {
      __syncthreads();  // nobody reads the steps before
      FindMergeSteps(arguments.scratch.numbers + at, task.num_heads, first, num_splits, &largest,
                     shared, steps);
    }
    WaitForCopies<kRing - 2>();
    __syncthreads();
    load();
    const MergeStep* step = steps + first % kMergeSteps;
    if (first + kMergeAtOnce <= num_splits) {
#pragma unroll
      for (int i = 0; i < kMergeAtOnce; ++i) join(i, step[i]);
    } else {
#pragma unroll 1
      for (int i = 0; first + i < num_splits; ++i) join(i, step[i]);
    }
    values += kMergeAtOnce * kMergeThreads;
    if (values >= ring + kRing * kMergeAtOnce * kMergeThreads) values = ring + thread;
  }
  const int latent = first_latent + thread;
  results[threadIdx.x] = latent < arguments.layout.latent ? __fdiv_rn(z, sum) : 0.0f;
  __syncthreads();
  const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
  const int group = int(blockIdx.x) * (kMergeThreads / kGroup) + warp;
  if (warp >= kMergeThreads / kGroup || group * kGroup >= padded) return;
  const float* pair = results + warp * kGroup + 2 * lane;
  const PlaneGroup out = GroupOf(task.out, token * task.num_heads + head, group);
  if (!QuantiseByWarp(pair[0], pair[1], out) && lane == 0) {
    NoteBad(arguments.bad, arguments.code, token);
  }
}

// A block for a group of heads of one token, split after split.
template <int kTiles, bool kLow, bool kCodes>
__global__ void __launch_bounds__(kAttendThreads, 1)
    AttendTokensKernel(const __grid_constant__ AttendArguments arguments) {
  using Block = AttendBlock<kTiles, kLow, kCodes>;
  WaitForPrevious();
  const int token = int(blockIdx.y);
  if (token >= *arguments.task.live) return;
  if (arguments.scratch.capacity > 0) {  // a launch before this one took those that fit
    SplitList list;
    list.Make(arguments.task, arguments.scratch.capacity);
    if (token < list.num_tokens) return;
  }
  Block block(arguments.task, arguments.layout);
  block.LoadQueries(token, KeysOf(arguments.task, token), int(blockIdx.x) * Block::kHeads);
  const int num_splits = (block.keys.num + kSplit - 1) / kSplit;
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
  for (shape.tiles = tiles; shape.tiles > 0; shape.tiles /= 2) {
    for (bool fetches_ahead : {true, false}) {
      shape.fetches_ahead = fetches_ahead;
      const AttendLayout in_block = AttendLayoutOf(layout, fetches_ahead);
      shape.shared_bytes = AttendSharedBytes(in_block, shape.tiles);
      if (shape.shared_bytes <= context.shared_bytes) return shape;
    }
  }
  throw Error(ErrorCode::kUnsupported,
              "64 KV rows of " + std::to_string(layout.row_bytes()) +
                  " bytes do not fit the shared memory of a block on this GPU, " +
                  std::to_string(context.shared_bytes) + " bytes");
}

// The kernels for a format.
using AttendKernel = void (*)(AttendArguments);
template <int kTiles>
AttendKernel TokensKernelFor(KvFormat format) {
  switch (format) {
    case KvFormat::kQ15: return AttendTokensKernel<kTiles, true, false>;
    case KvFormat::kQ8: return AttendTokensKernel<kTiles, false, false>;
    case KvFormat::kFp8: break;
  }
  return AttendTokensKernel<kTiles, true, true>;
}
template <int kTiles>
AttendKernel ScoresKernelFor(KvFormat format) {
  switch (format) {
    case KvFormat::kQ15: return AttendScoresKernel<kTiles, true, false>;
    case KvFormat::kQ8: return AttendScoresKernel<kTiles, false, false>;
    case KvFormat::kFp8: break;
  }
  return AttendScoresKernel<kTiles, true, true>;
}
AttendKernel LongKernelFor(KvFormat format, bool overlaps) {
  switch (format) {
    case KvFormat::kQ15: return AttendLongKernel<true, false, false>;
    case KvFormat::kQ8:
      return overlaps ? AttendLongKernel<false, false, true>
                      : AttendLongKernel<false, false, false>;
    case KvFormat::kFp8: break;
  }
  return AttendLongKernel<true, true, false>;
}
struct ValuesKernel {
  AttendKernel kernel;
  int threads;
  int shared_bytes;
};
template <bool kLow, bool kCodes>
ValuesKernel ValuesKernelOf(bool many) {
  using Few = FewValues<kLow, kCodes>;
  using Many = ManyValues<kLow, kCodes>;
  if (many) return {AttendManyValuesKernel<kLow, kCodes>, Many::kThreads, Many::kSharedBytes};
  return {AttendValuesKernel<kLow, kCodes>, Few::kThreads, Few::kSharedBytes};
}
ValuesKernel ValuesKernelFor(KvFormat format, bool many) {
  switch (format) {
    case KvFormat::kQ15: return ValuesKernelOf<true, false>(many);
    case KvFormat::kQ8: return ValuesKernelOf<false, false>(many);
    case KvFormat::kFp8: break;
  }
  return ValuesKernelOf<true, true>(many);
}

// What the kernels of a task read and write, and the products of bytes that they do: as far as the
// keys are known (KernelContext::attended_keys).
struct AttendWork {
  AttendWork(const KernelContext& context, const AttendTask& task) {
    const KvRowLayout& row = task.layout;
    const double keys = double(context.attended_keys), heads = double(task.num_heads);
    const double queries_and_heads = double(task.num_tokens) * heads;
    const double latent = double(row.latent);
    const double planes = row.format == KvFormat::kQ8 ? 2 : 3;  // products of two values
    const double value_bytes = row.format == KvFormat::kQ15 ? 2 : 1;
    rows = keys * double(row.row_bytes());
    queries = 2 * queries_and_heads * double(row.padded());
    scores = 4 * keys * heads;
    weights = 2 * keys * heads;
    latents = keys * latent * value_bytes;
    partials = 4 * heads * latent * std::ceil(keys / double(kSplitKeys));
    results = 2 * queries_and_heads * latent;
    score_products = keys * heads * (planes * latent + 3 * double(row.rope));
    value_products = keys * heads * planes * latent;
  }
  double rows, queries, scores, weights, latents, partials, results;  // bytes
  double score_products, value_products;
};

// REQUIRES more than one split.
void MergeSplits(const KernelContext& context, const AttendTask& task, const AttendWork& work,
                 int64_t max_splits, const AttendArguments& arguments) {
  const int64_t heads = task.num_heads;
  const double bytes = work.partials + work.results;
  if (max_splits <= kMaxJoinedSplits) {
    const int64_t ranges = CeilDiv(task.layout.padded_latent(), kValueLatents);
    const int64_t blocks = CeilDiv(task.num_tokens * heads * ranges, kAttendWarps);
    Launch("merge of attention", AttendJoinKernel,
           {dim3(unsigned(std::min(blocks, 4 * int64_t{context.num_multiprocessors}))),
            dim3(kAttendThreads), 0, bytes},
           context.stream, arguments);
  } else {
    // A deep ring where a multiprocessor has a block or two, else more blocks.
    const int64_t merges = CeilDiv(task.layout.padded_latent(), kMergeThreads);
    const bool deep = merges * heads * task.num_tokens <= 2 * context.num_multiprocessors;
    Launch("merge of attention", deep ? MergeKernel<kDeepRing> : MergeKernel<kFlatRing>,
           {dim3(unsigned(merges), unsigned(heads), unsigned(task.num_tokens)), dim3(kMergeThreads),
            MergeSharedBytes(deep ? kDeepRing : kFlatRing), bytes},
           context.stream, arguments);
  }
}

// With 64 heads a block, where that gives every multiprocessor a split. False: not done.
bool AttendLong(const KernelContext& context, const AttendTask& task, const AttendWork& work,
                int64_t max_splits, AttendArguments arguments) {
  const LongShape in_block = LongShapeOf(task.layout, context.shared_bytes);
  const int64_t splits = std::min(task.num_tokens * max_splits, arguments.scratch.capacity);
  const int64_t groups = CeilDiv(task.num_heads, kLongHeads);
  const int64_t processors = context.num_multiprocessors;
  if (task.num_heads <= kLongHeads / 2 || max_splits == 1 || in_block.num_strips == 0 ||
      splits * groups < processors) {
    return false;
  }
  const int64_t shares = std::min(splits, std::max<int64_t>(processors / groups, 1));
  arguments.layout = in_block.layout;
  arguments.num_strips = in_block.num_strips;
  arguments.num_head_groups = int(groups);
  arguments.merges_all = true;
  Launch("long splits of attention", LongKernelFor(task.layout.format, in_block.overlaps),
         {dim3(unsigned(shares * groups)), dim3(kLongThreads), size_t(in_block.shared_bytes),
          work.rows + work.queries + work.partials, work.score_products + work.value_products},
         context.stream, arguments);
  MergeSplits(context, task, work, max_splits, arguments);
  return true;
}

// The splits of those tokens that there is room for.
void AttendSplits(const KernelContext& context, const AttendTask& task, const AttendWork& work,
                  int64_t max_splits, AttendArguments arguments) {
  const int64_t heads = task.num_heads, tiles = CeilDiv(heads, kTileHeads);
  const int64_t splits = std::min(task.num_tokens * max_splits, arguments.scratch.capacity);
  const int64_t ranges = CeilDiv(task.layout.padded_latent(), kValueLatents);
  const int64_t processors = context.num_multiprocessors;
  const bool is_codes = task.layout.format == KvFormat::kFp8;
  const ValuesKernel many_values = ValuesKernelFor(task.layout.format, true);
  const bool many = tiles > 1 && splits * tiles * ranges > 4 * processors &&
                    many_values.shared_bytes <= context.shared_bytes;
  const dim3 block(kAttendThreads);

  // Scores.
  int score_tiles = many ? 2 : 1, shared = 0;
  for (;; --score_tiles) {
    bool fits = false;
    for (bool stages : {is_codes, false}) {
      arguments.layout = AttendLayoutOf(task.layout, stages);
      arguments.layout.keeps_scores = false;
      shared = AttendSharedBytes(arguments.layout, score_tiles);
      fits = shared <= context.shared_bytes;
      if (fits) break;
    }
    if (fits || score_tiles == 1) break;
  }
  int64_t groups = CeilDiv(heads, score_tiles * kTileHeads);
  const int64_t at_once = std::max<int64_t>(2 * processors / groups, 1);  // two blocks each
  const int64_t shares = std::min(splits * kSplitChunks, at_once);
  arguments.weighs = many && splits >= 2 * shares;
  arguments.num_head_groups = int(groups);
  Launch("scores of attention",
         score_tiles == 1 ? ScoresKernelFor<1>(task.layout.format)
                          : ScoresKernelFor<2>(task.layout.format),
         {dim3(unsigned(shares * groups)), block, size_t(shared),
          work.rows + work.queries + work.scores, work.score_products},
         context.stream, arguments);
  if (many && !arguments.weighs) {
    const int64_t blocks = CeilDiv(splits * heads, kAttendWarps);
    Launch("weights of attention", AttendWeightsKernel,
           {dim3(unsigned(std::min(blocks, 8 * processors))), block, 0, work.scores + work.weights},
           context.stream, arguments);
  }

  // Values.
  const ValuesKernel values = many ? many_values : ValuesKernelFor(task.layout.format, false);
  groups = CeilDiv(tiles, many ? kManyTiles : 1);
  arguments.num_head_groups = int(groups);
  arguments.joins = !many && max_splits <= kMaxJoinedSplits;
  const bool merges = !arguments.joins && max_splits > 1;
  const int64_t items = splits * groups * ranges;
  arguments.num_items = int(items);
  Launch(
      "values of attention", values.kernel,
      {dim3(unsigned(std::min(items, (many ? 2 : 4) * processors))), dim3(unsigned(values.threads)),
       size_t(values.shared_bytes),
       work.latents + (many ? work.weights : work.scores) + (merges ? work.partials : work.results),
       work.value_products},
      context.stream, arguments);
  if (merges) MergeSplits(context, task, work, max_splits, arguments);
}

}  // namespace

size_t AttendScratchBytes(int64_t max_tokens, int64_t max_keys, int64_t num_heads,
                          const KvRowLayout& layout) {
  return size_t(ScratchCapacity(max_tokens, max_keys, num_heads, layout) *
                ScratchBytes(num_heads, layout));
}

void Attend(const KernelContext& context, const AttendTask& task) {
  const int64_t heads = task.num_heads;
  const int64_t max_keys = task.max_keys > 0 ? task.max_keys : task.max_positions;
  const int64_t tokens = task.num_tokens;
  const int64_t max_splits = CeilDiv(std::max<int64_t>(max_keys, 1), kSplitKeys);
  const int64_t max_groups = CeilDiv(heads, 2 * kTileHeads);
  // Fewer heads a block where blocks are few.
  const bool few = tokens * CeilDiv(heads, kTileHeads) <= context.num_multiprocessors;
  const AttendShape shape = ShapeFor(context, task.layout, heads > kTileHeads && !few ? 2 : 1);
  const AttendWork work(context, task);
  AttendArguments arguments{};
  arguments.task = task;
  arguments.layout = AttendLayoutOf(task.layout, shape.fetches_ahead);
  arguments.num_head_groups = int(CeilDiv(heads, shape.tiles * kTileHeads));
  arguments.bad = context.bad.first;
  arguments.code = context.bad.code;
  if (tokens <= kMaxSplitTokens && tokens * max_groups < context.num_multiprocessors) {
    const int64_t capacity =
        std::min(ScratchCapacity(tokens, max_keys, heads, task.layout),
                 int64_t(task.scratch_bytes) / ScratchBytes(heads, task.layout));
    arguments.scratch = ScratchOf(task, capacity);
    if (capacity > 0 && !AttendLong(context, task, work, max_splits, arguments)) {
      AttendSplits(context, task, work, max_splits, arguments);
    }
    if (capacity >= tokens * max_splits) return;  // they all fit
  }
  Launch("attention over tokens",
         shape.tiles == 1 ? TokensKernelFor<1>(task.layout.format)
                          : TokensKernelFor<2>(task.layout.format),
         {dim3(unsigned(arguments.num_head_groups), unsigned(tokens)), dim3(kAttendThreads),
          size_t(shape.shared_bytes), work.rows + work.queries + work.results,
          work.score_products + work.value_products},
         context.stream, arguments);
}

}  // namespace hillstar::cuda
