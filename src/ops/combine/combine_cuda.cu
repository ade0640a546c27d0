// Sums and copies of rows, and rows of the embedding.
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t IndexOfThread() {
  return int64_t(blockIdx.x) * kThreads + threadIdx.x;
}

__global__ void __launch_bounds__(kThreads)
    MixKernel(Ops::Mixture m, int64_t num_tokens, int64_t n, float* x) {
  WaitForPrevious();
  LetNextBegin();
  const int64_t i = IndexOfThread();
  if (i >= num_tokens * n) return;
  const int64_t t = i / n, column = i % n;
  float sum = 0;
  for (int64_t k = 0; k < m.num_ranks; ++k) {
    const float row = m.rows[m.slots[t * m.num_ranks + k] * n + column];
    sum = __fmaf_rn(m.weights[t * m.num_ranks + k], row, sum);
  }
  x[i] = __fadd_rn(x[i], m.shared ? __fadd_rn(sum, m.shared[i]) : sum);
}

__global__ void __launch_bounds__(kThreads) AddRowsKernel(float* x, const float* y, int64_t count) {
  WaitForPrevious();
  LetNextBegin();
  const int64_t i = IndexOfThread();
  if (i < count) x[i] = __fadd_rn(x[i], y[i]);
}

__global__ void __launch_bounds__(kThreads)
    ConcatenateKernel(const float* a, const float* b, int64_t rows, int64_t n, float* out) {
  WaitForPrevious();
  LetNextBegin();
  const int64_t i = IndexOfThread();
  if (i >= 2 * rows * n) return;
  const int64_t row = i / (2 * n), column = i % (2 * n);
  out[i] = column < n ? a[row * n + column] : b[row * n + column - n];
}

// The weight of `row` (0..15) and input i of a tile: numerics/weights.h, ReadTile and
// DequantiseWeight.
__device__ float TileWeight(WeightFormat format, const uint8_t* tile, int row, int i) {
  constexpr int kVector = 64;  // bytes: four inputs of 16 rows
  const auto byte = [&](int input) { return tile[input / 4 * kVector + row * 4 + input % 4]; };
  const auto half = [&](int at) {
    return HalfBitsToFloat(reinterpret_cast<const uint16_t*>(tile + at)[row]);
  };
  if (format == WeightFormat::kW4) {
    const int nibbles = byte(i % (kGroup / 2));
    const int value = (i < kGroup / 2 ? nibbles & 15 : nibbles >> 4) - 8;
    return __fmul_rn(float(value), half(kGroup / 8 * kVector));
  }
  const int high = int(byte(i)) - 128;
  constexpr int kPlane = kGroup / 4 * kVector;
  if (format == WeightFormat::kW8) return __fmul_rn(float(high), half(kPlane));
  const int low = int(tile[kPlane + i / 4 * kVector + row * 4 + i % 4]) - 128;
  const float scale = reinterpret_cast<const float*>(tile + 2 * kPlane)[row];
  return __fmul_rn(float(256 * high + low), __fmul_rn(scale, 0x1p-8f));
}

__global__ void __launch_bounds__(kThreads)
    EmbedKernel(WeightView table, size_t tile_bytes, const int32_t* ids, int64_t num_tokens,
                float* x) {
  WaitForPrevious();
  LetNextBegin();
  const int64_t i = IndexOfThread();
  if (i >= num_tokens * table.cols) return;
  const int64_t row = ids[i / table.cols], column = i % table.cols;
  if (table.format == WeightFormat::kF32) {
    x[i] = reinterpret_cast<const float*>(table.data)[row * table.cols + column];
    return;
  }
  const uint8_t* tile = table.panel(row / kPanelRows) + size_t(column / kGroup) * tile_bytes;
  x[i] = TileWeight(table.format, tile, int(row % kPanelRows), int(column % kGroup));
}

// A thread an element, of which each reads and writes so many bytes.
LaunchShape ShapeFor(int64_t count, double bytes_each) {
  return {dim3(unsigned(CeilDiv(count, kThreads))), dim3(kThreads), 0, double(count) * bytes_each};
}

}  // namespace

void Mix(const KernelContext& context, const Ops::Mixture& mixture, int64_t num_tokens, int64_t n,
         float* x) {
  const int64_t rows = mixture.num_ranks + (mixture.shared ? 1 : 0) + 2;
  Launch("mixing experts", MixKernel, ShapeFor(num_tokens * n, 4.0 * double(rows)), context.stream,
         mixture, num_tokens, n, x);
}

void AddRows(const KernelContext& context, float* x, const float* y, int64_t count) {
  Launch("adding rows", AddRowsKernel, ShapeFor(count, 12), context.stream, x, y, count);
}

void Concatenate(const KernelContext& context, const float* a, const float* b, int64_t rows,
                 int64_t n, float* out) {
  Launch("joining rows", ConcatenateKernel, ShapeFor(2 * rows * n, 8), context.stream, a, b, rows,
         n, out);
}

void Embed(const KernelContext& context, const WeightView& table, const int32_t* ids,
           int64_t num_tokens, float* x) {
  const size_t tile_bytes = table.format == WeightFormat::kF32 ? 0 : TileBytes(table.format);
  const double weight_bytes = tile_bytes == 0 ? 4 : double(tile_bytes) / (kPanelRows * kGroup);
  Launch("the embedding", EmbedKernel, ShapeFor(num_tokens * table.cols, weight_bytes + 4),
         context.stream, table, tile_bytes, ids, num_tokens, x);
}

}  // namespace hillstar::cuda
