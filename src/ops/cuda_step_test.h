// A step for the tests of the GPU's kernels: tokens of some sequences with their tables and pages,
// the same on the host and on the device, and the operations that say what comes out. Linked into
// tests only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/cpu_ops.h"
#include "ops/cuda_kernel_test.h"

namespace hillstar::cuda {

// The operations of a CPU with the reference's kernels.
class ReferenceOps {
 public:
  ReferenceOps() : ops_(ReferenceKernels(), 1, budget_) {
    Ops::Limits limits;
    limits.max_row = 8192;
    limits.max_tokens = kMaxTokens;
    ops_.Prepare(limits);
  }
  CpuOps* operator->() { return &ops_; }
  // The bad tokens since the last call, as a kernel notes them with code 7.
  std::vector<int32_t> TakeBad(int64_t num_tokens) {
    std::vector<int32_t> bad(size_t(num_tokens), 0);
    for (const BadToken& token : ops_.TakeBadTokens()) bad.at(size_t(token.row)) = 7;
    return bad;
  }

 private:
  static constexpr int64_t kMaxTokens = 128;
  MemoryBudget budget_;
  CpuOps ops_;
};

// An array of `count` elements as DeviceArray holds it before anything is written.
template <typename T>
AlignedVector<T> Poison(size_t count) {
  AlignedVector<T> values(count);
  if (count > 0) std::memset(static_cast<void*>(values.data()), kPoisonByte, count * sizeof(T));
  return values;
}

struct TestToken {
  int64_t sequence = 0;
  int64_t position = 0;
};
// Tokens that there are, and rows that the launch is shaped for.
struct StepSize {
  int64_t live, rows;
};
// num_tokens tokens: each sequence's follow each other from a position of its own, a page's end
// among them.
inline std::vector<TestToken> TestTokens(int64_t num_tokens) {
  std::vector<TestToken> tokens;
  for (int64_t t = 0; t < num_tokens; ++t) tokens.push_back({t / 7, 61 * (t / 7) + t % 7});
  return tokens;
}

// The tables of a step. The device's are shaped for `num_rows` tokens, of which those from
// tokens.size() on are not there: their entries are poison, on which a kernel would trip.
class TestStep {
 public:
  TestStep(const std::vector<TestToken>& tokens, int64_t num_rows, int64_t half_rope,
           TestRandom& random)
      : tokens_(tokens),
        page_ids_(PageIdsOf(tokens, random)),
        device_page_ids_(page_ids_),
        positions_(Poison<int64_t>(size_t(num_rows))),
        lists_(Poison<const PageId*>(size_t(num_rows))),
        live_(AlignedVector<int32_t>{int32_t(tokens.size())}) {
    AlignedVector<const PageId*> device_lists = lists_;
    int64_t largest = 0;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const int64_t first = tokens[t].sequence * pages_of_sequence_;
      positions_[t] = tokens[t].position;
      lists_[t] = page_ids_.data() + first;
      device_lists[t] = device_page_ids_.data() + first;
      largest = std::max(largest, tokens[t].position);
    }
    for (int64_t p = 0; p <= largest; ++p) AddAngles(p, half_rope);
    device_positions_.emplace(positions_);
    device_lists_.emplace(device_lists);
    device_rope_.emplace(rope_rows_);
    host_ = device_ = {int64_t(tokens.size()), nullptr, nullptr, positions_.data(), largest + 1};
    host_.half_rope = device_.half_rope = half_rope;
    host_.rope_rows = rope_rows_.data();
    host_.page_ids = lists_.data();
    device_.num_tokens = num_rows;
    device_.live = num_rows == host_.num_tokens ? nullptr : live_.data();
    device_.positions = device_positions_->data();
    device_.rope_rows = device_rope_->data();
    device_.page_ids = device_lists_->data();
  }

  // Of the tokens that are there.
  const StepTokens& host() const { return host_; }
  const StepTokens& device() const { return device_; }
  int64_t num_live() const { return host_.num_tokens; }
  int64_t num_rows() const { return device_.num_tokens; }
  int64_t num_pages() const { return int64_t(page_ids_.size()); }
  const std::vector<TestToken>& tokens() const { return tokens_; }

 private:
  // Every sequence's pages behind each other, in no order.
  AlignedVector<PageId> PageIdsOf(const std::vector<TestToken>& tokens, TestRandom& random) {
    int64_t num_sequences = 1;
    for (const TestToken& token : tokens) {
      num_sequences = std::max(num_sequences, token.sequence + 1);
      pages_of_sequence_ = std::max(pages_of_sequence_, token.position / kPageTokens + 1);
    }
    AlignedVector<PageId> ids;
    for (int64_t i = 0; i < num_sequences * pages_of_sequence_; ++i) {
      ids.push_back(PageId(i));
      std::swap(ids.back(), ids[size_t(random.Below(i + 1))]);
    }
    return ids;
  }
  void AddAngles(int64_t position, int64_t half) {
    const auto angle = [&](int64_t j) {
      return double(position) * std::pow(10000.0, -double(j) / double(half));
    };
    for (int64_t j = 0; j < half; ++j) rope_rows_.push_back(float(std::cos(angle(j))));
    for (int64_t j = 0; j < half; ++j) rope_rows_.push_back(float(std::sin(angle(j))));
  }

  std::vector<TestToken> tokens_;
  int64_t pages_of_sequence_ = 1;
  AlignedVector<PageId> page_ids_;
  DeviceArray<PageId> device_page_ids_;
  AlignedVector<int64_t> positions_;
  AlignedVector<const PageId*> lists_;
  AlignedVector<float> rope_rows_;
  DeviceArray<int32_t> live_;
  std::optional<DeviceArray<int64_t>> device_positions_;
  std::optional<DeviceArray<const PageId*>> device_lists_;
  std::optional<DeviceArray<float>> device_rope_;
  StepTokens host_, device_;
};

// The pages of a step's sequences, all poison, in memory in no order. A page holds three layers;
// the one in the middle is used.
class TestPages {
 public:
  TestPages(const TestStep& step, int64_t page_bytes, TestRandom& random)
      : step_(step),
        page_bytes_(page_bytes),
        host_bytes_(Poison<uint8_t>(size_t(step.num_pages() * kLayers * page_bytes))),
        device_bytes_(host_bytes_.size()) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < step.num_pages(); ++i) {
      places.push_back(i);
      std::swap(places.back(), places[size_t(random.Below(i + 1))]);
    }
    AlignedVector<uint8_t*> device_memory;
    for (int64_t place : places) {
      host_memory_.push_back(host_bytes_.data() + place * kLayers * page_bytes);
      device_memory.push_back(device_bytes_.data() + place * kLayers * page_bytes);
    }
    device_memory_.emplace(device_memory);
  }

  StepPages host() const { return {step_.host().page_ids, host_memory_.data(), page_bytes_}; }
  StepPages device() const {
    return {step_.device().page_ids, device_memory_->data(), page_bytes_};
  }
  // Empty, or the first byte of all pages in which the device's differ from the host's.
  std::string FirstDifference() const {
    return FirstDifferenceOf(device_bytes_.Download(), host_bytes_);
  }

 private:
  static constexpr int64_t kLayers = 3;
  const TestStep& step_;
  int64_t page_bytes_;
  AlignedVector<uint8_t> host_bytes_;
  DeviceArray<uint8_t> device_bytes_;
  std::vector<uint8_t*> host_memory_;
  std::optional<DeviceArray<uint8_t*>> device_memory_;
};

}  // namespace hillstar::cuda
