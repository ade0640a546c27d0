#include "ops/peak/peak.h"

#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

int32_t PeakDots(int64_t rounds) {
  const int8_t signs[4] = {1, -1, 2, -2};
  uint8_t bytes[4 * kLanes];
  for (int i = 0; i < 4 * kLanes; ++i) bytes[i] = static_cast<uint8_t>(i);
  const Bytes u = LoadBytes(bytes);
  const Quad x = Broadcast(signs);
  I32 chains[kPeakChains];
  for (int i = 0; i < kPeakChains; ++i) chains[i] = SetInt(i);
  for (int64_t r = 0; r < rounds; ++r) {
    for (int i = 0; i < kPeakChains; ++i) chains[i] = Dot4(chains[i], u, x);
  }
  I32 sum = SetInt(0);
  for (int i = 0; i < kPeakChains; ++i) sum = AddInt(sum, chains[i]);
  return SumLanes(sum);
}

}  // namespace hillstar::HILLSTAR_LEVEL
