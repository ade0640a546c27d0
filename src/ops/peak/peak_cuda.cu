// The fastest that a GPU reads its memory, and multiplies bytes: what shares are stated of.
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"
#include "ops/peak/peak_cuda.cuh"

namespace hillstar::cuda {
namespace {

// *sum += what the lanes of a warp have: a result that depends on all of it. May wrap.
__device__ __forceinline__ void AddOfWarp(uint32_t mine, int32_t* sum) {
  for (int bits = 1; bits < kWarpLanes; bits *= 2) mine += __shfl_xor_sync(kAllLanes, mine, bits);
  if (threadIdx.x % kWarpLanes == 0) atomicAdd(reinterpret_cast<uint32_t*>(sum), mine);
}

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
      mine += words[k].x + words[k].y + words[k].z + words[k].w;
    }
  }
  for (; i < num_words; i += stride) {
    const uint4 last = LoadStreaming(bytes + i * 16);
    mine += last.x + last.y + last.z + last.w;
  }
  AddOfWarp(mine, sum);
}

constexpr double kProductsPerMma = 16 * 8 * 32;

__global__ void __launch_bounds__(kMultiplyWarps* kWarpLanes) MultiplyKernel(int32_t* sum) {
  WaitForPrevious();
  const MultiplyFactors factors(threadIdx.x);
  int c[kMultiplyChains][4] = {};
  for (int round = 0; round < kMultiplyRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kMultiplyChains; ++i) {
      MmaUnsignedSigned(c[i], factors.a, factors.b0(i), factors.b1(i));
    }
  }
  uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < 4 * kMultiplyChains; ++i) mine += uint32_t(c[i / 4][i % 4]);
  AddOfWarp(mine, sum);
}

}  // namespace

void ReadAll(const KernelContext& context, const uint8_t* bytes, uint64_t num_bytes, int32_t* sum) {
  const unsigned blocks = unsigned(context.num_multiprocessors) * kBlocksPerMultiprocessor;
  Launch("reading memory", ReadKernel, {dim3(blocks), dim3(kThreads)}, context.stream, bytes,
         num_bytes / 16, sum);
}

double MultiplyAll(const KernelContext& context, int32_t* sum) {
  const unsigned blocks = unsigned(context.num_multiprocessors) * kMultiplyBlocks;
  Launch("multiplying bytes", MultiplyKernel, {dim3(blocks), dim3(kMultiplyWarps * kWarpLanes)},
         context.stream, sum);
  return double(blocks) * kMultiplyWarps * kMultiplyRounds * kMultiplyChains * kProductsPerMma;
}

}  // namespace hillstar::cuda
