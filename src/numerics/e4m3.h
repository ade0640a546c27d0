// FP8 E4M3 (OCP "e4m3fn"): sign, four bits of exponent with bias 7, three of mantissa; no
// infinities, 0x7f and 0xff are NaN, the largest value is 448. KV rows in format fp8 hold such
// codes; attention multiplies them as integers. docs/numerics.md, "KV rows".
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "numerics/planes.h"

namespace hillstar {

inline constexpr float kE4m3Max = 448.0f;
// A code's integer is its value in steps of 1 / 64: the finest power of two at which 448 stays
// within 256 * 127. Codes from 1/8 on are whole numbers of steps; below it the step of 2^-6 rounds
// by at most 2^-7, 1.7e-5 of 448, as much as rounding to two planes does (1.5e-5 of amax).
inline constexpr int32_t kE4m3StepsPerUnit = 64;
// The row's scale is that of the integers' high plane: 448 is 112 * 256 steps.
inline constexpr float kE4m3LargestHigh = kE4m3Max * kE4m3StepsPerUnit / 256;

// Exact.
inline float E4m3ToFloat(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  // Subnormals: mantissa / 8 * 2^-6.
  float value = exponent == 0 ? std::ldexp(float(mantissa), -9)
                              : std::ldexp(float(8 + mantissa), exponent - 10);
  if ((code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return (code & 0x80) ? -value : value;
}

// The nearest code, ties to the even mantissa; beyond +-448 (infinity included) the largest.
// REQUIRES: not NaN. The sign of zero stays.
inline uint8_t FloatToE4m3(float x) {
  constexpr uint32_t kDropped = 20;  // of f32's 23 bits of mantissa
  constexpr uint32_t kRebias = (127 - 7) << 3;
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffff;
  const uint8_t sign = uint8_t((bits >> 24) & 0x80);
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {  // steps of 2^-9; 8 of them: the next binade
    return uint8_t(sign | uint8_t(std::rint(std::bit_cast<float>(magnitude) * 512.0f)));
  }
  // A carry out of the mantissa raises the exponent by one, which is the next code.
  const uint32_t odd = (magnitude >> kDropped) & 1;
  const uint32_t code = ((magnitude + (1u << (kDropped - 1)) - 1 + odd) >> kDropped) - kRebias;
  return uint8_t(sign | (code < 0x7e ? code : 0x7e));
}

// rint(64 * value), ties to even. A code that is NaN, which no row holds, counts as 480.
constexpr int32_t E4m3Steps(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  int32_t steps = 0;
  if (exponent >= 4) {
    steps = (8 + mantissa) << (exponent - 4);
  } else {  // 1 / 8 steps a unit of mantissa, twice as much with each exponent
    const int32_t eighths = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
    steps = (eighths + 3 + ((eighths >> 3) & 1)) >> 3;
  }
  return (code & 0x80) ? -steps : steps;
}
struct E4m3StepsTable {
  int16_t steps[256];
};
constexpr E4m3StepsTable MakeE4m3StepsTable() {
  E4m3StepsTable table{};
  for (int code = 0; code < 256; ++code) table.steps[code] = int16_t(E4m3Steps(uint8_t(code)));
  return table;
}
inline constexpr E4m3StepsTable kE4m3Steps = MakeE4m3StepsTable();

// The integer as planes: 256 * hi + lo, lo in [-128, 127], |hi| <= 112.
inline PlanePair E4m3Planes(uint8_t code) {
  const int32_t steps = kE4m3Steps.steps[code];
  const int32_t hi = (steps + 128) >> 8;
  return {int8_t(hi), int8_t(steps - 256 * hi)};
}

// Encodes n values with one scale and returns it: amax / 112, so that a value is about
// (scale / 256) * (256 hi + lo); 0 for a row that counts as zero. x must be finite.
inline float EncodeE4m3Row(const float* x, int64_t n, uint8_t* codes) {
  const float amax = LargestMagnitude(x, n);
  const bool zero = amax < kSmallestRowAmax;
  const float unit = zero ? 0.0f : amax / kE4m3Max;  // of the codes
  const float inverse = zero ? 0.0f : 1.0f / unit;
  for (int64_t i = 0; i < n; ++i) codes[i] = zero ? uint8_t{0} : FloatToE4m3(x[i] * inverse);
  return unit * (256.0f / kE4m3StepsPerUnit);
}

}  // namespace hillstar
