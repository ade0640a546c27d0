#include <cmath>
#include <vector>

#include "numerics/elementary.h"
#include "ops/kernels.h"

namespace hillstar::reference {

bool RmsNorm(const NormSlice& s) {
  const float mean = Dot256(s.x, s.x, s.n) / float(s.n);
  if (!std::isfinite(mean)) return false;
  const float inverse = 1.0f / std::sqrt(mean + s.eps);
  for (int64_t i = 0; i < s.n; ++i) s.y[i] = (s.x[i] * inverse) * s.weight[i];
  return true;
}

bool LayerNorm(const NormSlice& s) {
  const float mean = Sum256(s.x, s.n) / float(s.n);
  std::vector<float> centred(size_t(s.n));
  for (int64_t i = 0; i < s.n; ++i) centred[size_t(i)] = s.x[i] - mean;
  const float variance = Dot256(centred.data(), centred.data(), s.n) / float(s.n);
  if (!std::isfinite(variance)) return false;
  const float inverse = 1.0f / std::sqrt(variance + s.eps);
  for (int64_t i = 0; i < s.n; ++i) {
    s.y[i] = std::fma(centred[size_t(i)] * inverse, s.weight[i], s.bias[i]);
  }
  return true;
}

}  // namespace hillstar::reference
