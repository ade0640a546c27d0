#include <limits>

#include "numerics/elementary.h"
#include "ops/kernels.h"

namespace hillstar {

namespace reference {

void FloatLinear(const FloatLinearSlice& s) {
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    for (int64_t r = s.first_row; r < s.first_row + s.num_rows; ++r) {
      s.y[t * s.y_stride + r] = Dot256(s.x + t * s.cols, s.w + r * s.cols, s.cols);
    }
  }
}

}  // namespace reference

// Selection is scalar at every level: num_chosen passes over at most a few hundred scores.
void ChooseExperts(const RouterChoice& c) {
  for (int64_t e = 0; e < c.num_experts; ++e) c.scores[e] = Sigmoid(c.logits[e]) + c.bias[e];
  float sum = 0;
  for (int64_t k = 0; k < c.num_chosen; ++k) {
    int64_t best = 0;
    for (int64_t e = 1; e < c.num_experts; ++e) {
      if (c.scores[e] > c.scores[best]) best = e;
    }
    c.scores[best] = -std::numeric_limits<float>::infinity();
    c.experts[k] = int32_t(best);
    c.weights[k] = Sigmoid(c.logits[best]);
    sum += c.weights[k];
  }
  for (int64_t k = 0; k < c.num_chosen; ++k) {
    const float share = c.normalise ? c.weights[k] / (sum + 1e-20f) : c.weights[k];
    c.weights[k] = share * c.scaling;
  }
}

}  // namespace hillstar
