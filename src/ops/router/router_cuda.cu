// Router: float products by the 256-partial rule, the choice of experts, and rows by expert.
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int kWarps = kNumPartials / kWarpLanes;

// A tile of kRows rows of the matrix and kTokens tokens; thread j has partial j of each product.
// One row alone is fetched, to dynamic shared memory, before the kernel before this one has ended.
template <int kRows, int kTokens>
__global__ void __launch_bounds__(kNumPartials) FloatLinearKernel(FloatLinearSlice s) {
  __shared__ float partials[kWarps][kNumPartials];
  const int64_t first_row = s.first_row + int64_t(blockIdx.x) * kRows;
  const int64_t first_token = int64_t(blockIdx.y) * kTokens;
  const float *w[kRows], *x[kTokens];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = min(first_row + r, s.first_row + s.num_rows - 1);
    w[r] = s.w + row * s.cols;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) x[t] = s.x + min(first_token + t, s.num_tokens - 1) * s.cols;
  float sum[kRows][kTokens] = {};
  LetNextBegin();
  if constexpr (kRows == 1) {
    float* fetched = reinterpret_cast<float*>(DynamicShared());
    for (int64_t i = threadIdx.x; i < s.cols; i += kNumPartials) CopyAsync4(fetched + i, w[0] + i);
    CommitCopies();
    WaitForCopies<0>();  // of this thread's values, which nobody else reads
    w[0] = fetched;
  }
  WaitForPrevious();
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < s.cols; i += kNumPartials) {
    float a[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) a[t] = x[t][i];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float b = w[r][i];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sum[r][t] = __fmaf_rn(a[t], b, sum[r][t]);
    }
  }
  const int warp = threadIdx.x / kWarpLanes;
#pragma unroll
  for (int first = 0; first < kRows * kTokens; first += kWarps) {
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const int which = first + i;
      if (which < kRows * kTokens) {
        partials[i][threadIdx.x] = sum[which / kTokens][which % kTokens];
      }
    }
    __syncthreads();
    const int which = first + warp;
    const float y = which < kRows * kTokens ? FoldByWarp(partials[warp]) : 0.0f;
    const int64_t row = first_row + which / kTokens, t = first_token + which % kTokens;
    if (threadIdx.x % kWarpLanes == 0 && which < kRows * kTokens &&
        row < s.first_row + s.num_rows && t < s.num_tokens) {
      s.y[t * s.y_stride + row] = y;
    }
    __syncthreads();
  }
}

template <int kRows, int kTokens>
void LaunchFloatLinear(const KernelContext& context, const FloatLinearSlice& s) {
  const dim3 grid(unsigned(CeilDiv(s.num_rows, kRows)), unsigned(CeilDiv(s.num_tokens, kTokens)));
  const size_t fetched = kRows == 1 ? size_t(s.cols) * sizeof(float) : 0;
  Launch("a float layer", FloatLinearKernel<kRows, kTokens>, {grid, dim3(kNumPartials), fetched},
         context.stream, s);
}

constexpr int kChooseThreads = 1024;
// Threads that find an expert's rank together, each among a part of the others.
constexpr int kRankThreads = 4;

struct RouteTask {
  RouterChoice choice;
  ExpertGroups groups;  // of a step of one token, or empty
};

// Scores are read four at once by each thread: experts are padded to so many with -infinity.
constexpr int kScoresPadded = 4 * kRankThreads;
__host__ __device__ constexpr int PaddedScores(int num_experts) {
  return (num_experts + kScoresPadded - 1) / kScoresPadded * kScoresPadded;
}

// How many experts come before expert e, whose score is `mine`, of the fours first, first +
// kRankThreads, ...
__device__ __forceinline__ int RankAmong(const float* scores, int num_experts, int first, int e,
                                         float mine) {
  int rank = 0;
#pragma unroll 2
  for (int at = 4 * first; at < PaddedScores(num_experts); at += kScoresPadded) {
    const float4 four = *reinterpret_cast<const float4*>(scores + at);
    const float others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rank += others[i] > mine || (others[i] == mine && at + i < e);
    }
  }
  return rank;
}

// A block a token. Shared: f32 [experts] scores, f32 [chosen] weights, int32 [chosen] experts.
__global__ void __launch_bounds__(kChooseThreads)
    ChooseKernel(RouteTask task, int32_t* bad, int32_t code) {
  const RouterChoice& c = task.choice;
  const int num_experts = int(c.num_experts), num_chosen = int(c.num_chosen);
  float* scores = reinterpret_cast<float*>(DynamicShared());
  const int padded = PaddedScores(num_experts);
  float* weights = scores + padded;
  int32_t* experts = reinterpret_cast<int32_t*>(weights + num_chosen);
  for (int e = threadIdx.x; e < padded; e += kChooseThreads) {
    scores[e] = e < num_experts ? c.bias[e] : __int_as_float(int(0xff800000u));
  }
  LetNextBegin();
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const float* logits = c.logits + t * num_experts;
  bool finite = true;
  for (int e = threadIdx.x; e < num_experts; e += kChooseThreads) {
    finite = finite && IsFinite(logits[e]);
    scores[e] = __fadd_rn(Sigmoid(logits[e]), scores[e]);
  }
  finite = !__syncthreads_or(!finite);
  const int part = threadIdx.x % kRankThreads;
  for (int first = 0; first < num_experts; first += kChooseThreads / kRankThreads) {
    const int e = first + int(threadIdx.x) / kRankThreads;
    int rank = e;
    if (finite) {
      const bool is_there = e < num_experts;
      rank = is_there ? RankAmong(scores, num_experts, part, e, scores[e]) : num_chosen;
#pragma unroll
      for (int bits = 1; bits < kRankThreads; bits *= 2) {
        rank += __shfl_xor_sync(kAllLanes, rank, bits);
      }
    }
    if (part != 0 || rank >= num_chosen) continue;
    experts[rank] = e;
    weights[rank] = finite ? Sigmoid(logits[e]) : 0.0f;
  }
  __syncthreads();
  for (int r = threadIdx.x; r < num_chosen; r += kChooseThreads) {
    float sum = 0;
    int before = 0;
    for (int k = 0; k < num_chosen; ++k) {
      sum = __fadd_rn(sum, weights[k]);
      before += experts[k] < experts[r];
    }
    const float share = c.normalise ? __fdiv_rn(weights[r], __fadd_rn(sum, 1e-20f)) : weights[r];
    c.weights[t * num_chosen + r] = finite ? __fmul_rn(share, c.scaling) : 0.0f;
    c.experts[t * num_chosen + r] = experts[r];
    if (task.groups.begin) {
      task.groups.slots[r] = before;
      task.groups.slot_tokens[before] = 0;
    }
  }
  if (task.groups.begin) {
    for (int e = threadIdx.x; e <= num_experts; e += kChooseThreads) {
      int before = 0;
      for (int k = 0; k < num_chosen; ++k) before += experts[k] < e;
      task.groups.begin[e] = before;
    }
  }
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, t);
}

// A warp an expert: counts the pairs of lower experts, then gives its own their slots in order.
__global__ void __launch_bounds__(kNumPartials)
    GroupKernel(const int32_t* experts, int64_t num_tokens, const int32_t* live,
                int64_t num_experts, int64_t num_chosen, ExpertGroups groups) {
  WaitForPrevious();
  LetNextBegin();
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t e = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  if (e >= num_experts) return;
  const int64_t count = (live ? *live : num_tokens) * num_chosen;
  int before = 0;
  for (int64_t i = lane; i < count; i += kWarpLanes) before += experts[i] < e;
  int32_t next = WarpSum(before);
  if (lane == 0) groups.begin[e] = next;
  for (int64_t first = 0; first < count; first += kWarpLanes) {
    const int64_t i = first + lane;
    const bool is_mine = i < count && experts[i] == e;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    if (is_mine) {
      const int32_t slot = next + __popc(mine & ((1u << lane) - 1));
      groups.slots[i] = slot;
      groups.slot_tokens[slot] = int32_t(i / num_chosen);
    }
    next += __popc(mine);
  }
  if (e != num_experts - 1) return;
  if (lane == 0) groups.begin[num_experts] = int32_t(count);
  for (int64_t i = count + lane; i < num_tokens * num_chosen; i += kWarpLanes) {
    groups.slots[i] = int32_t(i);  // of tokens that are not there
    groups.slot_tokens[i] = int32_t(i / num_chosen);
  }
}

}  // namespace

void FloatLinear(const KernelContext& context, const FloatLinearSlice& layer) {
  // A row has to fit a block's shared memory beside the partial sums.
  const bool fits = size_t(layer.cols) * sizeof(float) + (16 << 10) <= size_t(context.shared_bytes);
  if (!fits) {
    LaunchFloatLinear<8, 8>(context, layer);
  } else if (layer.num_tokens == 1) {
    LaunchFloatLinear<1, 1>(context, layer);
  } else if (layer.num_tokens <= 16) {
    LaunchFloatLinear<1, 4>(context, layer);
  } else {
    LaunchFloatLinear<8, 8>(context, layer);
  }
}

namespace {

void LaunchChoose(const KernelContext& context, const RouteTask& task, int64_t num_tokens) {
  // Loops over scores, weights and experts are unrolled, and loads of the next turn may come early.
  constexpr size_t kReadAhead = 64;
  const size_t shared = size_t(PaddedScores(int(task.choice.num_experts))) * sizeof(float) +
                        size_t(task.choice.num_chosen) * (sizeof(float) + sizeof(int32_t)) +
                        kReadAhead;
  Launch("the choice of experts", ChooseKernel,
         {dim3(unsigned(num_tokens)), dim3(kChooseThreads), shared}, context.stream, task,
         context.bad.first, context.bad.code);
}

}  // namespace

void Choose(const KernelContext& context, const RouterChoice& first_token, int64_t num_tokens) {
  LaunchChoose(context, {first_token, {}}, num_tokens);
}

void ChooseForOne(const KernelContext& context, const RouterChoice& choice,
                  const ExpertGroups& groups) {
  LaunchChoose(context, {choice, groups}, 1);
}

void GroupByExpert(const KernelContext& context, const int32_t* experts, int64_t num_tokens,
                   const int32_t* live, int64_t num_experts, int64_t num_chosen,
                   const ExpertGroups& groups) {
  Launch("grouping by expert", GroupKernel,
         {dim3(unsigned(CeilDiv(num_experts, kWarps))), dim3(kNumPartials)}, context.stream,
         experts, num_tokens, live, num_experts, num_chosen, groups);
}

}  // namespace hillstar::cuda
