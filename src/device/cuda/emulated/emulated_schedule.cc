#include "emulated_schedule.h"

#include <algorithm>
#include <numeric>

namespace hillstar::emulated {
namespace {

constexpr size_t kLanes = 32;
constexpr int kSweepsOfAChoice = 16;  // until others are held back
constexpr int kForLong = 1 << 30;     // sweeps: until nobody else can go on

}  // namespace

void Schedule::BeginGrid(uint64_t number) {
  const uint64_t kind = number / 2 % 4;  // each with bulk copies and without (ptx.cuh)
  is_random_ = kind >= 2;
  is_descending_ = kind == 1;
  random_.seed(number);
}

void Schedule::BeginBlock(size_t num_threads) {
  sweeps_left_ = 0;
  order_.resize(num_threads);
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (is_descending_) std::ranges::reverse(order_);
  warps_.resize((num_threads + kLanes - 1) / kLanes);
  std::iota(warps_.begin(), warps_.end(), size_t{0});
  held_.assign(num_threads, 0);
}

void Schedule::HoldSomeBack() {
  const bool for_long = random_() % 2 == 0, lanes_too = random_() % 2 == 0;
  const auto sweeps = [&](bool is_held) {
    if (!is_held) return 0;
    return for_long ? kForLong : int(random_() % kSweepsOfAChoice);
  };
  int of_warp = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (i % kLanes == 0) of_warp = sweeps(random_() % 4 == 0);
    held_[i] = std::max(of_warp, sweeps(lanes_too && random_() % 8 == 0));
  }
  sweeps_left_ = for_long ? kForLong : kSweepsOfAChoice;
}

const std::vector<size_t>& Schedule::NextSweep() {
  if (!is_random_) return order_;
  if (sweeps_left_-- == 0) HoldSomeBack();
  std::ranges::shuffle(warps_, random_);
  order_.clear();
  for (const size_t warp : warps_) {
    const bool descending = random_() % 2 == 0;
    for (size_t n = 0; n < kLanes; ++n) {
      const size_t thread = warp * kLanes + (descending ? kLanes - 1 - n : n);
      if (thread >= held_.size()) continue;
      if (held_[thread] > 0) {
        --held_[thread];
      } else {
        order_.push_back(thread);
      }
    }
  }
  return order_;
}

bool Schedule::Release() {
  std::ranges::fill(held_, 0);
  sweeps_left_ = 1;  // with all threads
  return order_.size() < held_.size();
}

}  // namespace hillstar::emulated
