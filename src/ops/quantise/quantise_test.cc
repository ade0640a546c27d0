#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "ops/kernel_test.h"

namespace hillstar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 128, 192, 512, 576, 2048, 6144};

void ExpectGroupsAgree(const AlignedVector<float>& x, const std::string& note) {
  const int64_t n = static_cast<int64_t>(x.size()), groups = NumGroups(n);
  ExpectLevelsAgree(fmt::format("groups of {} {}", n, note),
                    [&](const CpuKernels& k, KernelOutputs& out) {
                      QuantiseGroupsSlice s;
                      s.x = x.data();
                      s.planes.cols = n;
                      s.planes.hi = out.Add<int8_t>("hi", groups * kGroup);
                      s.planes.lo = out.Add<int8_t>("lo", groups * kGroup);
                      s.planes.scale = out.Add<float>("scale", groups);
                      s.planes.sum = out.Add<int32_t>("sum", groups);
                      out.AddFlag("finite", k.quantise_groups(s));
                    });
}

void ExpectRowsAgree(const AlignedVector<float>& x, int64_t padded, const std::string& note) {
  const int64_t n = static_cast<int64_t>(x.size());
  ExpectLevelsAgree(fmt::format("row of {} in {} {}", n, padded, note),
                    [&](const CpuKernels& k, KernelOutputs& out) {
                      QuantiseRowSlice s;
                      s.x = x.data();
                      s.n = n;
                      s.padded = padded;
                      s.hi = out.Add<int8_t>("hi", padded);
                      s.lo = out.Add<int8_t>("lo", padded);
                      s.scale = out.Add<float>("scale", 1);
                      out.AddFlag("finite", k.quantise_row(s));
                    });
}

TEST(Quantise, EveryLevelGivesTheSameBits) {
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t n : kLengths) {
      const AlignedVector<float> x = TestValues(kind, n, random);
      ExpectGroupsAgree(x, ValueKindName(kind));
      ExpectRowsAgree(x, (n + 15) / 16 * 16, ValueKindName(kind));
      ExpectRowsAgree(x, (n + 63) / 64 * 64, ValueKindName(kind));
    }
  }
}

// Fractions at and next to the halves where rint decides, on both planes.
TEST(Quantise, TiesRoundToEvenAtEveryLevel) {
  AlignedVector<float> x = {127.0f};  // amax: the scale is 1
  for (int i = -120; i < 120; ++i) {
    for (float part : {0.0f, 0.5f, 0x1p-9f, 0x3p-9f, 0x1.fep-2f, 0x1.fffffep-2f}) {
      const float v = static_cast<float>(i) + part;
      for (float near : {v, std::nextafter(v, 200.0f), std::nextafter(v, -200.0f)}) {
        x.push_back(near);
      }
    }
  }
  ExpectRowsAgree(x, (static_cast<int64_t>(x.size()) + 15) / 16 * 16, "ties");
}

TEST(Quantise, SmallestAndLargestRows) {
  const float smallest = kSmallestRowAmax, largest = std::numeric_limits<float>::max();
  for (float amax : {smallest, std::nextafter(smallest, 0.0f), std::nextafter(smallest, 1.0f),
                     largest, std::nextafter(largest, 0.0f), 0x1p-149f, 0x1p-126f}) {
    AlignedVector<float> x = {amax, -amax, amax / 3, -amax / 129, 0.0f, -0.0f};
    ExpectGroupsAgree(x, fmt::format("amax {:a}", amax));
    ExpectRowsAgree(x, 16, fmt::format("amax {:a}", amax));
    int8_t hi[16], lo[16];
    float scale = -1;
    EXPECT_TRUE(reference::QuantiseRow({x.data(), 6, 16, hi, lo, &scale}));
    EXPECT_EQ(scale, amax < smallest ? 0.0f : amax / 127.0f);
    EXPECT_EQ(hi[0], amax < smallest ? 0 : 127);
    EXPECT_EQ(hi[1], amax < smallest ? 0 : -127);
  }
}

TEST(Quantise, NonFiniteValuesGiveFalseAndZeroPlanes) {
  TestRandom random(2);
  for (int64_t n : {1, 17, 64, 130}) {
    for (int64_t at = 0; at < n; at += 13) {
      for (float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
        AlignedVector<float> x = TestValues(ValueKind::kNormal, n, random);
        x[static_cast<size_t>(at)] = bad;
        ExpectGroupsAgree(x, fmt::format("{} at {}", bad, at));
        ExpectRowsAgree(x, (n + 15) / 16 * 16, fmt::format("{} at {}", bad, at));
        TestPlanes p(1, n);
        std::fill(p.hi.begin(), p.hi.end(), int8_t{9});
        EXPECT_FALSE(reference::QuantiseGroups({x.data(), p.view}));
        const int64_t g = at / kGroup;
        for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
          EXPECT_EQ(p.hi[static_cast<size_t>(i)], 0);
          EXPECT_EQ(p.lo[static_cast<size_t>(i)], 0);
        }
        EXPECT_EQ(p.scale[static_cast<size_t>(g)], 0.0f);
        EXPECT_EQ(p.sum[static_cast<size_t>(g)], 0);
      }
    }
  }
}

// One infinity of each sign in a row must not cancel in a check by sums.
TEST(Quantise, OppositeInfinitiesAreFound) {
  AlignedVector<float> x(64, 1.0f);
  x[3] = kInfinity;
  x[19] = -kInfinity;
  ExpectGroupsAgree(x, "both infinities");
  ExpectRowsAgree(x, 64, "both infinities");
  TestPlanes p(1, 64);
  EXPECT_FALSE(reference::QuantiseGroups({x.data(), p.view}));
}

// With step = s / 256 and t = x * (1 / s): t is two roundings, |t| <= 127 (1 + u)^2, so off by at
// most 127 * 2 u = 127 * 2^-23 in units of s, 256 times that in steps (0.0039); h = rint(t) is
// exact, and so are t - h (both are multiples of t's ulp, and the difference is at most 1/2) and
// its multiple by 256. l = rint adds half a step. Where |256 (t - h)| >= 127.5, l is cut from 128
// to 127 and the error is at most 1 step. Both follow in double precision from the planes alone.
TEST(Quantise, ErrorIsAtMostHalfAStep) {
  TestRandom random(3);
  const double slack = 256 * 127 * 0x1p-23 * (1 + 0x1p-20);
  int64_t num_cut = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const ValueKind kind = repeat % 2 ? ValueKind::kNormal : ValueKind::kWideRange;
    const AlignedVector<float> x = TestValues(kind, 512, random);
    const TestPlanes p = QuantiseTestRows(1, 512, x);
    for (size_t i = 0; i < x.size(); ++i) {
      const double step = double{p.scale[i / kGroup]};
      const double error = std::fabs(double{x[i]} - step * (256.0 * p.hi[i] + p.lo[i])) / step;
      const bool may_be_cut = std::abs(p.lo[i]) == 127;
      num_cut += may_be_cut && error > 0.5 + slack;
      EXPECT_LE(error, (may_be_cut ? 1.0 : 0.5) + slack) << x[i];
    }
  }
  EXPECT_GT(num_cut, 0) << "the cut case was never met";
}

TEST(Quantise, SumIsTheSumOfThePlanes) {
  TestRandom random(4);
  const TestPlanes p = QuantiseTestRows(3, 130, TestValues(ValueKind::kNormal, 390, random));
  for (size_t g = 0; g < p.sum.size(); ++g) {
    int32_t sum = 0;
    for (size_t i = g * kGroup; i < (g + 1) * kGroup; ++i) sum += 256 * p.hi[i] + p.lo[i];
    EXPECT_EQ(p.sum[g], sum);
  }
}

}  // namespace
}  // namespace hillstar
