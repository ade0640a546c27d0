#include "ops/peak/peak.h"

#include <gtest/gtest.h>

#include <chrono>

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

// A thousand times the rounds take longer, and no level does more products in a second than the
// widest instructions of today could at 10 GHz: neither holds if products are left out.
TEST(PeakDots, ProductsAreDone) {
  using Clock = std::chrono::steady_clock;
  for (const CpuKernels* kernels : AvailableKernels()) {
    const auto seconds_of = [&](int64_t rounds) {
      const auto start = Clock::now();
      kernels->peak_dots(rounds);
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    const int64_t rounds = 200'000;
    const double few = seconds_of(rounds / 1000), many = seconds_of(rounds);
    EXPECT_GT(many, 10 * few) << kernels->level;
    EXPECT_LT(double(rounds) * double(kPeakProductsPerRound) / many, 10e9 * 128) << kernels->level;
  }
}

}  // namespace
}  // namespace hillstar
