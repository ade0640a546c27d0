// Router: float products by the 256-partial rule, the choice of experts, and rows by expert.
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int kWarps = kNumPartials / kWarpLanes;

// A tile of kRows rows of the matrix and kTokens tokens; thread j has partial j of each product.
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
  WaitForPrevious();
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
  Launch("a float layer", FloatLinearKernel<kRows, kTokens>, {grid, dim3(kNumPartials)},
         context.stream, s);
}

constexpr int kChooseThreads = 256;

struct RouteTask {
  RouterChoice choice;
  ExpertGroups groups;  // of a step of one token, or empty
};

// Scores are read four at once, in turns of two: experts are padded to so many with -infinity.
constexpr int kScoresPadded = 8;
__host__ __device__ constexpr int PaddedScores(int num_experts) {
  return (num_experts + kScoresPadded - 1) / kScoresPadded * kScoresPadded;
}

// How many experts come before expert e, whose score is `mine`.
__device__ __forceinline__ int RankOf(const float* scores, int num_experts, int e, float mine) {
  int rank = 0;
#pragma unroll 2
  for (int first = 0; first < PaddedScores(num_experts); first += 4) {
    const float4 four = *reinterpret_cast<const float4*>(scores + first);
    const float others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rank += others[i] > mine || (others[i] == mine && first + i < e);
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
  if (int(threadIdx.x) < padded - num_experts) {
    scores[num_experts + threadIdx.x] = __int_as_float(int(0xff800000u));
  }
  LetNextBegin();
  WaitForPrevious();
  const int64_t t = blockIdx.x;
  const float* logits = c.logits + t * num_experts;
  bool finite = true;
  for (int e = threadIdx.x; e < num_experts; e += kChooseThreads) {
    finite = finite && IsFinite(logits[e]);
    scores[e] = __fadd_rn(Sigmoid(logits[e]), c.bias[e]);
  }
  finite = !__syncthreads_or(!finite);
  for (int e = threadIdx.x; e < num_experts; e += kChooseThreads) {
    const int rank = finite ? RankOf(scores, num_experts, e, scores[e]) : e;
    if (rank >= num_chosen) continue;
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
  if (layer.num_tokens == 1) {
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
