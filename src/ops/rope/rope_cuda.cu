// Queries of attention and indexer: RoPE, then planes with one scale a part; a warp for each token
// and head.
#include <cmath>

#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/rope/rope_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 128;

// QuantiseRow by a warp: value(i) of i < n, planes padded with zeros. False, and zeros, if a value
// is not finite. Values are asked for twice, which a cache bears and registers would not.
template <typename ValueFn>
__device__ __forceinline__ bool QuantiseRowByWarp(const ValueFn& value, int64_t n, int64_t padded,
                                                  int8_t* hi, int8_t* lo, float* scale) {
  const int lane = threadIdx.x % kWarpLanes;
  uint32_t largest = 0;  // magnitudes order as their bits do
#pragma unroll 4
  for (int64_t i = lane; i < n; i += kWarpLanes) {
    largest = max(largest, __float_as_uint(Magnitude(value(i))));
  }
  const float amax = __uint_as_float(WarpMax(largest));
  const bool finite = IsFinite(amax);
  const RowScale s = finite ? ScaleOf(amax) : RowScale{0.0f, 0.0f};
#pragma unroll 2
  for (int64_t i = lane; i < padded; i += kWarpLanes) {
    const PlanePair p = i < n && finite ? ToPlanes(value(i), s.inverse) : PlanePair{0, 0};
    hi[i] = p.hi;
    lo[i] = p.lo;
  }
  *scale = s.scale;
  return finite;
}

// Likewise of floats that a warp can keep: at most kKept, whole fours, padded == n.
constexpr int64_t kKept = 512;
__device__ __forceinline__ bool QuantiseKeptRowByWarp(const float* x, int64_t n, int8_t* hi,
                                                      int8_t* lo, float* scale) {
  constexpr int kFours = kKept / (4 * kWarpLanes);
  const int lane = threadIdx.x % kWarpLanes;
  float4 v[kFours];
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kFours; ++k) {
    const int i = 4 * (lane + k * kWarpLanes);
    v[k] = i < n ? *reinterpret_cast<const float4*>(x + i) : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int k = 0; k < kFours; ++k) {
    for (float value : {v[k].x, v[k].y, v[k].z, v[k].w}) {
      largest = max(largest, __float_as_uint(Magnitude(value)));
    }
  }
  const float amax = __uint_as_float(WarpMax(largest));
  const bool finite = IsFinite(amax);
  const RowScale s = finite ? ScaleOf(amax) : RowScale{0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < kFours; ++k) {
    const int i = 4 * (lane + k * kWarpLanes);
    if (i >= n) break;
    const PlaneWords a = ToPlaneWords(v[k].x, s.inverse), b = ToPlaneWords(v[k].y, s.inverse),
                     c = ToPlaneWords(v[k].z, s.inverse), d = ToPlaneWords(v[k].w, s.inverse);
    const uint32_t high = LowBytes(a.hi, b.hi, c.hi, d.hi), low = LowBytes(a.lo, b.lo, c.lo, d.lo);
    *reinterpret_cast<uint32_t*>(hi + i) = finite ? high : 0;
    *reinterpret_cast<uint32_t*>(lo + i) = finite ? low : 0;
  }
  *scale = s.scale;
  return finite;
}

__device__ __forceinline__ int64_t RowOfWarp() {
  return (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarpLanes;
}

__global__ void __launch_bounds__(kThreads)
    QueriesKernel(QueriesTask task, float softmax_scale, int32_t* bad, int32_t code) {
  LetNextBegin();
  const QueryShape& shape = task.shape;
  const int64_t r = RowOfWarp();
  if (r >= task.step.num_tokens * shape.num_heads) return;
  const int64_t t = r / shape.num_heads, h = r % shape.num_heads;
  if (task.step.live && t >= *task.step.live) return;  // the step's tables are old
  const KvRowLayout layout{shape.latent, shape.rope};
  int8_t* hi = task.out.planes.hi + r * task.out.planes.stride;
  int8_t* lo = task.out.planes.lo + r * task.out.planes.stride;
  const float* latents = task.latents + r * shape.latent;
  const float* in = task.rope.data + t * task.rope.token_stride + h * task.rope.head_stride;
  const int64_t half = task.step.half_rope;
  const float* cos = task.step.rope_rows + task.step.positions[t] * 2 * half;
  float scales[2];
  WaitForPrevious();
  bool finite = true;
  if (shape.latent <= kKept && shape.latent % 4 == 0 && shape.latent == layout.padded_latent()) {
    finite = QuantiseKeptRowByWarp(latents, shape.latent, hi, lo, &scales[0]);
  } else {
    finite = QuantiseRowByWarp([&](int64_t i) { return latents[i]; }, shape.latent,
                               layout.padded_latent(), hi, lo, &scales[0]);
  }
  hi += layout.padded_latent();
  lo += layout.padded_latent();
  finite = QuantiseRowByWarp([&](int64_t i) { return Rotated(in, cos, cos + half, half, i); },
                             shape.rope, layout.padded_rope(), hi, lo, &scales[1]) &&
           finite;
  if (threadIdx.x % kWarpLanes != 0) return;
  task.out.latent_scale[r] = __fmul_rn(__fmul_rn(scales[0], 0x1p-8f), softmax_scale);
  task.out.rope_scale[r] = __fmul_rn(__fmul_rn(scales[1], 0x1p-8f), softmax_scale);
  if (!finite) NoteBad(bad, code, t);
}

__global__ void __launch_bounds__(kThreads)
    IndexQueriesKernel(IndexQueriesTask task, float dim_scale, float head_scale, int32_t* bad,
                       int32_t code) {
  WaitForPrevious();
  LetNextBegin();
  const int64_t heads = task.shape.num_heads, dim = task.shape.nope + task.shape.rope;
  const int64_t r = RowOfWarp();
  if (r >= task.step.num_tokens * heads) return;
  const int64_t t = r / heads, half = task.step.half_rope;
  if (task.step.live && t >= *task.step.live) return;
  if (task.step.positions[t] < task.max_keys) return;
  const float* q = task.q + r * dim;
  const float* cos = task.step.rope_rows + task.step.positions[t] * 2 * half;
  const auto value = [&](int64_t i) {
    return i < 2 * half ? Rotated(q, cos, cos + half, half, i) : q[i];
  };
  float scale;
  const RowPlanes& planes = task.out.planes;
  const bool finite = QuantiseRowByWarp(value, dim, planes.stride, planes.hi + r * planes.stride,
                                        planes.lo + r * planes.stride, &scale);
  if (threadIdx.x % kWarpLanes != 0) return;
  const float weight = __fmul_rn(__fmul_rn(task.weights[r], head_scale),
                                 __fmul_rn(__fmul_rn(scale, 0x1p22f), dim_scale));
  task.out.weight[r] = weight;
  if (!finite || !IsFinite(weight)) NoteBad(bad, code, t);
}

// A warp a query of so many dimensions, which are read as floats and written as planes.
LaunchShape ShapeFor(int64_t queries, int64_t dims) {
  return {dim3(unsigned(CeilDiv(queries * kWarpLanes, kThreads))), dim3(kThreads), 0,
          double(queries * dims * 6)};
}

}  // namespace

void MakeQueries(const KernelContext& context, const QueriesTask& task) {
  const float softmax_scale = 1.0f / std::sqrt(float(task.shape.nope + task.shape.rope));
  const int64_t queries = task.step.num_tokens * task.shape.num_heads;
  Launch("queries", QueriesKernel, ShapeFor(queries, task.shape.latent + task.shape.rope),
         context.stream, task, softmax_scale, context.bad.first, context.bad.code);
}

void MakeIndexQueries(const KernelContext& context, const IndexQueriesTask& task) {
  const float dim_scale = 1.0f / std::sqrt(float(task.shape.nope + task.shape.rope));
  const float head_scale = 1.0f / std::sqrt(float(task.shape.num_heads));
  const int64_t queries = task.step.num_tokens * task.shape.num_heads;
  Launch("index queries", IndexQueriesKernel, ShapeFor(queries, task.shape.nope + task.shape.rope),
         context.stream, task, dim_scale, head_scale, context.bad.first, context.bad.code);
}

}  // namespace hillstar::cuda
