// New rows of the KV cache, written straight into their pages: a block of 256 threads a token.
#include "core/check.h"
#include "device/cuda/launch.cuh"
#include "numerics/e4m3.h"
#include "ops/cuda_kernels.h"
#include "ops/rope/rope_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = kNumPartials;
constexpr int kMaxRow = 1024;  // values of latent and rope part, or of an index key

struct BlockScratch {
  float partials[kNumPartials];
  float values[kMaxRow];
  float warps[kThreads / kWarpLanes];
};

__device__ float BlockMax(float x, float* warps) {
  x = WarpMax(x);
  __syncthreads();
  if (threadIdx.x % kWarpLanes == 0) warps[threadIdx.x / kWarpLanes] = x;
  __syncthreads();
  for (int w = 0; w < kThreads / kWarpLanes; ++w) x = warps[w] > x ? warps[w] : x;
  return x;
}

// The largest magnitude of n values, or -1 if one is not finite; for all threads.
__device__ float BlockMagnitude(const float* values, int64_t n, float* warps) {
  float amax = 0;
  bool finite = true;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    finite = finite && IsFinite(values[i]);
    amax = Magnitude(values[i]) > amax ? Magnitude(values[i]) : amax;
  }
  amax = BlockMax(amax, warps);
  return __syncthreads_or(!finite) ? -1.0f : amax;
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

// StoreRowPart: false, and zeros, if a value is not finite.
__device__ bool StorePart(const KvRowPart& part, const float* values, uint8_t* row, float* warps) {
  const float amax = BlockMagnitude(values, part.num_values, warps);
  const bool finite = amax >= 0.0f;
  float scale = 0;
  if (part.format == PartFormat::kE4m3) {
    const bool zero = amax < kSmallestRowAmax;
    const float unit = zero ? 0.0f : __fdiv_rn(amax, kE4m3Max);
    const float inverse = zero ? 0.0f : __fdiv_rn(1.0f, unit);
    for (int64_t i = threadIdx.x; i < part.padded; i += kThreads) {
      row[part.at + i] =
          zero || i >= part.num_values ? uint8_t{0} : ToE4m3(__fmul_rn(values[i], inverse));
    }
    scale = __fmul_rn(unit, 256.0f / kE4m3StepsPerUnit);
  } else {
    const RowScale s = ScaleOf(amax);  // -1 counts as zero
    for (int64_t i = threadIdx.x; i < part.padded; i += kThreads) {
      const PlanePair p =
          i < part.num_values && finite ? ToPlanes(values[i], s.inverse) : PlanePair{0, 0};
      row[part.at + i] = uint8_t(p.hi);
      if (part.format == PartFormat::kTwoPlanes) row[part.low_at() + i] = uint8_t(p.lo);
    }
    scale = s.scale;
  }
  if (threadIdx.x == 0) *reinterpret_cast<float*>(row + part.scale_at) = finite ? scale : 0.0f;
  return finite;
}

__global__ void __launch_bounds__(kThreads)
    AppendLatentsKernel(AppendLatentsTask task, int32_t* bad, int32_t code) {
  __shared__ BlockScratch s;
  WaitForPrevious();
  LetNextBegin();
  const int64_t t = blockIdx.x, latent = task.layout.latent, rope = task.layout.rope;
  if (task.step.live && t >= *task.step.live) return;
  const float* kv = task.kv + t * (latent + rope);
  float partial = 0;
  for (int64_t i = threadIdx.x; i < latent; i += kThreads) {
    partial = __fmaf_rn(kv[i], kv[i], partial);
  }
  const float mean = __fdiv_rn(FoldPartials(partial, s.partials), float(latent));
  const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, task.eps)));
  for (int64_t i = threadIdx.x; i < latent; i += kThreads) {
    s.values[i] = __fmul_rn(__fmul_rn(kv[i], inverse), task.norm_weight[i]);
  }
  const int64_t pos = task.step.positions[t], half = task.step.half_rope;
  const float* cos = task.step.rope_rows + pos * 2 * half;
  for (int64_t i = threadIdx.x; i < rope; i += kThreads) {
    s.values[latent + i] = Rotated(kv + latent, cos, cos + half, half, i);
  }
  __syncthreads();
  uint8_t* row = task.pages.of(t).row(task.layout, pos);
  bool finite = IsFinite(mean);
  finite = StorePart(task.layout.latent_part(), s.values, row, s.warps) && finite;
  finite = StorePart(task.layout.rope_part(), s.values + latent, row, s.warps) && finite;
  if (!finite && threadIdx.x == 0) NoteBad(bad, code, t);
}

__global__ void __launch_bounds__(kThreads)
    AppendIndexKeysKernel(AppendIndexKeysTask task, int32_t* bad, int32_t code) {
  __shared__ BlockScratch s;
  __shared__ float normed[kMaxRow];
  WaitForPrevious();
  LetNextBegin();
  const int64_t t = blockIdx.x, dim = task.layout.dim;
  if (task.step.live && t >= *task.step.live) return;
  const float* k = task.k + t * dim;
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
  const int64_t pos = task.step.positions[t], half = task.step.half_rope;
  const float* cos = task.step.rope_rows + pos * 2 * half;
  for (int64_t i = threadIdx.x; i < dim; i += kThreads) {
    s.values[i] = i < 2 * half ? Rotated(normed, cos, cos + half, half, i) : normed[i];
  }
  __syncthreads();
  const float amax = BlockMagnitude(s.values, dim, s.warps);
  const bool finite = IsFinite(variance) && amax >= 0.0f;
  const RowScale scale = finite ? ScaleOf(amax) : RowScale{0.0f, 0.0f};
  uint8_t* panel = task.pages.of(t).panel(task.layout, pos);
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

}  // namespace

void AppendLatents(const KernelContext& context, const AppendLatentsTask& task) {
  CHECK(task.layout.latent + task.layout.rope <= kMaxRow);
  Launch("appending latents", AppendLatentsKernel,
         {dim3(unsigned(task.step.num_tokens)), dim3(kThreads)}, context.stream, task,
         context.bad.first, context.bad.code);
}

void AppendIndexKeys(const KernelContext& context, const AppendIndexKeysTask& task) {
  CHECK(task.layout.dim <= kMaxRow);
  Launch("appending index keys", AppendIndexKeysKernel,
         {dim3(unsigned(task.step.num_tokens)), dim3(kThreads)}, context.stream, task,
         context.bad.first, context.bad.code);
}

}  // namespace hillstar::cuda
