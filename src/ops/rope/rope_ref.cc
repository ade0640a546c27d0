#include <cmath>

#include "ops/kernels.h"

namespace hillstar::reference {

void Rope(const RopeSlice& s) {
  for (int64_t j = 0; j < s.half; ++j) {
    const float a = s.in[2 * j], b = s.in[2 * j + 1];
    s.out[j] = std::fma(a, s.cos[j], -(b * s.sin[j]));
    s.out[s.half + j] = std::fma(b, s.cos[j], a * s.sin[j]);
  }
}

}  // namespace hillstar::reference
