#include "cli/likelihood.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace hillstar {

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

}  // namespace hillstar
