// FloatToHalf and HalfToFloat against the definition of binary16.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "numerics/weights.h"

namespace hillstar {
namespace {

constexpr uint32_t kNumCodes = 65536;

// The value by the definition, in double precision (exact).
double HalfValue(uint32_t code) {
  const double sign = code & 0x8000u ? -1 : 1;
  const int exponent = static_cast<int>((code >> 10) & 31u),
            mantissa = static_cast<int>(code & 0x3ffu);
  if (exponent == 31) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryCodeHasItsValueAndComesBack) {
  for (uint32_t code = 0; code < kNumCodes; ++code) {
    const double expected = HalfValue(code);
    const float value = HalfToFloat(static_cast<uint16_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << code;
      continue;
    }
    EXPECT_EQ(double{value}, expected) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x8000u) != 0) << code;
    EXPECT_EQ(FloatToHalf(value), code);
  }
}

// Between each two neighbours: the middle goes to the even code, everything else to the nearer one.
TEST(Half, RoundsToNearestEven) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t code = 0; code < 0x7c00u; ++code) {
      // The middle above the largest value lies where the next binade would begin.
      const double above = code == 0x7bffu ? 65536.0 : HalfValue(code + 1);
      const float middle = static_cast<float>((HalfValue(code) + above) / 2);
      const float direction = sign ? -1.0f : 1.0f;
      const uint32_t even = code % 2 == 0 ? code : code + 1;
      EXPECT_EQ(FloatToHalf(direction * middle), sign | even) << code;
      EXPECT_EQ(FloatToHalf(direction * std::nextafter(middle, 0.0f)), sign | code) << code;
      EXPECT_EQ(FloatToHalf(direction * std::nextafter(middle, 1e6f)), sign | (code + 1)) << code;
    }
  }
}

TEST(Half, TinyHugeAndSpecialValues) {
  EXPECT_EQ(FloatToHalf(0x1p-149f), 0u);
  EXPECT_EQ(FloatToHalf(-0x1p-149f), 0x8000u);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0u);  // half of the smallest code: to even
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bffu);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00u);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::max()), 0x7c00u);
  EXPECT_EQ(FloatToHalf(-std::numeric_limits<float>::infinity()), 0xfc00u);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace hillstar
