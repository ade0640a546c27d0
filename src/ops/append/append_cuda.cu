// New rows of the KV cache, written straight into their pages: a block of 256 threads a token.
#include "core/check.h"
#include "device/cuda/launch.cuh"
#include "numerics/e4m3.h"
#include "ops/cuda_kernels.h"
#include "ops/norm/norm_cuda.cuh"
#include "ops/rope/rope_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = kNumPartials;
constexpr int kMaxRow = 1024;  // values of latent and rope part, or of an index key

struct BlockScratch {
  float partials[kNumPartials];
  float values[kMaxRow];
  float fetched[kMaxRow];  // weights of the norm
  uint32_t warps[2][kThreads / kWarpLanes];
};

// The largest magnitudes of values[0, n) and values[n, n + m); for all threads. Beyond the finite
// numbers (infinite or NaN) where a value is: magnitudes order as their bits do.
struct Magnitudes {
  float first, second;
};
__device__ __forceinline__ Magnitudes BlockMagnitudes(const float* values, int64_t n, int64_t m,
                                                      uint32_t (*warps)[kThreads / kWarpLanes]) {
  uint32_t largest[2] = {0, 0};
  for (int64_t i = threadIdx.x; i < n + m; i += kThreads) {
    uint32_t& mine = largest[i < n ? 0 : 1];
    mine = max(mine, __float_as_uint(Magnitude(values[i])));
  }
  const int warp = threadIdx.x / kWarpLanes, lane = threadIdx.x % kWarpLanes;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    largest[part] = WarpMax(largest[part]);
    if (lane == 0) warps[part][warp] = largest[part];
  }
  __syncthreads();
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    for (int w = 0; w < kThreads / kWarpLanes; ++w) {
      largest[part] = max(largest[part], warps[part][w]);
    }
  }
  return {__uint_as_float(largest[0]), __uint_as_float(largest[1])};
}

// numerics/e4m3.h.
__device__ uint8_t ToE4m3(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 24) & 0x80u;
  if (magnitude < __float_as_uint(0x1p-6f)) {
    return uint8_t(sign | uint32_t(RoundToInteger(__fmul_rn(__uint_as_float(magnitude), 512.0f))));
  }
  const uint32_t odd = (magnitude >> 20) & 1u;
  const uint32_t code = ((magnitude + (1u << 19) - 1 + odd) >> 20) - ((127 - 7) << 3);
  return uint8_t(sign | (code < 0x7e ? code : 0x7e));
}

// StoreRowPart of values whose largest magnitude is `amax`: false, and zeros, if one is not finite.
__device__ __forceinline__ bool StorePart(const KvRowPart& part, const float* values, float amax,
                                          uint8_t* row) {
  const bool finite = IsFinite(amax);
  float scale = 0;
  if (part.format == PartFormat::kE4m3) {
    const bool zero = !finite || amax < kSmallestRowAmax;
    const float unit = zero ? 0.0f : __fdiv_rn(amax, kE4m3Max);
    const float inverse = zero ? 0.0f : __fdiv_rn(1.0f, unit);
    for (int64_t i = threadIdx.x; i < part.padded; i += kThreads) {
      row[part.at + i] =
          zero || i >= part.num_values ? uint8_t{0} : ToE4m3(__fmul_rn(values[i], inverse));
    }
    scale = __fmul_rn(unit, 256.0f / kE4m3StepsPerUnit);
  } else {
    const RowScale s = finite ? ScaleOf(amax) : RowScale{0.0f, 0.0f};
    for (int64_t i = threadIdx.x; i < part.padded; i += kThreads) {
      const PlanePair p =
          i < part.num_values && finite ? ToPlanes(values[i], s.inverse) : PlanePair{0, 0};
      row[part.at + i] = uint8_t(p.hi);
      if (part.format == PartFormat::kTwoPlanes) row[part.low_at() + i] = uint8_t(p.lo);
    }
    scale = s.scale;
  }
  if (threadIdx.x == 0) *reinterpret_cast<float*>(row + part.scale_at) = scale;
  return finite;
}

// Token t's latent row, by 256 threads.
__device__ void AppendLatent(const AppendLatentsTask& task, int64_t t, BlockScratch& s,
                             int32_t* bad, int32_t code) {
  const int64_t latent = task.layout.latent, rope = task.layout.rope;
  LetNextBegin();
  // What the kernel before this one does not change; the step's tables are older.
  if (task.step.live && t >= *task.step.live) return;
  const int64_t pos = task.step.positions[t], half = task.step.half_rope;
  uint8_t* row = task.pages.of(t).row(task.layout, pos);
  const float* kv = task.kv + t * (latent + rope);
  const float* cos = task.step.rope_rows + pos * 2 * half;
  for (int64_t i = threadIdx.x; i < latent; i += kThreads) {
    CopyAsync4(s.fetched + i, task.norm_weight + i);
  }
  for (int64_t i = threadIdx.x; i < 2 * half; i += kThreads) {
    CopyAsync4(s.fetched + latent + i, cos + i);
  }
  cos = s.fetched + latent;
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  WaitForPrevious();
  float partial = 0;
  for (int64_t i = threadIdx.x; i < latent; i += kThreads) {
    partial = __fmaf_rn(kv[i], kv[i], partial);
  }
  for (int64_t i = threadIdx.x; i < rope; i += kThreads) {
    s.values[latent + i] = Rotated(kv + latent, cos, cos + half, half, i);
  }
  const float mean = __fdiv_rn(FoldPartials(partial, s.partials), float(latent));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, task.eps)));
  for (int64_t i = threadIdx.x; i < latent; i += kThreads) {
    s.values[i] = __fmul_rn(__fmul_rn(kv[i], inverse), s.fetched[i]);
  }
  __syncthreads();
  const Magnitudes amax = BlockMagnitudes(s.values, latent, rope, s.warps);
  bool finite = IsFinite(mean);
  finite = StorePart(task.layout.latent_part(), s.values, amax.first, row) && finite;
  finite = StorePart(task.layout.rope_part(), s.values + latent, amax.second, row) && finite;
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, t);
}

// Token t's index key, likewise. normed: f32 [dim].
__device__ void AppendIndexKey(const AppendIndexKeysTask& task, int64_t t, BlockScratch& s,
                               float* normed, int32_t* bad, int32_t code) {
  const int64_t dim = task.layout.dim;
  LetNextBegin();
  if (task.step.live && t >= *task.step.live) return;
  const int64_t pos = task.step.positions[t], half = task.step.half_rope;
  uint8_t* panel = task.pages.of(t).panel(task.layout, pos);
  const float* cos = task.step.rope_rows + pos * 2 * half;
  const float* k = task.k + t * dim;
  WaitForPrevious();
  float partial = 0;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) partial = __fadd_rn(partial, k[i]);
  const float mean = __fdiv_rn(FoldPartials(partial, s.partials), float(dim));
  partial = 0;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    const float centred = __fsub_rn(k[i], mean);
    partial = __fmaf_rn(centred, centred, partial);
  }
  const float variance = __fdiv_rn(FoldPartials(partial, s.partials), float(dim));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, task.norm.eps)));
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    normed[i] = __fmaf_rn(__fmul_rn(__fsub_rn(k[i], mean), inverse), task.norm.weight[i],
                          task.norm.bias[i]);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    s.values[i] = i < 2 * half ? Rotated(normed, cos, cos + half, half, i) : normed[i];
  }
  __syncthreads();
  const float amax = BlockMagnitudes(s.values, dim, 0, s.warps).first;
  const bool finite = IsFinite(variance) && IsFinite(amax);
  const RowScale scale = finite ? ScaleOf(amax) : RowScale{0.0f, 0.0f};
  const int64_t lane = pos % kIndexPanelTokens;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    const PlanePair p = finite ? ToPlanes(s.values[i], scale.inverse) : PlanePair{0, 0};
    panel[task.layout.high_at(lane, i)] = uint8_t(p.hi + 128);
    if (task.layout.num_planes == 2) panel[task.layout.low_at(lane, i)] = uint8_t(p.lo + 128);
  }
  if (threadIdx.x != 0) return;
  *reinterpret_cast<float*>(panel + task.layout.scales_at() + 4 * lane) = scale.scale;
  if (!finite) NoteBad(bad, code, t);
}

enum Role { kNorm, kLatents, kIndexKeys };

// Block (t, role - first_role).
__global__ void __launch_bounds__(kThreads) RowsKernel(const __grid_constant__ FinishTask task,
                                                       int first_role, int32_t* bad, int32_t code) {
  __shared__ BlockScratch s;
  __shared__ float normed[kMaxRow];
  const int role = first_role + int(blockIdx.y);
  if (role == kNorm) return NormRow<kThreads>(task.norm, blockIdx.x, bad, code);
  if (role == kLatents) {
    AppendLatent(task.latents, blockIdx.x, s, bad, code);
  } else {
    AppendIndexKey(task.index_keys, blockIdx.x, s, normed, bad, code);
  }
}

void LaunchRows(const KernelContext& context, const FinishTask& task, int64_t num_tokens,
                int first_role, int num_roles) {
  CHECK(task.latents.layout.latent + task.latents.layout.rope <= kMaxRow);
  CHECK(task.index_keys.layout.dim <= kMaxRow);
  const KvRowLayout& row = task.latents.layout;
  const IndexKeyLayout& key = task.index_keys.layout;
  const bool has_keys = first_role + num_roles > kIndexKeys;
  double bytes = first_role == kNorm ? NormBytes(task.norm) : 0;
  if (first_role <= kLatents) {
    bytes += double(num_tokens * (4 * (row.latent + row.rope) + row.row_bytes()));
  }
  if (has_keys) {
    bytes += double(num_tokens * (4 * key.dim + key.panel_bytes() / kIndexPanelTokens));
  }
  Launch("new rows", RowsKernel,
         {dim3(unsigned(num_tokens), unsigned(num_roles)), dim3(kThreads),
          NormSharedBytes(task.norm.n, 0), bytes},
         context.stream, task, first_role, context.bad.first, context.bad.code);
}

}  // namespace

void FinishProjections(const KernelContext& context, const FinishTask& task) {
  const int num_roles = task.has_index_keys ? 3 : 2;
  CHECK(task.norm.n <= kMaxNormRow);
  LaunchRows(context, task, task.norm.rows, kNorm, num_roles);
}

void AppendLatents(const KernelContext& context, const AppendLatentsTask& task) {
  LaunchRows(context, {{}, task, false, {}}, task.step.num_tokens, kLatents, 1);
}

void AppendIndexKeys(const KernelContext& context, const AppendIndexKeysTask& task) {
  LaunchRows(context, {{}, {}, true, task}, task.step.num_tokens, kIndexKeys, 1);
}

}  // namespace hillstar::cuda
