#include "ops/sample/sample.h"

#include <cstring>
#include <limits>

#include "ops/kernels.h"
#include "ops/simd.h"

// Plain loops: doubles and 64-bit integers in lanes are the compiler's work, which changes no bit.
namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Larger floats have larger keys, -0 the one below +0.
SIMD_INLINE int32_t KeyOf(const float* x) {
  int32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
constexpr int32_t kInfinityKey = 0x7f800000, kMinusInfinityKey = int32_t(0x807fffffu);

SIMD_INLINE uint64_t BitsOf(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
SIMD_INLINE double DoubleOf(uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace

LogitRange FindLargest(const float* logits, int64_t n) {
  int32_t most = std::numeric_limits<int32_t>::min(), least = std::numeric_limits<int32_t>::max();
  for (int64_t i = 0; i < n; ++i) {
    const int32_t key = KeyOf(logits + i);
    most = key > most ? key : most;
    least = key < least ? key : least;
  }
  // NaN has keys beyond the infinities'.
  const bool is_finite =
      most < kInfinityKey && most > kMinusInfinityKey && least >= kMinusInfinityKey;
  const int32_t bits = most ^ ((most >> 31) & 0x7fffffff);
  float largest;
  std::memcpy(&largest, &bits, sizeof largest);
  return {largest, is_finite};
}

uint64_t WeighLogits(const WeighSlice& s) {
  constexpr double kInteger = 0x1p52;  // a double from here to twice as much holds an integer
  constexpr double kLow = -64;         // any gap of weight 0, whose power of two is a double
  const int64_t n = s.n;
  const double largest = double(s.largest), temperature = s.temperature;
  const float* __restrict logits = s.logits;
  uint64_t* __restrict weights = s.weights;
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    double gap = (double(logits[i]) - largest) / temperature;
    gap = gap > kLow ? gap : kLow;
    const double rounded = gap * kExpLog2E + kExpRound;
    const double k = rounded - kExpRound;
    const double r = (gap - k * kExpLn2High) - k * kExpLn2Low;
    double p = kExpTaylor[0];
#pragma GCC unroll 13
    for (int t = 1; t < 14; ++t) p = p * r + kExpTaylor[t];
    const double scaled = p * DoubleOf((BitsOf(rounded) + 1023 + kWeightBits) << 52);
    const uint64_t weight = BitsOf(scaled + kInteger) & ((uint64_t{1} << 52) - 1);
    weights[i] = weight;
    sum += weight;
  }
  return sum;
}

uint64_t SumKept(const KeptSlice& s) {
  const float* __restrict logits = s.logits;
  const uint64_t* __restrict weights = s.weights;
  uint64_t sum = 0;
  for (int64_t i = s.first; i < s.end; ++i) {
    const bool is_above = (logits[i] > s.pivot) | ((logits[i] == s.pivot) & (i <= s.last_tie));
    const bool is_kept = is_above & (weights[i] >= s.min_weight);
    sum += is_kept ? weights[i] : 0;
  }
  return sum;
}

}  // namespace hillstar::HILLSTAR_LEVEL
