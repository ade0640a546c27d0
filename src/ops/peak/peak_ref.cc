#include "ops/peak/peak.h"

#include "ops/kernels.h"

namespace hillstar::reference {

int32_t PeakDots(int64_t rounds) {
  const int32_t signs[4] = {1, -1, 2, -2};
  uint32_t sum = 0;  // may wrap
  for (int i = 0; i < kPeakChains; ++i) sum += uint32_t(16 * i);
  for (int64_t r = 0; r < rounds * kPeakChains; ++r) {
    for (int32_t i = 0; i < 64; ++i) sum += uint32_t(i * signs[i % 4]);
  }
  return int32_t(sum);
}

}  // namespace hillstar::reference
