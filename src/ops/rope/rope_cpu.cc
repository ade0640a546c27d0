#include "ops/kernels.h"
#include "ops/simd.h"

namespace hillstar::HILLSTAR_LEVEL {

void Rope(const RopeSlice& s) {
  for (int64_t j = 0; j < s.half; ++j) {
    const float a = s.in[2 * j], b = s.in[2 * j + 1];
    s.out[j] = __builtin_fmaf(a, s.cos[j], -(b * s.sin[j]));
    s.out[s.half + j] = __builtin_fmaf(b, s.cos[j], a * s.sin[j]);
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
