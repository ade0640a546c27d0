#include "numerics/elementary.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace hillstar {
namespace {

// Relative error of Exp on [kExpLow, kExpHigh], u = 2^-24:
//   r: n kLn2High is exact (8 + 15 bits) and so is c - n kLn2High (a multiple of c's ulp >= 2^-25
//     below 1/2 where n != 0); the second fma rounds |r| < 1/2 by at most 2^-26; the constants miss
//     ln 2 by less than 2^-44, 128 times that is below 2^-37;
//   |r| <= 0.3466: rint's argument is off by at most 2^-17 in 1/2;
//   the series' first missing term r^8 / 8! is below 5.2e-9, by e^r >= 0.707: 7.4e-9;
//   coefficients: u / 0.707 sum |r|^k / k! over k >= 3: below 0.011 u;
//   Horner's fma: u (1 + 0.414 + 0.076 + 0.010 + 0.001), the weights being |r|^j times the value of
//     step j over e^r at r = -0.3466; the product with 2^n is exact.
// Together 1.512 u + 2^-26 + 2^-37 + 7.4e-9 < 1.13e-7 < 2^-23.
constexpr double kExpError = 0x1p-23;

template <typename Fn>
void ForEachFloat(float low, float high, uint32_t stride, const Fn& fn) {
  const uint32_t first = std::bit_cast<uint32_t>(low), last = std::bit_cast<uint32_t>(high);
  for (uint64_t bits = first; bits <= last; bits += stride) {
    fn(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
}

TEST(Exp, IsWithinItsBoundOfDoublePrecision) {
  double worst = 0;
  float worst_at = 0;
  const auto check = [&](float x) {
    const double exact = std::exp(double{x});
    const double error = std::fabs(double{Exp(x)} - exact) / exact;
    if (error > worst) worst = error, worst_at = x;
  };
  ForEachFloat(0x1p-40f, kExpHigh, 211, check);
  ForEachFloat(-0x1p-40f, kExpLow, 211, check);
  // Densest where |r| is largest: around the odd multiples of ln 2 / 2.
  for (int n = -125; n < 127; ++n) {
    const float turn = static_cast<float>((n + 0.5) * 0.6931471805599453);
    float x = turn;
    for (int i = 0; i < 50; ++i) check(x = std::nextafter(x, 1000.0f));
    x = turn;
    for (int i = 0; i < 50; ++i) check(x = std::nextafter(x, -1000.0f));
  }
  EXPECT_LE(worst, kExpError) << "at " << worst_at;
  EXPECT_GE(worst, kExpError / 4) << "the bound says nothing";
  RecordProperty("worst_relative_error_e12", static_cast<int>(worst * 1e12));
}

TEST(Exp, EndsOfTheRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(std::nextafter(kExpLow, -100.0f)), 0.0f);
  EXPECT_EQ(Exp(-infinity), 0.0f);
  EXPECT_GE(Exp(kExpLow), std::numeric_limits<float>::min());  // normal
  EXPECT_EQ(Exp(infinity), Exp(kExpHigh));
  EXPECT_EQ(Exp(1000.0f), Exp(kExpHigh));
  EXPECT_TRUE(std::isfinite(Exp(kExpHigh)));
  EXPECT_FALSE(std::signbit(Exp(-infinity)));
}

// One Exp, one addition, one division: 2^-23 + 2 u on 1 + e, which carries at most its own error.
TEST(Sigmoid, IsWithinItsBoundOfDoublePrecision) {
  const double bound = (kExpError + 2 * 0x1p-24) * (1 + 0x1p-20);
  const auto check = [&](float x) {
    const double exact = 1 / (1 + std::exp(-double{x}));
    ASSERT_LE(std::fabs(double{Sigmoid(x)} - exact), exact * bound) << x;
    ASSERT_LE(std::fabs(double{Silu(x)} - double{x} * exact), std::fabs(double{x} * exact) * bound)
        << x;
  };
  ForEachFloat(0x1p-40f, 87.0f, 4001, check);
  // Below, 1 / exp(87) nears the subnormal numbers, where rounding is no longer relative.
  ForEachFloat(-0x1p-40f, -80.0f, 4001, check);
  EXPECT_EQ(Sigmoid(0.0f), 0.5f);
  EXPECT_EQ(Sigmoid(100.0f), 1.0f);
  EXPECT_GT(Sigmoid(-1e30f), 0.0f);
  EXPECT_LT(Sigmoid(-1e30f), 0x1p-126f);
  EXPECT_EQ(Silu(0.0f), 0.0f);
}

TEST(Sums, TermIGoesToPartialIMod256) {
  // The values 2^24 and 1 in one partial lose the 1; in two partials they meet in the tree.
  std::vector<float> same(512, 0.0f), apart(512, 0.0f);
  same[0] = 0x1p24f, same[256] = 1, same[128] = -0x1p24f;
  EXPECT_EQ(Sum256(same.data(), 512), 0.0f);
  // Partial 64 takes its own 1 first, then meets partial 0 after 0 has met 128.
  apart[0] = 0x1p24f, apart[64] = 1, apart[128] = -0x1p24f;
  EXPECT_EQ(Sum256(apart.data(), 512), 1.0f);
}

TEST(Sums, TheTreeAddsTheUpperHalfEachTime) {
  float partial[kNumPartials] = {};
  partial[0] = 0x1p24f, partial[1] = 1, partial[129] = 1;  // 1 + 1 first, then 2^24 + 2
  EXPECT_EQ(FoldPartials(partial), 0x1p24f + 2);
  float other[kNumPartials] = {};
  other[0] = 0x1p24f, other[128] = 1, other[1] = 1;  // 2^24 + 1 is lost, then again
  EXPECT_EQ(FoldPartials(other), 0x1p24f);
}

TEST(Sums, DotRoundsEachTermOnce) {
  const float a[] = {1 + 0x1p-12f}, b[] = {1 + 0x1p-12f};
  std::vector<float> x(257, 0.0f), y(257, 0.0f);
  x[0] = -1, y[0] = 1;
  x[256] = a[0], y[256] = b[0];
  EXPECT_EQ(Dot256(x.data(), y.data(), 257), 0x1p-11f + 0x1p-24f);  // an fma keeps the 2^-24
}

TEST(Sums, EmptyAndShort) {
  const float x[] = {3, 4};
  EXPECT_EQ(Sum256(x, 0), 0.0f);
  EXPECT_EQ(Dot256(x, x, 0), 0.0f);
  EXPECT_EQ(Sum256(x, 1), 3.0f);
  EXPECT_EQ(Dot256(x, x, 2), 25.0f);
}

}  // namespace
}  // namespace hillstar
