#include "numerics/likelihood.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace hillstar {
namespace {

// Of values that `value(i)` gives for i in [0, n).
template <typename Value>
double VarianceOf(size_t n, const Value& value) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < n; ++i) sum += value(i);
  const double mean = sum / double(n);
  for (size_t i = 0; i < n; ++i) squares += (value(i) - mean) * (value(i) - mean);
  return squares / double(n);
}

}  // namespace

double LogSumExp(std::span<const float> logits) {
  const double largest = double(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(double(x) - largest);
  return largest + std::log(sum);
}

double NegativeLogLikelihood(std::span<const float> logits, int32_t id) {
  return LogSumExp(logits) - double(logits[size_t(id)]);
}

double KlDivergence(std::span<const float> p, std::span<const float> q) {
  CHECK(p.size() == q.size());
  const double p_norm = LogSumExp(p), q_norm = LogSumExp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = double(p[i]) - p_norm;
    sum += std::exp(log_p) * (log_p - (double(q[i]) - q_norm));
  }
  return std::max(sum, 0.0);  // rounding may leave less than nothing
}

double Variance(std::span<const float> logits) {
  return VarianceOf(logits.size(), [&](size_t i) { return double(logits[i]); });
}

double RelativeDifference(std::span<const float> p, std::span<const float> q) {
  CHECK(p.size() == q.size());
  const double spread = Variance(p);
  if (spread == 0) return 0;
  const auto difference = [&](size_t i) { return double(q[i]) - double(p[i]); };
  return std::sqrt(VarianceOf(p.size(), difference) / spread);
}

}  // namespace hillstar
