// Counts of scores by their first bits, inside kernels.
#pragma once

#include "device/cuda/contract.cuh"
#include "ops/indexer/select_cuda.cuh"

namespace hillstar::cuda {

// Of 11 bits, and one more for scores that are not finite.
inline constexpr int kBins = 2048;
inline constexpr int kNotFiniteBin = kBins;
static_assert(kNotFiniteBin == kNotFiniteAt);

// Adds this thread's bin, if it has one, to the counts. All lanes of a warp together. Long plateaus
// of one value are counted by a warp at once.
__device__ __forceinline__ void CountBin(int* counts, bool counted, int bin) {
  const int first = __shfl_sync(kAllLanes, bin, 0);
  if (__all_sync(kAllLanes, counted && bin == first)) {
    if (threadIdx.x % kWarpLanes == 0) atomicAdd(counts + bin, kWarpLanes);
  } else if (counted) {
    atomicAdd(counts + bin, 1);
  }
}

}  // namespace hillstar::cuda
