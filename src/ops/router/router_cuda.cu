// Router: float products by the 256-partial rule, the choice of experts, and rows by expert.
#include "core/check.h"
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int kWarps = kNumPartials / kWarpLanes;
constexpr size_t kStaticBytes = 16 << 10;  // of shared memory that a kernel declares, at most

// Values threadIdx.x, threadIdx.x + 256, ... of a row to shared memory, for this thread alone.
__device__ __forceinline__ void FetchRow(float* to, const float* row, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += kNumPartials) CopyAsync4(to + i, row + i);
  CommitCopies();
  WaitForCopies<0>();
}

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
    FetchRow(fetched, w[0], s.cols);
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

// Weights and inputs are read, results written.
void AddWork(const FloatLinearSlice& s, LaunchShape* shape) {
  const double rows = double(s.num_rows), cols = double(s.cols), tokens = double(s.num_tokens);
  shape->bytes += 4 * (rows * cols + cols * tokens + rows * tokens);
}

template <int kRows, int kTokens>
void LaunchFloatLinear(const KernelContext& context, const FloatLinearSlice& s) {
  const dim3 grid(unsigned(CeilDiv(s.num_rows, kRows)), unsigned(CeilDiv(s.num_tokens, kTokens)));
  const size_t fetched = kRows == 1 ? size_t(s.cols) * sizeof(float) : 0;
  LaunchShape shape{grid, dim3(kNumPartials), fetched};
  AddWork(s, &shape);
  Launch("a float layer", FloatLinearKernel<kRows, kTokens>, shape, context.stream, s);
}

struct RouteTask {
  RouterChoice choice;
  ExpertGroups groups;  // of a step of one token, or empty
  uint64_t* uses = nullptr;
};

// Nobody waits for the sum.
__device__ __forceinline__ void AddUses(uint64_t* uses, int64_t expert, int count) {
  using Word = unsigned long long;
  if (uses && count > 0) atomicAdd(reinterpret_cast<Word*>(uses + expert), Word(count));
}

// What a block chooses with, in shared memory.
struct ChoiceScratch {
  uint32_t* keys;    // [experts] scores as integers of the same order; 0: chosen already
  float* gates;      // [experts] sigmoids of the logits; before that the bias
  int32_t* experts;  // [chosen]

  __device__ ChoiceScratch(uint8_t* bytes, const RouterChoice& c)
      : keys(reinterpret_cast<uint32_t*>(bytes)),
        gates(reinterpret_cast<float*>(keys + c.num_experts)),
        experts(reinterpret_cast<int32_t*>(gates + c.num_experts)) {}
  static constexpr size_t Bytes(const RouterChoice& c) {
    return size_t(2 * c.num_experts + c.num_chosen) * sizeof(int32_t);
  }
  // Before the kernel before this one has ended.
  __device__ __forceinline__ void Fetch(const RouterChoice& c) const {
    for (int e = threadIdx.x; e < int(c.num_experts); e += kNumPartials) gates[e] = c.bias[e];
  }
};

// Scores are not NaN; zeros of both signs are equal.
__device__ __forceinline__ uint32_t KeyOf(float score) {
  return OrderedBits(__fadd_rn(score, 0.0f));
}

// The first of the experts that are left, by a warp, for all its lanes.
__device__ __forceinline__ int BestExpert(const uint32_t* keys, int num_experts) {
  uint32_t best = 0;
  int at = num_experts;
#pragma unroll 8
  for (int e = threadIdx.x % kWarpLanes; e < num_experts; e += kWarpLanes) {
    const uint32_t key = keys[e];
    if (key > best) {
      best = key;
      at = e;
    }
  }
  const uint32_t largest = WarpMax(best);
  return __reduce_min_sync(kAllLanes, best == largest ? at : num_experts);
}

// The choice of token t, by all threads; begins with the bias in scratch.gates, each thread's own.
__device__ __forceinline__ void ChooseByBlock(const RouteTask& task, int64_t t,
                                              const ChoiceScratch& scratch, int32_t* bad,
                                              int32_t code) {
  const RouterChoice& c = task.choice;
  const int num_experts = int(c.num_experts), num_chosen = int(c.num_chosen);
  const float* logits = c.logits + t * num_experts;
  bool finite = true;
  for (int e = threadIdx.x; e < num_experts; e += kNumPartials) {
    const float logit = __ldcg(logits + e), gate = Sigmoid(logit);
    finite = finite && IsFinite(logit);
    scratch.keys[e] = KeyOf(__fadd_rn(gate, scratch.gates[e]));
    scratch.gates[e] = gate;
  }
  finite = !__syncthreads_or(!finite);
  if (threadIdx.x < kWarpLanes) {
    float sum = 0;
    for (int r = 0; r < num_chosen; ++r) {
      const int e = finite ? BestExpert(scratch.keys, num_experts) : r;
      sum = __fadd_rn(sum, scratch.gates[e]);
      __syncwarp();
      if (threadIdx.x == 0) {
        scratch.keys[e] = 0;
        scratch.experts[r] = e;
      }
      __syncwarp();
    }
    for (int r = threadIdx.x; r < num_chosen; r += kWarpLanes) {
      const int e = scratch.experts[r];
      const float gate = scratch.gates[e];
      const float share = c.normalise ? __fdiv_rn(gate, __fadd_rn(sum, 1e-20f)) : gate;
      c.weights[t * num_chosen + r] = finite ? __fmul_rn(share, c.scaling) : 0.0f;
      c.experts[t * num_chosen + r] = e;
    }
    if (!finite && threadIdx.x == 0) NoteBad(bad, code, t);
  }
  if (!task.groups.begin) return;
  __syncthreads();
  // Threads beyond the experts' have the chosen ones' slots.
  for (int i = threadIdx.x; i <= num_experts + num_chosen; i += kNumPartials) {
    const int r = i - num_experts - 1, e = r < 0 ? i : scratch.experts[r];
    int before = 0;
#pragma unroll 4
    for (int k = 0; k < num_chosen; ++k) before += scratch.experts[k] < e;
    if (r < 0) {
      task.groups.begin[e] = before;
    } else {
      task.groups.slots[r] = before;
      task.groups.slot_tokens[before] = 0;
      AddUses(task.uses, e, 1);
    }
  }
}

// A block a token.
__global__ void __launch_bounds__(kNumPartials)
    ChooseKernel(RouteTask task, int32_t* bad, int32_t code) {
  const ChoiceScratch scratch(DynamicShared(), task.choice);
  scratch.Fetch(task.choice);
  LetNextBegin();
  WaitForPrevious();
  ChooseByBlock(task, blockIdx.x, scratch, bad, code);
}

// One token: a block a row of the router's matrix; the last to end chooses.
__global__ void __launch_bounds__(kNumPartials)
    RouteKernel(FloatLinearSlice s, RouteTask task, int32_t* ticket, int32_t* bad, int32_t code) {
  __shared__ float partials[kNumPartials];
  __shared__ bool is_last;
  const ChoiceScratch scratch(DynamicShared(), task.choice);
  float* w = reinterpret_cast<float*>(DynamicShared() + ChoiceScratch::Bytes(task.choice));
  LetNextBegin();
  FetchRow(w, s.w + blockIdx.x * s.cols, s.cols);
  scratch.Fetch(task.choice);
  WaitForPrevious();
  float sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < s.cols; i += kNumPartials) sum = __fmaf_rn(s.x[i], w[i], sum);
  partials[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kWarpLanes) {
    const float y = FoldByWarp(partials);
    if (threadIdx.x == 0) {
      s.y[blockIdx.x] = y;
      __threadfence();
      is_last = atomicAdd(ticket, 1) == int32_t(gridDim.x) - 1;
    }
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  ChooseByBlock(task, 0, scratch, bad, code);
  if (threadIdx.x == 0) *ticket = 0;
}

// A warp an expert: counts the pairs of lower experts, then gives its own their slots in order.
__global__ void __launch_bounds__(kNumPartials) GroupKernel(GroupTask task) {
  WaitForPrevious();
  LetNextBegin();
  const int32_t* experts = task.experts;
  const int64_t num_experts = task.num_experts, num_chosen = task.num_chosen;
  const ExpertGroups& groups = task.groups;
  const int lane = threadIdx.x % kWarpLanes;
  const int64_t e = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarpLanes;
  if (e >= num_experts) return;
  const int64_t count = (task.live ? *task.live : task.num_tokens) * num_chosen;
  int before = 0;
  for (int64_t i = lane; i < count; i += kWarpLanes) before += experts[i] < e;
  const int32_t begin = WarpSum(before);
  int32_t next = begin;
  if (lane == 0) groups.begin[e] = begin;
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
  if (lane == 0) AddUses(task.uses, e, next - begin);
  if (e != num_experts - 1) return;
  if (lane == 0) groups.begin[num_experts] = int32_t(count);
  for (int64_t i = count + lane; i < task.num_tokens * num_chosen; i += kWarpLanes) {
    groups.slots[i] = int32_t(i);  // of tokens that are not there
    groups.slot_tokens[i] = int32_t(i / num_chosen);
  }
}

}  // namespace

void FloatLinear(const KernelContext& context, const FloatLinearSlice& layer) {
  const bool fits =
      size_t(layer.cols) * sizeof(float) + kStaticBytes <= size_t(context.shared_bytes);
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

void Choose(const KernelContext& context, const RouterChoice& first_token, int64_t num_tokens) {
  Launch("the choice of experts", ChooseKernel,
         {dim3(unsigned(num_tokens)), dim3(kNumPartials), ChoiceScratch::Bytes(first_token),
          double(num_tokens * (first_token.num_experts + 2 * first_token.num_chosen) * 4)},
         context.stream, RouteTask{first_token, {}}, context.bad.first, context.bad.code);
}

bool RouteOne(const KernelContext& context, const FloatLinearSlice& router,
              const RouterChoice& choice, const ExpertGroups& groups, uint64_t* uses,
              int32_t* ticket) {
  CHECK(router.num_tokens == 1 && router.first_row == 0 && router.num_rows == choice.num_experts);
  const size_t shared = ChoiceScratch::Bytes(choice) + size_t(router.cols) * sizeof(float);
  if (shared + kStaticBytes > size_t(context.shared_bytes)) return false;
  LaunchShape shape{dim3(unsigned(router.num_rows)), dim3(kNumPartials), shared};
  AddWork(router, &shape);
  Launch("the router", RouteKernel, shape, context.stream, router, RouteTask{choice, groups, uses},
         ticket, context.bad.first, context.bad.code);
  return true;
}

void GroupByExpert(const KernelContext& context, const GroupTask& task) {
  Launch("grouping by expert", GroupKernel,
         {dim3(unsigned(CeilDiv(task.num_experts, kWarps))), dim3(kNumPartials), 0,
          double((3 * task.num_tokens * task.num_chosen + task.num_experts) * 4)},
         context.stream, task);
}

}  // namespace hillstar::cuda
