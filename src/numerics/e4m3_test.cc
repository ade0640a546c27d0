#include "numerics/e4m3.h"

#include <gtest/gtest.h>

#include <vector>

namespace hillstar {
namespace {

bool IsNanCode(int code) { return (code & 0x7f) == 0x7f; }

// The definition of the format, by arithmetic instead of bit moves.
double ByDefinition(int code) {
  const int exponent = (code >> 3) & 15;
  const double fraction = (code & 7) / 8.0, sign = code & 0x80 ? -1.0 : 1.0;
  return exponent == 0 ? sign * fraction * std::exp2(-6)
                       : sign * (1 + fraction) * std::exp2(exponent - 7);
}

// The nearest code by a search of all of them: the even one of two that are equally near.
uint8_t NearestBySearch(double x) {
  int best = -1;
  double best_error = 0;
  for (int code = 0; code < 128; ++code) {
    if (IsNanCode(code)) continue;
    const double error = std::fabs(std::fabs(x) - ByDefinition(code));
    const bool is_better = best < 0 || error < best_error;
    if (is_better || (error == best_error && code % 2 == 0)) {
      best = code;
      best_error = error;
    }
  }
  return uint8_t(best | (std::signbit(x) ? 0x80 : 0));
}

TEST(E4m3, AllCodesDecodeAsDefinedAndComeBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = E4m3ToFloat(uint8_t(code));
    if (IsNanCode(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(double{value}, ByDefinition(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(FloatToE4m3(value), code);
  }
  EXPECT_EQ(E4m3ToFloat(0x7e), kE4m3Max);
  EXPECT_EQ(E4m3ToFloat(0x01), 0x1p-9f);
}

TEST(E4m3, AllBf16ValuesGoToTheNearestCode) {
  int num_saturated = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float x = std::bit_cast<float>(bits << 16);
    if (std::isnan(x)) continue;
    const bool is_beyond = std::fabs(x) > kE4m3Max;  // where a search by infinity would fail
    const float nearest = is_beyond ? std::copysign(kE4m3Max, x) : x;
    ASSERT_EQ(FloatToE4m3(x), NearestBySearch(double{nearest})) << x;
    num_saturated += is_beyond;
  }
  EXPECT_GT(num_saturated, 0);
}

// The midpoints of neighbours, carries across binades and into the first normal code among them,
// and the floats next to them.
TEST(E4m3, TiesGoToTheEvenCode) {
  for (int code = 0; code < 0x7e; ++code) {
    const float middle = float((ByDefinition(code) + ByDefinition(code + 1)) / 2);
    const uint8_t even = uint8_t(code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(FloatToE4m3(middle), even) << code;
    EXPECT_EQ(FloatToE4m3(-middle), even | 0x80) << code;
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 1e9f)), code + 1);
  }
}

TEST(E4m3, EdgesOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, std::nextafter(448.0f, 500.0f), 464.0f, 479.0f, 65504.0f,
                        std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(FloatToE4m3(x), 0x7e) << x;
    EXPECT_EQ(FloatToE4m3(-x), 0xfe) << x;
  }
  for (const float x : {0.0f, 1e-45f, 1e-38f, 0x1p-11f, 0x1p-10f}) {
    EXPECT_EQ(FloatToE4m3(x), 0x00) << x;
    EXPECT_EQ(FloatToE4m3(-x), 0x80) << x;
  }
}

TEST(E4m3, StepsAreTheValuesTimes64) {
  for (int code = 0; code < 256; ++code) {
    const double exact = ByDefinition(code) * 64;
    ASSERT_EQ(kE4m3Steps.steps[size_t(code)], std::nearbyint(exact)) << code;
    const PlanePair planes = E4m3Planes(uint8_t(code));
    EXPECT_EQ(256 * planes.hi + planes.lo, kE4m3Steps.steps[size_t(code)]) << code;
    if (IsNanCode(code)) continue;
    EXPECT_LE(std::abs(planes.hi), int(kE4m3LargestHigh)) << code;
    const bool is_exact = std::fabs(ByDefinition(code)) >= 0.125;
    EXPECT_LE(std::fabs(exact - kE4m3Steps.steps[size_t(code)]), is_exact ? 0.0 : 0.5) << code;
  }
}

TEST(E4m3, RowsOfEveryMagnitude) {
  for (const float amax : {448.0f, 65504.0f, 1.0f, 0x1p-100f, 3e38f}) {
    const std::vector<float> x = {amax, -amax, amax / 3, -amax / 448, 0.0f, -0.0f};
    std::vector<uint8_t> codes(x.size());
    const float scale = EncodeE4m3Row(x.data(), int64_t(x.size()), codes.data());
    EXPECT_EQ(scale, amax / 448 * 4) << amax;
    EXPECT_EQ(codes[0], 0x7e) << amax;
    EXPECT_EQ(codes[1], 0xfe) << amax;
    EXPECT_EQ(codes[2], FloatToE4m3(448.0f / 3)) << amax;
    EXPECT_EQ(codes[3], FloatToE4m3(-1)) << amax;
    EXPECT_EQ(codes[4], 0x00) << amax;
    EXPECT_EQ(codes[5], 0x80) << amax;
  }
  for (const float amax : {0.0f, 1e-45f, 1e-38f, std::nextafter(0x1p-100f, 0.0f)}) {
    const std::vector<float> x = {amax, -amax, amax / 2, -0.0f};
    std::vector<uint8_t> codes(x.size(), uint8_t{9});
    EXPECT_EQ(EncodeE4m3Row(x.data(), int64_t(x.size()), codes.data()), 0.0f) << amax;
    EXPECT_EQ(codes, std::vector<uint8_t>(x.size(), uint8_t{0})) << amax;
  }
}

}  // namespace
}  // namespace hillstar
