#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

float Dot256(const float* a, const float* b, int64_t n) {
  F32 partial[16];
  for (F32& p : partial) p = Set(0.0f);
  int64_t i = 0;
  for (; i + 16 * kLanes <= n; i += 16 * kLanes) {
    for (int j = 0; j < 16; ++j) {
      partial[j] = Fma(Load(a + i + j * kLanes), Load(b + i + j * kLanes), partial[j]);
    }
  }
  int j = 0;
  for (; i + kLanes <= n; i += kLanes, ++j) partial[j] = Fma(Load(a + i), Load(b + i), partial[j]);
  if (i < n) {  // lanes beyond the end keep their sum, even the sign of a zero
    float lanes[kLanes];
    Store(lanes, partial[j]);
    for (int64_t k = 0; i + k < n; ++k) lanes[k] = __builtin_fmaf(a[i + k], b[i + k], lanes[k]);
    partial[j] = Load(lanes);
  }
  return FoldPartials(partial);
}

}  // namespace

void FloatLinear(const FloatLinearSlice& s) {
  for (int64_t r = s.first_row; r < s.first_row + s.num_rows; ++r) {
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      s.y[t * s.y_stride + r] = Dot256(s.x + t * s.cols, s.w + r * s.cols, s.cols);
    }
  }
}

}  // namespace hillstar::HILLSTAR_LEVEL
