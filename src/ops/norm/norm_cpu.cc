#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Vector i of the row goes to partial vector i mod 16: 256 partials in ascending order.
template <typename TermFn>
SIMD_INLINE float Reduce(int64_t n, const TermFn& add_term) {
  F32 partial[16];
  for (F32& p : partial) p = Set(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    F32& p = partial[(i / kLanes) % 16];
    p = add_term(p, i);
  }
  return FoldPartials(partial);
}

SIMD_INLINE float InverseRoot(float mean, float eps) { return 1.0f / __builtin_sqrtf(mean + eps); }

}  // namespace

bool RmsNorm(const NormSlice& s) {
  const float sum = Reduce(s.n, [&](F32 p, int64_t i) {
    const F32 x = LoadSome(s.x + i, s.n - i);
    return Fma(x, x, p);
  });
  const float mean = sum / static_cast<float>(s.n);
  if (!__builtin_isfinite(mean)) return false;
  const F32 inverse = Set(InverseRoot(mean, s.eps));
  for (int64_t i = 0; i < s.n; i += kLanes) {
    const F32 x = LoadSome(s.x + i, s.n - i), w = LoadSome(s.weight + i, s.n - i);
    StoreSome(s.y + i, Mul(Mul(x, inverse), w), s.n - i);
  }
  return true;
}

bool LayerNorm(const NormSlice& s) {
  const float sum =
      Reduce(s.n, [&](F32 p, int64_t i) { return Add(p, LoadSome(s.x + i, s.n - i)); });
  const float mean = sum / static_cast<float>(s.n);
  const auto centred = [&](int64_t i) { return Sub(Load(s.x + i), Set(mean)); };
  // Lanes beyond the end must add nothing, so the tail is centred before it is padded.
  const float squares = Reduce(s.n, [&](F32 p, int64_t i) {
    if (s.n - i >= kLanes) {
      const F32 c = centred(i);
      return Fma(c, c, p);
    }
    float tail[kLanes] = {};
    for (int64_t j = i; j < s.n; ++j) tail[j - i] = s.x[j] - mean;
    const F32 c = Load(tail);
    return Fma(c, c, p);
  });
  const float variance = squares / static_cast<float>(s.n);
  if (!__builtin_isfinite(variance)) return false;
  const F32 inverse = Set(InverseRoot(variance, s.eps));
  for (int64_t i = 0; i < s.n; i += kLanes) {
    const F32 c = Sub(LoadSome(s.x + i, s.n - i), Set(mean));
    const F32 w = LoadSome(s.weight + i, s.n - i), b = LoadSome(s.bias + i, s.n - i);
    StoreSome(s.y + i, Fma(Mul(c, inverse), w, b), s.n - i);
  }
  return true;
}

}  // namespace hillstar::HILLSTAR_LEVEL
