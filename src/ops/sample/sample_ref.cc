#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/kernels.h"

namespace hillstar {
namespace reference {

LogitRange FindLargest(const float* logits, int64_t n) {
  LogitRange range{-std::numeric_limits<float>::infinity(), true};
  for (int64_t i = 0; i < n; ++i) {
    range.is_finite &= logits[i] < std::numeric_limits<float>::infinity();  // false for NaN as well
    if (logits[i] > range.largest) range.largest = logits[i];
  }
  range.is_finite &= range.largest > -std::numeric_limits<float>::infinity();
  return range;
}

uint64_t WeighLogits(const WeighSlice& s) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < s.n; ++i) {
    const double gap = (double(s.logits[i]) - double(s.largest)) / s.temperature;
    const double scaled = ExpNonPositive(gap) * double(kLargestWeight);
    s.weights[i] = uint64_t((scaled + kExpRound) - kExpRound);
    sum += s.weights[i];
  }
  return sum;
}

uint64_t SumKept(const KeptSlice& s) {
  uint64_t sum = 0;
  for (int64_t i = s.first; i < s.end; ++i) {
    const bool is_above = s.logits[i] > s.pivot || (s.logits[i] == s.pivot && i <= s.last_tie);
    if (is_above && s.weights[i] >= s.min_weight) sum += s.weights[i];
  }
  return sum;
}

}  // namespace reference

int32_t DrawTokenByReference(const float* logits, int64_t n, const DrawParams& params,
                             int64_t position) {
  const LogitRange range = reference::FindLargest(logits, n);
  if (!range.is_finite) return -1;
  if (params.is_greedy()) return int32_t(std::find(logits, logits + n, range.largest) - logits);
  std::vector<uint64_t> weights(static_cast<size_t>(n));
  reference::WeighLogits({logits, n, range.largest, params.temperature, weights.data()});
  const auto sum_of = [&](const std::vector<int32_t>& ids) {
    return std::accumulate(ids.begin(), ids.end(), uint64_t{0},
                           [&](uint64_t sum, int32_t id) { return sum + weights[size_t(id)]; });
  };

  std::vector<int32_t> ids;
  for (int32_t i = 0; i < n; ++i) {
    if (weights[size_t(i)] > 0) ids.push_back(i);
  }
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && size_t(params.top_k) < ids.size()) ids.resize(size_t(params.top_k));
  const uint64_t least = NucleusSum(params.top_p, sum_of(ids));
  uint64_t sum = 0;
  size_t count = 0;
  while (sum < least) sum += weights[size_t(ids[count++])];
  ids.resize(count);
  std::erase_if(ids, [&](int32_t id) { return weights[size_t(id)] < params.min_weight; });

  std::ranges::sort(ids);
  const uint64_t target = DrawTarget(RandomWord(params.seed, uint64_t(position)), sum_of(ids));
  sum = 0;
  for (const int32_t id : ids) {
    sum += weights[size_t(id)];
    if (sum > target) return id;
  }
  return -1;  // never: the target is below the sum
}

}  // namespace hillstar
