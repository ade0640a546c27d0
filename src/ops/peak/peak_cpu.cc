#include "ops/peak/peak.h"

#include <utility>

#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Chains with constant indices, so that they stay in registers.
template <int... kChain>
SIMD_INLINE int32_t RunChains(int64_t rounds, std::integer_sequence<int, kChain...>) {
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
  I32 chains[] = {SetInt(kChain)...};
  for (int64_t r = 0; r < rounds; ++r) {
    // For all that the compiler knows the factors are new: no product is taken out of the loop.
    __asm__ volatile("" : "+m"(factors));
    ((chains[kChain] = Dot4(chains[kChain], u, factors[kChain])), ...);
  }
  I32 sum = SetInt(0);
  ((sum = AddInt(sum, chains[kChain])), ...);
  return SumLanes(sum);
}

}  // namespace

int32_t PeakDots(int64_t rounds) {
  return RunChains(rounds, std::make_integer_sequence<int, kPeakChains>());
}

}  // namespace hillstar::HILLSTAR_LEVEL
