// The likeliest tokens on a GPU against a plain loop: ties, infinities, NaN, and what the next step
// is told.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda_kernel_test.h"

namespace hillstar::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The index of the largest, the lowest of equals; -1 where one is NaN or +infinity or all are
// -infinity.
int32_t LikeliestOf(const float* row, int64_t n) {
  int32_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    if (!(row[i] < kInfinity)) return -1;
    if (row[i] > -kInfinity && (best < 0 || row[i] > row[best])) best = int32_t(i);
  }
  return best;
}

// Twice, since a launch leaves its scratch as it found it.
void ExpectLikeliest(const std::vector<float>& logits, int64_t rows, int64_t n) {
  std::vector<int32_t> want, want_bad;
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t best = LikeliestOf(&logits[size_t(r * n)], n);
    want.push_back(best < 0 ? 0 : best);
    want_bad.push_back(best < 0 ? 7 : 0);
  }
  const DeviceArray<float> device_logits(logits);
  const std::vector<uint8_t> zeros(ArgmaxScratchBytes(rows), uint8_t{0});
  const DeviceArray<uint8_t> scratch(zeros);
  const DeviceArray<int32_t> next_ids(want.size());
  std::vector<int64_t> positions(want.size(), 41);
  const DeviceArray<int64_t> next_positions(positions);
  for (int64_t& p : positions) ++p;
  for (int launch = 0; launch < 2; ++launch) {
    const TestContext context(want.size());
    const DeviceArray<int32_t> ids(want.size());
    ArgmaxTask task;
    task.logits = device_logits.data();
    task.rows = rows;
    task.n = n;
    task.ids = ids.data();
    if (launch == 1) {
      task.next_ids = next_ids.data();
      task.next_positions = next_positions.data();
    }
    task.scratch = scratch.data();
    Argmax(*context, task);
    EXPECT_EQ(ids.Download(), want);
    EXPECT_EQ(context.bad(), want_bad);
  }
  EXPECT_EQ(next_ids.Download(), want);
  EXPECT_EQ(next_positions.Download(), positions);
}

TEST(ArgmaxCuda, RowsOfManyLengths) {
  HILLSTAR_NEEDS_GPU();
  for (const int64_t rows : {1, 3, 9}) {
    for (const int64_t n : {1, 31, 257, 5000}) {
      TestRandom random(uint64_t(n + rows));
      std::vector<float> logits;
      // Few values, so that the largest comes more than once.
      for (int64_t i = 0; i < rows * n; ++i)
        logits.push_back(float(random.Below(n < 100 ? 5 : 400)));
      SCOPED_TRACE(fmt::format("{} rows of {}", rows, n));
      ExpectLikeliest(logits, rows, n);
    }
  }
}

TEST(ArgmaxCuda, WhatIsNotFinite) {
  HILLSTAR_NEEDS_GPU();
  constexpr int64_t kWide = 3000;
  std::vector<float> logits(size_t(6 * kWide), -2.0f);
  const auto at = [&](int64_t row, int64_t i) -> float& { return logits[size_t(row * kWide + i)]; };
  at(0, 2999) = 5.0f;
  at(1, 7) = std::nanf("");
  at(1, 8) = 9.0f;
  at(2, 2500) = kInfinity;
  for (int64_t i = 0; i < kWide; ++i) at(3, i) = -kInfinity;
  for (int64_t i = 0; i < kWide; ++i) at(4, i) = -kInfinity;
  at(4, 1234) = -3e38f;
  at(5, 3) = at(5, 4) = -0.0f;
  at(5, 2) = 0.0f;  // equal to both, and lower
  ExpectLikeliest(logits, 6, kWide);
}

}  // namespace
}  // namespace hillstar::cuda
