// The selection against a stable sort: every level, alone and on a pool, long rows and short ones,
// plateaus of ties, and rows that mislead a guess from some of their scores.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "core/thread_pool.h"
#include "ops/kernel_test.h"

namespace hillstar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kUntouched = -7;

// Empty if a score is not finite.
std::vector<int32_t> Select(const CpuKernels& kernels, const std::vector<float>& scores, int64_t k,
                            ThreadPool* pool) {
  std::vector<int32_t> scratch(scores.size() + 16, kUntouched);
  std::vector<int32_t> selected(static_cast<size_t>(k) + 1, kUntouched);
  const int64_t n = static_cast<int64_t>(scores.size());
  const bool finite =
      SelectTopK(kernels, {scores.data(), n, k, scratch.data(), selected.data()}, pool);
  EXPECT_EQ(selected.back(), kUntouched) << "wrote beyond k";
  for (size_t i = scores.size(); i < scratch.size(); ++i) EXPECT_EQ(scratch[i], kUntouched);
  selected.pop_back();
  return finite ? selected : std::vector<int32_t>();
}

std::vector<int32_t> SelectBySort(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  std::sort(order.begin(), order.end());
  return order;
}

class SelectTopKTest : public testing::Test {
 protected:
  void ExpectAsSorted(const std::vector<float>& scores, int64_t k, const std::string& note) {
    const std::vector<int32_t> expected = SelectBySort(scores, k);
    for (const CpuKernels* kernels : AvailableKernels()) {
      ASSERT_EQ(Select(*kernels, scores, k, nullptr), expected) << kernels->level << " " << note;
      ASSERT_EQ(Select(*kernels, scores, k, &pool_), expected)
          << kernels->level << " on a pool " << note;
    }
  }

  ThreadPool pool_{3};
};

using Make = std::function<float(int64_t i, TestRandom& random)>;
std::vector<float> Row(int64_t n, const Make& make) {
  TestRandom random(static_cast<uint64_t>(n));
  std::vector<float> scores;
  for (int64_t i = 0; i < n; ++i) scores.push_back(make(i, random));
  return scores;
}

TEST_F(SelectTopKTest, ShortRowsEqualAStableSort) {
  for (int64_t n : {1, 2, 15, 16, 17, 256, 1000}) {
    for (int64_t k : {int64_t{1}, n / 2, n - 1, n}) {
      if (k < 1) continue;
      for (int64_t num_values : {1, 2, 5, 1000000}) {  // few values: many ties
        const auto scores = Row(n, [&](int64_t, TestRandom& random) {
          return static_cast<float>(random.Below(num_values)) - 2.0f;
        });
        ExpectAsSorted(scores, k, fmt::format("n {} k {} values {}", n, k, num_values));
      }
    }
  }
}

// Where a floor is guessed (from 8,192 scores on), on both sides of each limit.
TEST_F(SelectTopKTest, LongRowsEqualAStableSort) {
  const std::vector<std::pair<const char*, Make>> kinds = {
      {"normal", [](int64_t, TestRandom& r) { return r.Normal(); }},
      {"all below zero", [](int64_t, TestRandom& r) { return -std::fabs(r.Normal()) - 1; }},
      {"1 of 2 zero", [](int64_t, TestRandom& r) { return std::max(r.Normal(), 0.0f); }},
      {"99 of 100 zero", [](int64_t, TestRandom& r) { return std::max(r.Normal() - 2.3f, 0.0f); }},
      {"5 values", [](int64_t, TestRandom& r) { return static_cast<float>(r.Below(5)); }},
      {"zeros of both signs", [](int64_t, TestRandom& r) { return r.Below(2) ? 0.0f : -0.0f; }},
      {"ascending", [](int64_t i, TestRandom&) { return static_cast<float>(i); }},
      {"descending", [](int64_t i, TestRandom&) { return static_cast<float>(-i); }},
      {"wide range",
       [](int64_t, TestRandom& r) { return std::ldexp(r.Normal(), int(r.Below(200)) - 100); }},
  };
  for (int64_t n : {8191, 8192, 40000, 70001}) {
    for (int64_t k : {int64_t{1}, int64_t{64}, int64_t{2048}, n / 4, n / 4 + 1, n}) {
      for (const auto& [name, make] : kinds) {
        ExpectAsSorted(Row(n, make), k, fmt::format("{} n {} k {}", name, n, k));
      }
    }
  }
}

// Scores at the places that are looked at are larger, or smaller, than all others.
TEST_F(SelectTopKTest, RowsThatMisleadTheGuess) {
  const int64_t n = 1 << 16;
  for (float sampled : {5.0f, -5.0f, 0.0f}) {
    const auto misleading = Row(n, [&](int64_t i, TestRandom& random) {
      return i % (n / 2048) == 0 ? sampled : random.Uniform(-1, 1);
    });
    for (int64_t k : {1, 100, 2047, 2048, 2049, 16384}) {
      ExpectAsSorted(misleading, k, fmt::format("sampled {} k {}", sampled, k));
    }
  }
}

TEST_F(SelectTopKTest, EqualRowsSelectTheLowestPositions) {
  for (int64_t n : {300, 100000}) {
    for (float value : {0.0f, -0.0f, 1.5f, -3.0f}) {
      const std::vector<float> scores(static_cast<size_t>(n), value);
      for (const CpuKernels* kernels : AvailableKernels()) {
        const std::vector<int32_t> selected = Select(*kernels, scores, 64, &pool_);
        for (int32_t i = 0; i < 64; ++i) EXPECT_EQ(selected[static_cast<size_t>(i)], i);
      }
    }
  }
}

// Sums of relus have a plateau of exact zeros, which often holds the k-th place.
TEST_F(SelectTopKTest, PlateauOfZerosAtTheKthPlace) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{500, 64}, {50000, 2048}}) {
    for (int64_t num_positive : {k - 1, k, k + 1}) {
      TestRandom random(2);
      std::vector<float> scores(static_cast<size_t>(n), 0.0f);
      for (int64_t placed = 0; placed < num_positive;) {
        float& s = scores[static_cast<size_t>(random.Below(n))];
        if (s != 0.0f) continue;
        s = random.Uniform(0.1f, 1.0f);
        ++placed;
      }
      ExpectAsSorted(scores, k, fmt::format("n {} positive {}", n, num_positive));
      const CpuKernels& kernels = *AvailableKernels().front();
      const std::vector<int32_t> first = Select(kernels, scores, k, &pool_);
      for (int repeat = 0; repeat < 50; ++repeat) {
        EXPECT_EQ(Select(kernels, scores, k, &pool_), first);
      }
    }
  }
}

TEST_F(SelectTopKTest, ScoresThatAreNotFiniteAreFoundEverywhere) {
  for (int64_t n : {17, 100, 70001}) {
    for (int64_t at : {int64_t{0}, int64_t{16}, n / 2, n - 1}) {
      for (float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        auto scores = Row(n, [](int64_t, TestRandom& random) { return random.Normal(); });
        scores[static_cast<size_t>(at)] = bad;
        for (const CpuKernels* kernels : AvailableKernels()) {
          EXPECT_TRUE(Select(*kernels, scores, 5, nullptr).empty()) << kernels->level << " " << at;
          EXPECT_TRUE(Select(*kernels, scores, 5, &pool_).empty()) << kernels->level << " " << at;
        }
      }
    }
  }
}

// What lies behind a row's end, as unused places of its last panel do, counts for nothing.
TEST_F(SelectTopKTest, ScoresBehindTheEndAreNotSeen) {
  for (int64_t n : {1, 5, 15, 17, 63}) {
    std::vector<float> scores(static_cast<size_t>(n + 16), kNan);
    std::fill_n(scores.begin(), n, 1.0f);
    for (const CpuKernels* kernels : AvailableKernels()) {
      std::vector<int32_t> above(static_cast<size_t>(n));
      EXPECT_EQ(kernels->collect_above({scores.data(), 0, n, 0.5f, above.data()}), n);
      EXPECT_EQ(kernels->collect_above({scores.data(), 0, n, 1.0f, above.data()}), 0);
      EXPECT_EQ(kernels->collect_above({scores.data(), 0, n + 1, 0.5f, above.data()}), -1);
    }
  }
}

}  // namespace
}  // namespace hillstar
