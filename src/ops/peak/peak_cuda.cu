// The fastest that a GPU reads its memory, and multiplies bytes: what shares are stated of.
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kInFlight = 8;  // loads of a thread
constexpr unsigned kBlocksPerMultiprocessor = 4;

__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint8_t* bytes, uint64_t num_words, int32_t* sum) {
  WaitForPrevious();
  uint32_t mine = 0;
  const uint64_t stride = uint64_t(gridDim.x) * kThreads;
  uint64_t i = uint64_t(blockIdx.x) * kThreads + threadIdx.x;
  for (; i + (kInFlight - 1) * stride < num_words; i += kInFlight * stride) {
    uint4 words[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) words[k] = LoadStreaming(bytes + (i + k * stride) * 16);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      mine += words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
    }
  }
  for (; i < num_words; i += stride) mine += LoadStreaming(bytes + i * 16).x;
  if (mine == 0x12345678u) atomicAdd(sum, 1);  // keeps the loads from being left out
}

constexpr int kChains = 8;  // independent sums of a warp
constexpr int kRounds = 2048;
constexpr int kMultiplyWarps = 8;
constexpr double kProductsPerMma = 16 * 8 * 32;

__global__ void __launch_bounds__(kMultiplyWarps* kWarpLanes) MultiplyKernel(int32_t* sum) {
  WaitForPrevious();
  const uint32_t x = threadIdx.x * 2654435761u;
  const uint32_t a[4] = {x, x ^ 0x5bd1e995u, x + 12345u, ~x};
  int c[kChains][4] = {};
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) MmaUnsignedSigned(c[i], a, x + i, x ^ uint32_t(i));
  }
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) mine += c[i][0] ^ c[i][1] ^ c[i][2] ^ c[i][3];
  if (mine == 0x12345678) atomicAdd(sum, 1);
}

}  // namespace

void ReadAll(const KernelContext& context, const uint8_t* bytes, uint64_t num_bytes, int32_t* sum) {
  const unsigned blocks = unsigned(context.num_multiprocessors) * kBlocksPerMultiprocessor;
  Launch("reading memory", ReadKernel, {dim3(blocks), dim3(kThreads)}, context.stream, bytes,
         num_bytes / 16, sum);
}

double MultiplyAll(const KernelContext& context, int32_t* sum) {
  const unsigned blocks = unsigned(context.num_multiprocessors) * 2;
  Launch("multiplying bytes", MultiplyKernel, {dim3(blocks), dim3(kMultiplyWarps * kWarpLanes)},
         context.stream, sum);
  return double(blocks) * kMultiplyWarps * kRounds * kChains * kProductsPerMma;
}

}  // namespace hillstar::cuda
