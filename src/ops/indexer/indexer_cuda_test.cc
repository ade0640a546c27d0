// The indexer on a GPU against the reference: scores bit for bit, and the lists that follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "ops/cuda_kernel_test.h"
#include "ops/indexer/select_cuda.cuh"

namespace hillstar::cuda {
namespace {

struct TestShape {
  IndexKeyLayout layout;
  int64_t heads = 8;
  std::vector<int64_t> num_keys;  // of each token, each of a sequence of its own
  int64_t max_keys = 20;          // that are selected
  int64_t num_live = -1;          // -1: all
  int64_t max_positions = 0;      // of the launch; 0: the largest
  ValueKind kind = ValueKind::kNormal;
  int64_t scratch_tokens = -1;         // that there is scratch for at once; -1: for all
  std::vector<size_t> same_keys = {};  // tokens that see those of the token before
  int64_t bad_token = -1;              // has a weight that is infinite
  int num_multiprocessors = 0;         // that there are; 0: those of the device
  int shared_bytes = 0;                // likewise
  int opposite = 0;  // if not 0: planes of keys and, times this, queries are 127 and -128
  float weight = 0;  // if not 0: of every head
};

class SelectRun {
 public:
  explicit SelectRun(const TestShape& shape) : s_(shape), random_(uint64_t(shape.heads)) {
    const size_t rows = s_.num_keys.size() * size_t(s_.heads), dim = size_t(s_.layout.dim);
    q_hi_.resize(rows * dim);
    q_lo_.resize(rows * dim);
    for (size_t row = 0; row < rows; ++row) {
      const float scale = Quantise(s_.opposite, &q_hi_[row * dim], &q_lo_[row * dim]);
      weight_.push_back(
          s_.weight != 0 ? s_.weight : random_.Normal() * scale * 0x1p22f / std::sqrt(float(dim)));
    }
    if (s_.bad_token >= 0) {
      weight_[size_t(s_.bad_token * s_.heads)] = std::numeric_limits<float>::infinity();
    }
    for (size_t t = 0; t < s_.num_keys.size(); ++t) AddToken(t);
  }

  void ExpectSameAsReference() {
    const size_t num_tokens = s_.num_keys.size();
    const size_t live = s_.num_live < 0 ? num_tokens : size_t(s_.num_live);
    TestContext context(num_tokens);
    if (s_.num_multiprocessors > 0) context->num_multiprocessors = s_.num_multiprocessors;
    if (s_.shared_bytes > 0) context->shared_bytes = s_.shared_bytes;
    UploadPages();
    const DeviceArray<int64_t> positions(positions_);
    const DeviceArray<int32_t> num_live(std::vector<int32_t>{int32_t(live)});
    const DeviceArray<int8_t> hi(q_hi_), lo(q_lo_);
    const DeviceArray<float> weight(weight_);
    const size_t k = size_t(s_.max_keys);
    const DeviceArray<int32_t> lists(num_tokens * k), counts(num_tokens);
    const int64_t bound =
        s_.max_positions > 0 ? s_.max_positions : *std::ranges::max_element(s_.num_keys);
    const int64_t scratch_tokens = s_.scratch_tokens < 0 ? int64_t(num_tokens) : s_.scratch_tokens;
    const size_t scratch_bytes = SelectScratchBytes(scratch_tokens, bound);
    const DeviceArray<uint8_t> scratch(scratch_bytes);
    const size_t num_bins = SelectBinBytes(int64_t(num_tokens)) / sizeof(int32_t);
    const DeviceArray<int32_t> bins(std::vector<int32_t>(num_bins, 0));
    SelectTask task;
    task.num_tokens = int64_t(num_tokens);
    task.live = num_live.data();
    task.positions = positions.data();
    task.max_positions = bound;
    task.queries = {{hi.data(), lo.data(), s_.layout.dim}, weight.data()};
    task.num_heads = s_.heads;
    task.layout = s_.layout;
    task.pages = {ids_->data(), memory_->data(), 0};
    task.selection = {lists.data(), counts.data(), s_.max_keys};
    task.scratch = scratch.data();
    task.scratch_bytes = scratch_bytes;
    task.bins = bins.data();
    Select(*context, task);
    EXPECT_EQ(std::ranges::count(bins.Download(), 0), int64_t(num_bins));

    const std::vector<uint8_t> contents = scratch.Download();
    std::vector<int32_t> want_bad(num_tokens, 0), want_counts, want_lists;
    const std::vector<int32_t> got_counts = counts.Download(), got_lists = lists.Download();
    for (size_t t = 0; t < num_tokens; ++t) {
      const int64_t n = s_.num_keys[t];
      const std::vector<int32_t> list(got_lists.begin() + int64_t(t * k),
                                      got_lists.begin() + int64_t((t + 1) * k));
      if (t >= live || n <= s_.max_keys) {
        if (t < live) {
          EXPECT_EQ(got_counts[t], 0);
        } else {
          EXPECT_TRUE(IsPoison(got_counts[t]));
        }
        EXPECT_TRUE(std::ranges::all_of(list, IsPoison<int32_t>));
        continue;
      }
      EXPECT_EQ(got_counts[t], s_.max_keys);
      const std::vector<float> want = Scores(t);
      std::vector<float> got(static_cast<size_t>(n));
      const bool is_there = s_.scratch_tokens < 0;  // and no later round's are
      if (is_there) {
        std::memcpy(got.data(), contents.data() + int64_t(t) * ScoreRows::Pitch(bound) * 4,
                    got.size() * sizeof(float));
      }
      std::vector<int32_t> want_list(k);
      if (std::ranges::all_of(want, [](float x) { return std::isfinite(x); })) {
        if (is_there) {
          EXPECT_EQ(FirstDifferenceOf(got, want), "") << "scores of token " << t;
        }
        std::vector<int32_t> order(want.size());
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(
            order, [&](int32_t a, int32_t b) { return want[size_t(a)] > want[size_t(b)]; });
        std::copy_n(order.begin(), k, want_list.begin());
        std::ranges::sort(want_list);
      } else {
        want_bad[t] = 7;
        std::iota(want_list.begin(), want_list.end(), 0);
      }
      EXPECT_EQ(FirstDifferenceOf(list, want_list), "") << "list of token " << t;
    }
    EXPECT_EQ(context.bad(), want_bad);
  }

 private:
  float Quantise(int opposite, int8_t* hi, int8_t* lo) {
    const AlignedVector<float> x = TestValues(s_.kind, s_.layout.dim, random_);
    const float scale = QuantiseRow(x.data(), s_.layout.dim, hi, lo);
    if (opposite == 0) return scale;
    std::fill_n(hi, s_.layout.dim, int8_t(127 * opposite));
    std::fill_n(lo, s_.layout.dim, int8_t(-128));
    return scale;
  }
  void AddToken(size_t t) {
    positions_.push_back(s_.num_keys[t] - 1);
    if (std::ranges::count(s_.same_keys, t) > 0) {
      host_ids_.push_back(host_ids_.back());
      return;
    }
    const int64_t num_pages = CeilDiv(s_.num_keys[t], kPageTokens);
    std::vector<PageId> ids;
    for (int64_t p = 0; p < num_pages; ++p) {
      ids.push_back(0);
      host_pages_.emplace_back(size_t(s_.layout.page_bytes()), uint8_t{0x5a});
      pages_.push_back(nullptr);
    }
    // In descending order of page.
    const PageId last = PageId(pages_.size()) - 1;
    for (int64_t p = 0; p < num_pages; ++p) ids[size_t(p)] = last - PageId(p);
    host_ids_.push_back(ids);
    for (size_t i = 0; i < pages_.size(); ++i) pages_[i] = host_pages_[i].data();
    std::vector<int8_t> hi(size_t(s_.layout.dim)), lo(hi.size());
    for (int64_t pos = 0; pos < s_.num_keys[t]; ++pos) {
      const float scale = Quantise(s_.opposite == 0 ? 0 : 1, hi.data(), lo.data());
      StoreIndexKey(s_.layout, HostPages(t), pos, hi.data(), lo.data(), scale);
    }
  }
  PageTable HostPages(size_t t) { return {host_ids_[t].data(), pages_.data(), 0}; }

  std::vector<float> Scores(size_t t) {
    IndexScoreSlice slice;
    slice.layout = s_.layout;
    slice.pages = HostPages(t);
    const int64_t row = int64_t(t) * s_.heads;
    slice.q_hi = &q_hi_[size_t(row * s_.layout.dim)];
    slice.q_lo = &q_lo_[size_t(row * s_.layout.dim)];
    slice.w = &weight_[size_t(row)];
    slice.num_heads = s_.heads;
    slice.num_panels = CeilDiv(s_.num_keys[t], kIndexPanelTokens);
    std::vector<float> scores(size_t(slice.num_panels * kIndexPanelTokens));
    slice.scores = scores.data();
    reference::IndexScores(slice);
    scores.resize(size_t(s_.num_keys[t]));
    return scores;
  }

  void UploadPages() {
    std::vector<uint8_t*> memory;
    for (const auto& page : host_pages_) {
      device_pages_.push_back(std::make_unique<DeviceArray<uint8_t>>(page));
      memory.push_back(device_pages_.back()->data());
    }
    std::vector<const PageId*> ids;
    for (size_t t = 0; t < host_ids_.size(); ++t) {
      if (std::ranges::count(s_.same_keys, t) > 0) {
        ids.push_back(ids.back());
        continue;
      }
      device_ids_.push_back(std::make_unique<DeviceArray<PageId>>(host_ids_[t]));
      ids.push_back(device_ids_.back()->data());
    }
    memory_ = std::make_unique<DeviceArray<uint8_t*>>(memory);
    ids_ = std::make_unique<DeviceArray<const PageId*>>(ids);
  }

  TestShape s_;
  TestRandom random_;
  std::vector<int8_t> q_hi_, q_lo_;
  std::vector<float> weight_;
  std::vector<int64_t> positions_;
  std::vector<AlignedVector<uint8_t>> host_pages_;
  std::vector<uint8_t*> pages_;
  std::vector<std::vector<PageId>> host_ids_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> device_pages_;
  std::vector<std::unique_ptr<DeviceArray<PageId>>> device_ids_;
  std::unique_ptr<DeviceArray<uint8_t*>> memory_;
  std::unique_ptr<DeviceArray<const PageId*>> ids_;
};

void ExpectSameAsReference(const TestShape& shape) { SelectRun(shape).ExpectSameAsReference(); }

TEST(IndexerCuda, HeadsDimensionsAndPlanes) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t planes : {1, 2}) {
    for (int64_t heads : {1, 8, 9, 16, 32, 40}) {
      for (int64_t dim : {16, 48, 128}) {
        SCOPED_TRACE(fmt::format("{} planes, {} heads of {}", planes, heads, dim));
        ExpectSameAsReference({{dim, planes}, heads, {21, 70}});
      }
    }
  }
}

TEST(IndexerCuda, TokensOfManyLengths) {
  HILLSTAR_NEEDS_GPU();
  TestShape shape{{128, 2}, 8, {1, 20, 21, 31, 32, 33, 64, 65, 511, 512, 513, 1100}};
  ExpectSameAsReference(shape);
  shape.max_positions = 5000;
  shape.num_live = 7;
  ExpectSameAsReference(shape);
  shape.max_keys = 5000;  // nobody selects
  ExpectSameAsReference(shape);
}

TEST(IndexerCuda, KindsOfValues) {
  HILLSTAR_NEEDS_GPU();
  for (ValueKind kind : kAllValueKinds) {
    SCOPED_TRACE(ValueKindName(kind));
    ExpectSameAsReference({.layout = {128, 1}, .num_keys = {80, 50}, .kind = kind});
  }
}

TEST(IndexerCuda, ABadTokenIsNoted) {
  HILLSTAR_NEEDS_GPU();
  ExpectSameAsReference({.layout = {128, 1}, .num_keys = {80, 50, 90}, .bad_token = 1});
}

// The largest sums that planes can have, and products of planes of opposite signs, which are as
// large as the others.
TEST(IndexerCuda, ExtremesOfThePlanes) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t planes : {1, 2}) {
    for (int64_t dim : {64, 128, 144}) {
      for (int opposite : {1, -1}) {
        SCOPED_TRACE(fmt::format("{} planes of {}, {}", planes, dim, opposite));
        TestShape shape{.layout = {dim, planes}, .num_keys = {80, 50}, .opposite = opposite};
        ExpectSameAsReference(shape);
        shape.num_keys = std::vector<int64_t>(17, 40);
        for (size_t t = 1; t < 17; ++t) shape.same_keys.push_back(t);
        ExpectSameAsReference(shape);
      }
    }
  }
}

// Negative weights times little underflow to -0, which would sort below +0.
TEST(IndexerCuda, NegativeZeroBecomesPositiveZero) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t heads : {4, 8, 32}) {
    ExpectSameAsReference(
        {.layout = {16, 1}, .heads = heads, .num_keys = {80}, .opposite = 1, .weight = -1e-44f});
  }
}

// From no room for a warp's keys to room for many warps'.
TEST(IndexerCuda, LittleSharedMemory) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t planes : {1, 2}) {
    for (int64_t heads : {3, 40}) {
      for (int kilobytes = 27; kilobytes <= 60; kilobytes += 3) {
        SCOPED_TRACE(fmt::format("{} planes, {} heads, {} KB", planes, heads, kilobytes));
        ExpectSameAsReference({.layout = {128, planes},
                               .heads = heads,
                               .num_keys = {80, 300},
                               .num_multiprocessors = 2,
                               .shared_bytes = kilobytes << 10});
      }
    }
  }
}

// Tokens of one sequence, as a prompt has them, between others.
TEST(IndexerCuda, TokensThatSeeTheSameKeys) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t planes : {1, 2}) {
    for (int64_t heads : {5, 8, 16, 32, 37}) {
      for (int64_t dim : {16, 80, 128, 144}) {
        SCOPED_TRACE(fmt::format("{} planes, {} heads of {}", planes, heads, dim));
        TestShape shape{{dim, planes}, heads, {}};
        shape.num_keys = {90, 89, 70, 3, 40, 41, 25, 64, 66, 65, 30, 31, 32, 33, 34, 35, 36, 37};
        shape.same_keys = {1, 2, 3, 9, 10, 11, 12, 13, 14, 15, 16, 17};
        for (size_t t = 9; t < 18; ++t) shape.num_keys[t] = int64_t(66 - (t - 9) * 6);
        ExpectSameAsReference(shape);
      }
    }
  }
  TestShape shape{{32, 1}, 8, std::vector<int64_t>(40, 60)};
  for (size_t t = 1; t < 40; ++t) shape.same_keys.push_back(t);
  for (int64_t live : {0, 3, 16, 17, 39}) {
    shape.num_live = live;
    ExpectSameAsReference(shape);
  }
}

TEST(IndexerCuda, RoundsWhereScratchIsLittle) {
  HILLSTAR_NEEDS_GPU();
  TestShape shape{{32, 1}, 4, {70, 33, 5, 90, 21, 64, 41, 100}};
  shape.num_live = 7;
  for (int64_t tokens : {1, 2, 3, 5}) {
    for (int64_t max_positions : {0, 20000}) {
      SCOPED_TRACE(fmt::format("{} tokens, {}", tokens, max_positions));
      shape.scratch_tokens = tokens;
      shape.max_positions = max_positions;
      ExpectSameAsReference(shape);
    }
  }
}

// Several blocks share a row of scores.
TEST(IndexerCuda, LongContextsOfFewTokens) {
  HILLSTAR_NEEDS_GPU();
  TestShape shape{{16, 2}, 3, {9000, 40, 20, 17000, 600}};
  shape.max_keys = 40;
  ExpectSameAsReference(shape);
  shape.num_live = 2;
  ExpectSameAsReference(shape);
  ExpectSameAsReference(
      {.layout = {128, 1}, .num_keys = {80, 50, 90, 10}, .max_positions = 20000, .bad_token = 1});
  ExpectSameAsReference({.layout = {128, 1},
                         .num_keys = {300, 50},
                         .max_positions = 1 << 20,
                         .kind = ValueKind::kZeros});
}

// More keys than all blocks that there is room for take at once.
TEST(IndexerCuda, WarpsOfManyUnits) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t planes : {1, 2}) {
    for (int64_t dim : {16, 48, 128, 144}) {
      SCOPED_TRACE(fmt::format("{} planes of {}", planes, dim));
      TestShape shape{{dim, planes}, 3, {6000, 40, 4001}};
      shape.num_multiprocessors = 2;
      ExpectSameAsReference(shape);
    }
  }
}

}  // namespace
}  // namespace hillstar::cuda
