#include <cmath>

#include "ops/kernels.h"

namespace hillstar::reference {

void WeightedSum(const WeightedSumSlice& s) {
  for (int64_t i = 0; i < s.n; ++i) {
    float sum = 0;
    for (int64_t k = 0; k < s.num_rows; ++k) sum = std::fma(s.weights[k], s.rows[k][i], sum);
    s.x[i] += s.shared ? sum + s.shared[i] : sum;
  }
}

void AddRow(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

}  // namespace hillstar::reference
