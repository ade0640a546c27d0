#include "ops/peak/peak.h"

#include <gtest/gtest.h>

#include "ops/kernels.h"

namespace hillstar {
namespace {

TEST(PeakDots, EveryLevelDoesTheSameProducts) {
  for (const int64_t rounds : {0, 1, 7, 1000}) {
    for (const CpuKernels* kernels : AvailableKernels()) {
      EXPECT_EQ(kernels->peak_dots(rounds), reference::PeakDots(rounds))
          << kernels->level << " " << rounds;
    }
  }
}

}  // namespace
}  // namespace hillstar
