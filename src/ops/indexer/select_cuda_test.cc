// The selection on a GPU against a stable sort, and the lists of everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "ops/cuda_kernel_test.h"
#include "ops/indexer/select_cuda.cuh"

namespace hillstar::cuda {
namespace {

std::vector<int32_t> SelectBySort(const std::vector<float>& scores, size_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(k);
  std::ranges::sort(order);
  return order;
}

// What is counted of a row as its scores are made.
std::vector<int32_t> BinsOf(const std::vector<float>& row) {
  std::vector<int32_t> bins(size_t(kRowBins), 0);
  for (float x : row) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t ordered = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    ++bins[std::isfinite(x) ? ordered >> 21 : uint32_t(kNotFiniteAt)];
  }
  return bins;
}

// A block a row, which counts the first bits or finds them counted; or several blocks a row.
enum class Way { kBlockCounts, kBlock, kSlices };

void ExpectAsSorted(const std::vector<std::vector<float>>& rows, size_t k, Way way) {
  const size_t num_rows = rows.size();
  size_t longest = 0;
  std::vector<int64_t> positions;
  for (const auto& row : rows) {
    longest = std::max(longest, row.size());
    positions.push_back(int64_t(row.size()) - 1);
  }
  const int64_t pitch = ScoreRows::Pitch(int64_t(longest));
  const size_t score_bytes = num_rows * size_t(pitch) * sizeof(float);
  DeviceArray<uint8_t> scratch(score_bytes + num_rows * size_t(SharedRows::BytesOfRow(pitch)));
  // Behind a row lies what would be taken first.
  std::vector<uint8_t> contents(scratch.size());
  auto* scores = reinterpret_cast<float*>(contents.data());
  std::fill_n(scores, int64_t(num_rows) * pitch, 1e30f);
  std::ranges::fill(contents.begin() + int64_t(score_bytes), contents.end(), kPoisonByte);
  std::vector<int32_t> all_bins(num_rows * size_t(kRowBins), 0);
  for (size_t i = 0; i < num_rows; ++i) {
    std::ranges::copy(rows[i], scores + int64_t(i) * pitch);
    if (way != Way::kBlockCounts && rows[i].size() > k) {
      std::ranges::copy(BinsOf(rows[i]), all_bins.begin() + int64_t(i) * kRowBins);
    }
  }
  scratch.Upload(contents.data());
  const DeviceArray<int32_t> bins(all_bins);

  TestContext context(num_rows);
  const DeviceArray<int64_t> device_positions(positions);
  const DeviceArray<int32_t> live(std::vector<int32_t>{int32_t(num_rows)});
  const DeviceArray<int32_t> lists(num_rows * k), counts(num_rows);
  SelectTask task;
  task.num_tokens = int64_t(num_rows);
  task.live = live.data();
  task.positions = device_positions.data();
  task.max_positions = int64_t(longest);
  task.selection = {lists.data(), counts.data(), int64_t(k)};
  task.scratch = scratch.data();
  const ScoreRows score_rows{reinterpret_cast<float*>(scratch.data()), pitch};
  if (way == Way::kSlices) {
    SelectFromSharedRows(
        *context, task, score_rows,
        SharedRows::In(scratch.data() + score_bytes, pitch, int64_t(num_rows), bins.data()));
  } else {
    SelectTopKeys(*context, task, score_rows, 0, int64_t(num_rows),
                  way == Way::kBlock ? bins.data() : nullptr);
  }
  EXPECT_EQ(std::ranges::count(bins.Download(), 0), int64_t(all_bins.size()));
  const std::vector<int32_t> got = lists.Download(), got_counts = counts.Download();
  const std::vector<int32_t> bad = context.bad();
  for (size_t i = 0; i < num_rows; ++i) {
    const std::vector<int32_t> list(got.begin() + int64_t(i * k),
                                    got.begin() + int64_t((i + 1) * k));
    if (rows[i].size() <= k) {
      EXPECT_EQ(got_counts[i], 0);
      EXPECT_TRUE(std::ranges::all_of(list, IsPoison<int32_t>));
      continue;
    }
    EXPECT_EQ(got_counts[i], int32_t(k));
    const bool finite = std::ranges::all_of(rows[i], [](float x) { return std::isfinite(x); });
    std::vector<int32_t> want(k);
    std::iota(want.begin(), want.end(), 0);
    if (finite) want = SelectBySort(rows[i], k);
    EXPECT_EQ(FirstDifferenceOf(list, want), "") << "row " << i;
    EXPECT_EQ(bad[i], finite ? 0 : 7) << "row " << i;
  }
}

void ExpectAsSorted(const std::vector<std::vector<float>>& rows, size_t k) {
  for (Way way : {Way::kBlockCounts, Way::kBlock, Way::kSlices}) {
    SCOPED_TRACE(int(way));
    ExpectAsSorted(rows, k, way);
  }
}

std::vector<float> RowOf(size_t n, const std::function<float(size_t)>& value) {
  std::vector<float> row(n);
  for (size_t i = 0; i < n; ++i) row[i] = value(i);
  return row;
}

TEST(SelectCuda, TiesAndPlateaus) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(5);
  for (const auto& [n, k] : std::vector<std::pair<size_t, size_t>>{{2, 1},
                                                                   {33, 32},
                                                                   {100, 7},
                                                                   {1025, 1024},
                                                                   {4097, 100},
                                                                   {9000, 2048},
                                                                   {40000, 2048},
                                                                   {40000, 20000}}) {
    SCOPED_TRACE(fmt::format("{} of {}", k, n));
    std::vector<std::vector<float>> rows;
    rows.push_back(RowOf(n, [](size_t) { return 0.0f; }));
    rows.push_back(RowOf(n, [](size_t) { return -3.5f; }));
    rows.push_back(RowOf(n, [&](size_t) { return random.Normal(); }));
    rows.push_back(RowOf(n, [&](size_t) { return float(random.Below(5)) - 2; }));
    rows.push_back(RowOf(n, [](size_t i) { return float(i); }));
    rows.push_back(RowOf(n, [](size_t i) { return -float(i); }));
    // Just above a plateau, beside what is much larger and much smaller.
    rows.push_back(RowOf(n, [&](size_t i) {
      return i % 3 == 0 ? 2.0f : i % 7 == 0 ? 1.0f + 0x1p-23f * float(i % 2) : -random.Normal();
    }));
    // All the largest together, at the end and at the beginning.
    rows.push_back(RowOf(n, [&](size_t i) { return i + k > n ? 9.0f : random.Normal(); }));
    rows.push_back(RowOf(n, [&](size_t i) { return i <= k ? 9.0f + float(i % 2) * 0x1p-20f : 1; }));
    // All within one pattern of the first bits, and of the first two.
    rows.push_back(RowOf(n, [&](size_t) { return 1.0f + float(random.Below(4096)) * 0x1p-23f; }));
    rows.push_back(RowOf(n, [&](size_t) { return 1.0f + float(random.Below(64)) * 0x1p-14f; }));
    rows.push_back(RowOf(n, [&](size_t) { return random.Normal() * 1e38f / 12; }));
    // Just less than k, k and k + 1 values above a plateau of zeros.
    for (size_t above : {k - 1, k, k + 1}) {
      std::vector<float> row(n, 0.0f);
      for (size_t i = 0; i < above && i < n; ++i) row[(i * 7919) % n] = 1 + float(i % 3);
      rows.push_back(row);
    }
    ExpectAsSorted(rows, k);
  }
}

// More slices than a block has threads: each thread has several of those before its own.
TEST(SelectCuda, ARowOfFourMillion) {
  HILLSTAR_NEEDS_GPU();
  constexpr size_t kKept = 2048;
  const size_t n = size_t(kSliceKeys) * 1026 + 77;
  // Half of what is kept are larger and lie all over the row, the first of the others are ties.
  ExpectAsSorted(
      {RowOf(n, [](size_t i) { return i % 4096 == 5 ? 2.0f
                                      : i % 3 == 1  ? 1.0f
                                                    : 0.5f; })}, kKept,
      Way::kSlices);
}

TEST(SelectCuda, ValuesThatAreNotFinite) {
  HILLSTAR_NEEDS_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> rows;
  for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t at : {size_t{0}, size_t{4000}, size_t{4999}}) {
      rows.push_back(RowOf(5000, [&](size_t i) { return i == at ? bad : float(i % 10); }));
    }
  }
  rows.push_back(RowOf(5000, [](size_t i) { return float(i % 10); }));
  ExpectAsSorted(rows, 20);
}

TEST(SelectCuda, RowsOfManyLengths) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(6);
  std::vector<std::vector<float>> rows;
  for (size_t n : {1, 9, 10, 11, 12, 40, 4095, 4096, 4098, 300}) {
    rows.push_back(RowOf(n, [&](size_t) { return random.Normal(); }));
  }
  ExpectAsSorted(rows, 10);
}

TEST(ListAllCuda, ListsWhatHasNoList) {
  HILLSTAR_NEEDS_GPU();
  constexpr int64_t kMaxKeys = 300;
  const std::vector<int64_t> positions = {0, 298, 299, 300, 5, 7};
  const std::vector<int32_t> counts_before = {0, 0, 0, 0, 3, 0};
  const TestContext context;
  const DeviceArray<int64_t> device_positions(positions);
  const DeviceArray<int32_t> live(std::vector<int32_t>{5}), counts(counts_before);
  const DeviceArray<int32_t> lists(positions.size() * size_t(kMaxKeys));
  ListAll(*context, int64_t(positions.size()), live.data(), device_positions.data(),
          {lists.data(), counts.data(), kMaxKeys});
  EXPECT_EQ(counts.Download(), (std::vector<int32_t>{1, 299, 300, 0, 3, 0}));
  const std::vector<int32_t> got = lists.Download();
  for (size_t t = 0; t < positions.size(); ++t) {
    const int64_t listed = t < 3 ? positions[t] + 1 : 0;
    for (int64_t i = 0; i < kMaxKeys; ++i) {
      const int32_t index = got[t * size_t(kMaxKeys) + size_t(i)];
      ASSERT_TRUE(i < listed ? index == int32_t(i) : IsPoison(index)) << t << ", " << i;
    }
  }
}

}  // namespace
}  // namespace hillstar::cuda
