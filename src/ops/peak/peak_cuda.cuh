// What MultiplyAll multiplies, for its kernel and for the test of what comes out.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace hillstar::cuda {

inline constexpr int kMultiplyBlocks = 2;  // a multiprocessor
inline constexpr int kMultiplyWarps = 8;
inline constexpr int kMultiplyChains = 8;  // independent sums of a warp
inline constexpr int kMultiplyRounds = 2048;

// The factors of a thread in MmaUnsignedSigned; chain i has b0(i) and b1(i) in every round.
struct MultiplyFactors {
  uint32_t a[4];

  __host__ __device__ explicit constexpr MultiplyFactors(uint32_t thread)
      : a{thread * 2654435761u, thread * 2654435761u ^ 0x5bd1e995u, thread * 2654435761u + 12345u,
          ~(thread * 2654435761u)} {}
  __host__ __device__ constexpr uint32_t b0(int i) const { return a[0] + uint32_t(i); }
  __host__ __device__ constexpr uint32_t b1(int i) const { return a[0] ^ uint32_t(i); }
};

}  // namespace hillstar::cuda
