#include "engine/token_logprobs.h"

#include <algorithm>
#include <numeric>

#include "numerics/likelihood.h"

namespace hillstar {

TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t id, int64_t num_top) {
  const double sum = LogSumExp(logits);
  const auto logprob = [&](int32_t i) { return TokenLogprob{i, double(logits[size_t(i)]) - sum}; };
  TokenLogprobs result{logprob(id), {}};
  const size_t count = std::min(logits.size(), size_t(num_top));
  if (count == 0) return result;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto is_likelier = [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + ptrdiff_t(count), ids.end(), is_likelier);
  for (size_t i = 0; i < count; ++i) result.top.push_back(logprob(ids[i]));
  return result;
}

}  // namespace hillstar
