#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/integers.h"
#include "ops/kernels.h"

namespace hillstar {
namespace {

void CheckRange(const char* name, double value, double min, double max) {
  if (!(value >= min && value <= max)) {  // also refuses NaN
    throw Error(ErrorCode::kBadRequest,
                fmt::format("{} is {}; it has to be from {} to {}", name, value, min, max));
  }
}

}  // namespace

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

Sampler::Sampler(const SamplingParams& params, std::span<const int32_t> prompt_ids,
                 int64_t vocab_size, TokenRules rules)
    : kernels_(AvailableKernels().front()),
      params_(params),
      has_penalties_(HasPenalties(params)),
      rules_(std::move(rules)) {
  CheckSamplingParams(params);
  draw_ = DrawParamsOf(params);
  const auto check_id = [&](int32_t id) {
    if (id >= 0 && id < vocab_size) return;
    throw Error(ErrorCode::kBadRequest,
                fmt::format("token {} is outside the vocabulary of {}", id, vocab_size));
  };
  for (const LogitBias& bias : rules_.biases) check_id(bias.id);
  if (!has_penalties_) return;
  answer_count_.resize(size_t(vocab_size));
  is_seen_.resize(size_t(vocab_size));
  for (const int32_t id : prompt_ids) {
    check_id(id);
    if (!is_seen_[size_t(id)]) seen_ids_.push_back(id);
    is_seen_[size_t(id)] = true;
  }
}

void Sampler::Accept(int32_t id) {
  if (rules_.constraint) rules_.constraint->Accept(id);
  if (!has_penalties_) return;
  CHECK(id >= 0 && size_t(id) < is_seen_.size());
  if (!is_seen_[size_t(id)]) seen_ids_.push_back(id);
  is_seen_[size_t(id)] = true;
  ++answer_count_[size_t(id)];
}

void Sampler::Penalise() {
  for (const int32_t id : seen_ids_) {
    if (size_t(id) >= adjusted_.size()) continue;
    double x = double(adjusted_[size_t(id)]);
    x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
    const int32_t count = answer_count_[size_t(id)];
    if (count > 0) x = x - params_.presence_penalty - params_.frequency_penalty * double(count);
    adjusted_[size_t(id)] = float(x);
  }
}

void Sampler::Restrict() {
  allowed_.assign(CeilDiv(adjusted_.size(), size_t{32}), ~uint32_t{0});
  rules_.constraint->Restrict(allowed_);
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  bool is_any_left = false;
  for (size_t word = 0; word < allowed_.size(); ++word) {
    const uint32_t bits = allowed_[word];
    is_any_left |= bits != 0;
    if (bits == ~uint32_t{0}) continue;
    const size_t end = std::min(adjusted_.size(), 32 * word + 32);
    for (size_t i = 32 * word; i < end; ++i) {
      if ((bits >> (i % 32) & 1) == 0) adjusted_[i] = kNever;
    }
  }
  if (is_any_left) return;
  throw Error(ErrorCode::kNonFinite,
              "no token of the vocabulary continues what the grammar allows");
}

std::span<const float> Sampler::Adjusted(std::span<const float> logits) {
  if (!needs_logits()) return logits;
  CHECK(!has_penalties_ || logits.size() <= is_seen_.size());
  adjusted_.assign(logits.begin(), logits.end());
  if (has_penalties_) Penalise();
  for (const LogitBias& bias : rules_.biases) {
    if (size_t(bias.id) < adjusted_.size()) adjusted_[size_t(bias.id)] += bias.bias;
  }
  if (rules_.constraint) Restrict();
  return adjusted_;
}

int32_t Sampler::Draw(std::span<const float> raw_logits, int64_t position) {
  const std::span<const float> logits = Adjusted(raw_logits);
  const auto n = int64_t(logits.size());
  scratch_.resize(CeilDiv(DrawScratchBytes(n), sizeof(uint64_t)));
  const int32_t id = DrawToken(*kernels_, logits.data(), n, draw_, position,
                               reinterpret_cast<uint8_t*>(scratch_.data()));
  if (id < 0) Argmax(logits);  // throws, with the reason
  return id;
}

}  // namespace hillstar
