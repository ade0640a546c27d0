#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// add_term(p, i) adds vector i of the row, of which all 16 values are there, to a sum;
// add_last(p, i) one of which some may be missing. Vector i goes to partial vector i mod 16: 256
// partials in ascending order.
template <typename TermFn, typename LastFn>
SIMD_INLINE float Reduce(int64_t n, const TermFn& add_term, const LastFn& add_last) {
  F32 partial[16];
  for (F32& p : partial) p = Set(0.0f);
  int64_t i = 0;
  for (; i + 16 * kLanes <= n; i += 16 * kLanes) {
    for (int j = 0; j < 16; ++j) partial[j] = add_term(partial[j], i + j * kLanes);
  }
  for (int j = 0; i < n; i += kLanes, ++j) partial[j] = add_last(partial[j], i);
  return FoldPartials(partial);
}

SIMD_INLINE float InverseRoot(float mean, float eps) { return 1.0f / __builtin_sqrtf(mean + eps); }

}  // namespace

bool RmsNorm(const NormSlice& s) {
  const float sum = Reduce(
      s.n,
      [&](F32 p, int64_t i) {
        const F32 x = Load(s.x + i);
        return Fma(x, x, p);
      },
      [&](F32 p, int64_t i) {
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
  const float sum = Reduce(
      s.n, [&](F32 p, int64_t i) { return Add(p, Load(s.x + i)); },
      [&](F32 p, int64_t i) { return Add(p, LoadSome(s.x + i, s.n - i)); });
  const float mean = sum / static_cast<float>(s.n);
  const auto add_square = [&](F32 p, int64_t i) {
    const F32 c = Sub(Load(s.x + i), Set(mean));
    return Fma(c, c, p);
  };
  // Lanes beyond the end must add nothing, so the tail is centred before it is padded.
  const float squares = Reduce(s.n, add_square, [&](F32 p, int64_t i) {
    if (s.n - i >= kLanes) return add_square(p, i);
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
