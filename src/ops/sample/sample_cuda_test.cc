// Tokens drawn on a GPU against the reference: every kind of row with many parameters, alone and in
// batches, and what the next step is told.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda_kernel_test.h"
#include "ops/sample/sample_test_rows.h"

namespace hillstar::cuda {
namespace {

// Rows of logits, each with its parameters and position.
struct Rows {
  int64_t n;
  std::vector<float> logits;
  std::vector<DrawParams> draws;
  std::vector<int64_t> positions;
  std::string what;

  explicit Rows(int64_t n_) : n(n_) {}
  void Add(const std::vector<float>& row, const DrawParams& params, int64_t position) {
    logits.insert(logits.end(), row.begin(), row.end());
    draws.push_back(params);
    positions.push_back(position);
    what += fmt::format("row {}: {}\n", draws.size() - 1, DescribeDraw(params));
  }
};

// Twice, since a launch leaves its scratch as it found it. Without parameters all rows are greedy.
void ExpectDrawn(const Rows& rows, bool has_draws = true) {
  const auto count = int64_t(rows.draws.size());
  std::vector<int32_t> want, want_bad;
  for (int64_t r = 0; r < count; ++r) {
    const int32_t id = DrawTokenByReference(&rows.logits[size_t(r * rows.n)], rows.n,
                                            has_draws ? rows.draws[size_t(r)] : DrawParams{},
                                            rows.positions[size_t(r)] + 1);
    want.push_back(id < 0 ? 0 : id);
    want_bad.push_back(id < 0 ? 7 : 0);
  }
  const DeviceArray<float> logits(rows.logits);
  const DeviceArray<DrawParams> draws(rows.draws);
  const std::vector<uint8_t> zeros(DrawTaskBytes(), uint8_t{0});
  const DeviceArray<uint8_t> scratch(zeros);
  for (int launch = 0; launch < 2; ++launch) {
    const TestContext context(want.size());
    const DeviceArray<int32_t> ids(want.size()), next_ids(want.size());
    const DeviceArray<int64_t> positions(rows.positions);
    DrawTask task;
    task.logits = logits.data();
    task.rows = count;
    task.n = rows.n;
    if (has_draws) task.draws = draws.data();
    task.positions = positions.data();
    task.ids = ids.data();
    if (launch == 1) {
      task.next_ids = next_ids.data();
      task.next_positions = positions.data();
    }
    task.scratch = scratch.data();
    Draw(*context, task);
    ASSERT_EQ(ids.Download(), want) << rows.what;
    EXPECT_EQ(context.bad(), want_bad) << rows.what;
    if (launch == 0) continue;
    EXPECT_EQ(next_ids.Download(), want);
    std::vector<int64_t> next = rows.positions;
    for (int64_t& p : next) ++p;
    EXPECT_EQ(positions.Download(), next);
  }
}

TEST(SampleCuda, GreedyRowsOfManyLengths) {
  HILLSTAR_NEEDS_GPU();
  for (const int64_t count : {1, 3, 9}) {
    for (const int64_t n : {1, 31, 257, 5000}) {
      TestRandom random(uint64_t(n + count));
      Rows rows(n);
      for (int64_t r = 0; r < count; ++r) {
        // Few values, so that the largest comes more than once.
        std::vector<float> row;
        for (int64_t i = 0; i < n; ++i) row.push_back(float(random.Below(n < 100 ? 5 : 400)));
        rows.Add(row, {}, 41);
      }
      SCOPED_TRACE(fmt::format("{} rows of {}", count, n));
      ExpectDrawn(rows);
      ExpectDrawn(rows, /*has_draws=*/false);
    }
  }
}

TEST(SampleCuda, WhatIsNotFinite) {
  HILLSTAR_NEEDS_GPU();
  constexpr int64_t kWide = 3000;
  std::vector<std::vector<float>> rows(6, std::vector<float>(size_t{kWide}, -2.0f));
  rows[0][2999] = 5.0f;
  rows[1][7] = std::nanf("");
  rows[1][8] = 9.0f;
  rows[2][2500] = kInfinity;
  rows[3].assign(rows[3].size(), -kInfinity);
  rows[4].assign(rows[4].size(), -kInfinity);
  rows[4][1234] = -3e38f;
  rows[5][3] = rows[5][4] = -0.0f;
  rows[5][2] = 0.0f;  // equal to both, and lower
  for (const double temperature : {0.0, 1.0}) {
    Rows all(kWide);
    for (const auto& row : rows) {
      all.Add(row, DrawParamsOf({.temperature = temperature, .top_p = 0.4}), 3);
    }
    ExpectDrawn(all);
  }
}

TEST(SampleCuda, EveryKindOfRow) {
  HILLSTAR_NEEDS_GPU();
  for (int kind = 0; kind < kNumLogitKinds; ++kind) {
    for (const int64_t n : {1, 2, 50, 1000, 2049, 6000}) {
      TestRandom random(uint64_t(kind * 100000 + n));
      Rows rows(n);
      const std::vector<float> row = TestLogits(LogitKind(kind), n, random);
      for (int64_t r = 0; r < 8; ++r) rows.Add(row, TestDraw(random), random.Below(100));
      SCOPED_TRACE(fmt::format("kind {}, rows of {}", kind, n));
      ExpectDrawn(rows);
    }
  }
}

TEST(SampleCuda, BatchesOfDifferentRows) {
  HILLSTAR_NEEDS_GPU();
  for (const int64_t count : {1, 2, 7, 8, 9, 33, 64}) {
    TestRandom random{uint64_t(count)};
    const int64_t n = 2500;
    Rows rows(n);
    for (int64_t r = 0; r < count; ++r) {
      const auto kind = LogitKind(random.Below(kNumLogitKinds));
      rows.Add(TestLogits(kind, n, random), TestDraw(random), random.Below(1 << 20));
    }
    SCOPED_TRACE(fmt::format("{} rows", count));
    ExpectDrawn(rows);
  }
}

TEST(SampleCuda, SumsAreExact) {
  HILLSTAR_NEEDS_GPU();
  for (const int copies : {1, 4}) {  // few rows are cut into more parts
    Rows rows(int64_t(LeastWeightRow().size()));
    for (const LeastWeightDraw& draw : kLeastWeightDraws) {
      for (int i = 0; i < copies; ++i) {
        rows.Add(LeastWeightRow(), DrawParamsOf({.seed = draw.seed}), 0);
      }
    }
    ExpectDrawn(rows);
  }
}

// More candidates of one bin than shared memory lists: the row is read again.
TEST(SampleCuda, CutsInsideACrowdedBin) {
  HILLSTAR_NEEDS_GPU();
  constexpr int64_t kWide = 20000;
  for (const int distinct : {1, 2, 1000, 1 << 20}) {
    TestRandom random{uint64_t(distinct)};
    std::vector<float> row(size_t{kWide}, -1.0f);
    // Close to one another beside a spread that makes bins wide.
    for (float& x : row) x = 2.0f + 1e-6f * float(random.Below(distinct));
    row[100] = -25.0f;
    row[15000] = 2.5f;
    Rows rows(kWide);
    for (const double top_p : {0.05, 0.3, 0.999}) {
      rows.Add(row, DrawParamsOf({.top_p = top_p, .seed = 3}), 5);
    }
    for (const int64_t top_k : {2, 3000, 19999}) {
      rows.Add(row, DrawParamsOf({.top_p = 0.9, .top_k = top_k, .seed = 4}), 6);
    }
    ExpectDrawn(rows);
  }
}

TEST(SampleCuda, AVocabulary) {
  HILLSTAR_NEEDS_GPU();
  constexpr int64_t kVocabulary = 154880;
  for (const int64_t count : {1, 9}) {
    TestRandom random{uint64_t(count)};
    Rows rows(kVocabulary);
    for (int64_t r = 0; r < count; ++r) {
      const auto kind = r == 0 ? LogitKind::kNormal : LogitKind(random.Below(kNumLogitKinds));
      SamplingParams usual{.temperature = 0.8, .top_p = 0.95, .seed = 11};
      if (r % 2 == 1) usual.top_k = 50;
      rows.Add(TestLogits(kind, kVocabulary, random),
               r < 3 ? DrawParamsOf(usual) : TestDraw(random), r);
    }
    ExpectDrawn(rows);
  }
}

}  // namespace
}  // namespace hillstar::cuda
