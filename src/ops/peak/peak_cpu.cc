#include "ops/peak/peak.h"

#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

int32_t PeakDots(int64_t rounds) {
  int8_t factors[kPeakChains][4];
  for (auto& f : factors) {
    f[0] = 1;
    f[1] = -1;
    f[2] = 2;
    f[3] = -2;
  }
  uint8_t bytes[4 * kLanes];
  for (int i = 0; i < 4 * kLanes; ++i) bytes[i] = static_cast<uint8_t>(i);
  const Bytes u = LoadBytes(bytes);
  I32 chains[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) chains[i] = SetInt(i);
  for (int64_t r = 0; r < rounds; ++r) {
    // For all that the compiler knows the factors are new: no product is taken out of the loop.
    __asm__ volatile("" : : "r"(factors) : "memory");
    for (int i = 0; i < kPeakChains; ++i) chains[i] = Dot4(chains[i], u, factors[i]);
  }
  I32 sum = SetInt(0);
  for (int i = 0; i < kPeakChains; ++i) sum = AddInt(sum, chains[i]);
  return SumLanes(sum);
}

}  // namespace hillstar::HILLSTAR_LEVEL
