#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

void WeightedSum(const WeightedSumSlice& s) {
  for (int64_t i = 0; i < s.n; i += kLanes) {
    const int64_t left = s.n - i;
    F32 sum = Set(0.0f);
    for (int64_t k = 0; k < s.num_rows; ++k) {
      sum = Fma(Set(s.weights[k]), LoadSome(s.rows[k] + i, left), sum);
    }
    if (s.shared) sum = Add(sum, LoadSome(s.shared + i, left));
    StoreSome(s.x + i, Add(LoadSome(s.x + i, left), sum), left);
  }
}

void AddRow(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreSome(x + i, Add(LoadSome(x + i, n - i), LoadSome(y + i, n - i)), n - i);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
