// Rows of logits and parameters of draws that tests of the sampler share: usual ones and those that
// break careless ones. Linked into tests only.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops/kernel_test.h"
#include "ops/sample/sample.h"

namespace hillstar {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class LogitKind {
  kNormal,  // as a model's
  kFlat,    // so many likely ones that a nucleus is large
  kAllEqual,
  kFewValues,  // ties everywhere
  kZerosOfBothSigns,
  kOneAboveAll,
  kSharp,  // a likely one and a plateau far below
  kMostlyMinusInfinity,
  kHuge,   // 3e38 and its negative among others
  kDense,  // neighbours in floating point
  kNotANumber,
  kPlusInfinity,
  kAllMinusInfinity,
};
inline constexpr int kNumLogitKinds = int(LogitKind::kAllMinusInfinity) + 1;

inline std::vector<float> TestLogits(LogitKind kind, int64_t n, TestRandom& random) {
  std::vector<float> x(static_cast<size_t>(n));
  const auto any = [&] { return size_t(random.Below(n)); };
  const float base = random.Normal();
  for (float& v : x) {
    switch (kind) {
      case LogitKind::kFlat: v = 0.05f * random.Normal(); break;
      case LogitKind::kAllEqual: v = base; break;
      case LogitKind::kFewValues: v = float(random.Below(4)); break;
      case LogitKind::kZerosOfBothSigns: v = random.Below(2) ? 0.0f : -0.0f; break;
      case LogitKind::kSharp: v = -20.0f; break;
      case LogitKind::kMostlyMinusInfinity: v = random.Below(8) ? -kInfinity : base; break;
      case LogitKind::kHuge: v = 1e38f * float(random.Below(7) - 3); break;
      case LogitKind::kDense:
        v = std::bit_cast<float>(uint32_t(0x41200000 + random.Below(64)));
        break;
      case LogitKind::kAllMinusInfinity: v = -kInfinity; break;
      default: v = 4.0f * random.Normal(); break;
    }
  }
  if (kind == LogitKind::kOneAboveAll) x[any()] = 300.0f;
  if (kind == LogitKind::kSharp) x[any()] = 1.0f;
  if (kind == LogitKind::kMostlyMinusInfinity) x[any()] = base;
  if (kind == LogitKind::kNotANumber) x[any()] = random.Below(2) ? std::nanf("") : -std::nanf("");
  if (kind == LogitKind::kPlusInfinity) x[any()] = kInfinity;
  return x;
}

// A likely token and others of weight 1, with seeds whose words at position 1 pick one of those: a
// sum that is off by one gives another token.
inline std::vector<float> LeastWeightRow() {
  std::vector<float> row(size_t{20000}, -30.3f);
  row[0] = 0.0f;
  return row;
}
struct LeastWeightDraw {
  uint64_t seed;
  int32_t id;
};
inline constexpr LeastWeightDraw kLeastWeightDraws[] = {
    {393039042, 17157}, {421465936, 15757}, {836143097, 9882}};

inline DrawParams TestDraw(TestRandom& random) {
  const auto one_of = [&](std::initializer_list<double> values) {
    return values.begin()[random.Below(int64_t(values.size()))];
  };
  SamplingParams params;
  params.temperature = one_of({0, 0.99e-4, 1e-4, 1e-2, 0.3, 0.7, 1, 1, 1.5, 20, 100});
  params.top_p = one_of({0, 1e-12, 0.3, 0.5, 0.75, 0.9, 0.95, 1 - 0x1p-53, 1, 1});
  params.top_k = int64_t(one_of({0, 0, 1, 2, 3, 40, 1000, 1e9}));
  params.min_p = one_of({0, 0, 0, 1e-9, 0.05, 0.5, 1});
  params.seed = random.Next();
  return DrawParamsOf(params);
}

inline std::string DescribeDraw(const DrawParams& p) {
  return "temperature " + std::to_string(p.temperature) + ", top_p " +
         std::to_string(double(p.top_p) * 0x1p-64) + ", top_k " + std::to_string(p.top_k) +
         ", min weight " + std::to_string(p.min_weight);
}

}  // namespace hillstar
