#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/check.h"

namespace hillstar {
namespace {

void CheckRange(const char* name, double value, double min, double max) {
  if (!(value >= min && value <= max)) {  // also refuses NaN
    throw Error(ErrorCode::kBadRequest,
                fmt::format("{} is {}; it has to be from {} to {}", name, value, min, max));
  }
}

}  // namespace

bool IsGreedy(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature && params.repetition_penalty == 1 &&
         params.presence_penalty == 0 && params.frequency_penalty == 0;
}

void CheckSamplingParams(const SamplingParams& params) {
  CheckRange("temperature", params.temperature, 0, 100);
  CheckRange("top_p", params.top_p, 0, 1);
  CheckRange("top_k", double(params.top_k), 0, 1e9);
  CheckRange("min_p", params.min_p, 0, 1);
  CheckRange("repetition_penalty", params.repetition_penalty, 0.01, 100);
  CheckRange("presence_penalty", params.presence_penalty, -2, 2);
  CheckRange("frequency_penalty", params.frequency_penalty, -2, 2);
}

int32_t Argmax(std::span<const float> logits) {
  CHECK(!logits.empty());
  float best = -std::numeric_limits<float>::infinity();
  int32_t index = -1;
  bool is_finite = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = logits[i];
    is_finite &= x < std::numeric_limits<float>::infinity();  // false for NaN as well
    if (x > best) {
      best = x;
      index = int32_t(i);
    }
  }
  if (!is_finite) throw Error(ErrorCode::kNonFinite, "a logit is infinite or not a number");
  if (index < 0) throw Error(ErrorCode::kNonFinite, "every logit is minus infinity");
  return index;
}

double MarginOf(std::span<const float> logits) {
  const auto best = size_t(Argmax(logits));
  float second = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i != best) second = std::max(second, logits[i]);
  }
  return double(logits[best]) - double(second);
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  // Multipliers and key increments of the paper's table 2 and section 3.
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kGoldenRatio = 0x9E3779B9, kSqrt3MinusOne = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key[0], uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key[1], uint32_t(product0)};
    key[0] += kGoldenRatio;
    key[1] += kSqrt3MinusOne;
  }
  return counter;
}

double UniformAt(uint64_t seed, uint64_t position) {
  const auto words = Philox4x32({uint32_t(position), uint32_t(position >> 32), 0, 0},
                                {uint32_t(seed), uint32_t(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return double(bits) * 0x1p-53;
}

double ExpNonPositive(double x) {
  if (!(x >= -700)) return 0;
  // x = k ln2 + r, |r| <= ln2 / 2; ln2 in two parts, the first with 32 bits so that k times it is
  // exact. The Taylor series to r^13 errs by 2^-57 at the ends of the range.
  constexpr double kLog2e = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  const double k = std::nearbyint(x * kLog2e);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1.0 / 6227020800.0;
  constexpr double kFactorials[] = {479001600, 39916800, 3628800, 362880, 40320, 5040, 720,
                                    120,       24,       6,       2,      1,     1};
  for (const double factorial : kFactorials) sum = sum * r + 1.0 / factorial;
  const uint64_t exponent = uint64_t(int64_t(k) + 1023) << 52;
  double power;
  std::memcpy(&power, &exponent, sizeof power);
  return sum * power;
}

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids,
                 int64_t vocab_size)
    : params_(params),
      has_penalties_(params.repetition_penalty != 1 || params.presence_penalty != 0 ||
                     params.frequency_penalty != 0) {
  CheckSamplingParams(params);
  if (!has_penalties_) return;
  answer_count_.resize(size_t(vocab_size));
  is_seen_.resize(size_t(vocab_size));
  for (const int32_t id : prompt_ids) {
    if (id < 0 || id >= vocab_size) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("token {} is outside the vocabulary of {}", id, vocab_size));
    }
    if (!is_seen_[size_t(id)]) seen_ids_.push_back(id);
    is_seen_[size_t(id)] = true;
  }
}

void Sampler::Accept(int32_t id) {
  if (!has_penalties_) return;
  CHECK(id >= 0 && size_t(id) < is_seen_.size());
  if (!is_seen_[size_t(id)]) seen_ids_.push_back(id);
  is_seen_[size_t(id)] = true;
  ++answer_count_[size_t(id)];
}

std::span<const float> Sampler::Penalised(std::span<const float> logits) {
  if (!has_penalties_) return logits;
  CHECK(logits.size() <= is_seen_.size());
  penalised_.assign(logits.begin(), logits.end());
  for (const int32_t id : seen_ids_) {
    if (size_t(id) >= logits.size()) continue;
    double x = double(logits[size_t(id)]);
    x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
    const int32_t count = answer_count_[size_t(id)];
    if (count > 0) x = x - params_.presence_penalty - params_.frequency_penalty * double(count);
    penalised_[size_t(id)] = float(x);
  }
  return penalised_;
}

void Sampler::FindCandidates(std::span<const float> logits, int32_t best) {
  candidates_.clear();
  const double largest = double(logits[size_t(best)]);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double gap = (double(logits[i]) - largest) / params_.temperature;
    if (gap >= -kLargestLogitGap) candidates_.push_back({int32_t(i), gap, 0});
  }
  for (Candidate& c : candidates_) c.weight = ExpNonPositive(c.logit);
}

namespace {

// Most likely first, ties by id; as a heap order it has the most likely at the front.
constexpr auto kLessLikely = [](const auto& a, const auto& b) {
  return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
};

}  // namespace

void Sampler::KeepTopK() {
  if (params_.top_k == 0 || size_t(params_.top_k) >= candidates_.size()) return;
  std::partial_sort(candidates_.begin(), candidates_.begin() + params_.top_k, candidates_.end(),
                    [](const Candidate& a, const Candidate& b) { return kLessLikely(b, a); });
  candidates_.resize(size_t(params_.top_k));
}

void Sampler::KeepTopP() {
  if (params_.top_p >= 1) return;
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  // A heap, since the few tokens of a usual nucleus leave it long before it would be sorted.
  std::make_heap(candidates_.begin(), candidates_.end(), kLessLikely);
  std::vector<Candidate> kept;
  double sum = 0;
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), kLessLikely);
    kept.push_back(candidates_.back());
    candidates_.pop_back();
    sum += kept.back().weight;
    if (sum >= params_.top_p * total) break;
  }
  candidates_ = std::move(kept);
}

void Sampler::KeepMinP() {
  if (params_.min_p <= 0) return;
  // The most likely token has weight 1.
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < params_.min_p; });
}

int32_t Sampler::Draw(std::span<const float> raw_logits, int64_t position) {
  const std::span<const float> logits = Penalised(raw_logits);
  const int32_t best = Argmax(logits);
  if (params_.temperature < kGreedyTemperature) return best;
  FindCandidates(logits, best);
  KeepTopK();
  KeepTopP();
  KeepMinP();
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double target = UniformAt(params_.seed, uint64_t(position)) * total;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (target < sum) return c.id;
  }
  return candidates_.back().id;  // the product rounded up to the total
}

}  // namespace hillstar
