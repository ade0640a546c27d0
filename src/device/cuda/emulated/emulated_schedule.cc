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
  num_threads_ = num_threads;
  sweeps_left_ = 0;
  order_.resize(num_threads);
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (is_descending_) std::ranges::reverse(order_);
  warps_.resize((num_threads + kLanes - 1) / kLanes);
  std::iota(warps_.begin(), warps_.end(), size_t{0});
  warp_held_.assign(warps_.size(), 0);
  thread_held_.assign(num_threads, 0);
}

void Schedule::HoldSomeBack() {
  const bool for_long = random_() % 2 == 0;
  const auto hold = [&](int& held, uint64_t one_of) {
    held = random_() % one_of != 0 ? 0 : for_long ? kForLong : int(random_() % kSweepsOfAChoice);
  };
  const bool lanes_too = random_() % 2 == 0;
  for (int& held : warp_held_) hold(held, 4);
  for (int& held : thread_held_) hold(held, lanes_too ? 8 : kForLong);
  sweeps_left_ = for_long ? kForLong : kSweepsOfAChoice;
}

const std::vector<size_t>& Schedule::NextSweep() {
  if (!is_random_) return order_;
  if (sweeps_left_-- == 0) HoldSomeBack();
  std::ranges::shuffle(warps_, random_);
  order_.clear();
  for (const size_t warp : warps_) {
    if (warp_held_[warp] > 0) {
      --warp_held_[warp];
      continue;
    }
    const bool descending = random_() % 2 == 0;
    for (size_t n = 0; n < kLanes; ++n) {
      const size_t thread = warp * kLanes + (descending ? kLanes - 1 - n : n);
      if (thread >= num_threads_) continue;
      if (thread_held_[thread] > 0) {
        --thread_held_[thread];
      } else {
        order_.push_back(thread);
      }
    }
  }
  return order_;
}

bool Schedule::Release() {
  const auto release = [](std::vector<int>& held) {
    const bool any = std::ranges::any_of(held, [](int sweeps) { return sweeps > 0; });
    std::ranges::fill(held, 0);
    return any;
  };
  const bool warps = release(warp_held_), lanes = release(thread_held_);
  sweeps_left_ = 1;  // with all threads
  return is_random_ && (warps || lanes || order_.size() < num_threads_);
}

}  // namespace hillstar::emulated
