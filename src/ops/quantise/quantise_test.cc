#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "numerics/e4m3.h"
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

// Without a low plane, and as e4m3 codes.
void ExpectShortRowsAgree(const AlignedVector<float>& x, int64_t padded, const std::string& note) {
  const int64_t n = static_cast<int64_t>(x.size());
  const auto add = [&](KernelOutputs& out) {
    return std::pair(out.Add<int8_t>("bytes", padded), out.Add<float>("scale", 1));
  };
  const std::string shape = fmt::format("of {} in {} {}", n, padded, note);
  ExpectLevelsAgree("one plane " + shape, [&](const CpuKernels& k, KernelOutputs& out) {
    const auto [bytes, scale] = add(out);
    out.AddFlag("finite", k.quantise_row({x.data(), n, padded, bytes, nullptr, scale}));
  });
  if (padded % 64 != 0) return;
  ExpectLevelsAgree("e4m3 " + shape, [&](const CpuKernels& k, KernelOutputs& out) {
    const auto [bytes, scale] = add(out);
    uint8_t* codes = reinterpret_cast<uint8_t*>(bytes);
    out.AddFlag("finite", k.encode_e4m3({x.data(), n, padded, codes, scale}));
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
      ExpectShortRowsAgree(x, (n + 15) / 16 * 16, ValueKindName(kind));
      ExpectShortRowsAgree(x, (n + 63) / 64 * 64, ValueKindName(kind));
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
  ExpectShortRowsAgree(x, (static_cast<int64_t>(x.size()) + 15) / 16 * 16, "ties");
}

// A row whose largest value is 448 has codes of the values themselves: every bf16 up to there, the
// midpoints of two codes among them.
TEST(Quantise, EveryBf16BecomesTheSameCodeAtEveryLevel) {
  AlignedVector<float> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    if (std::fabs(value) <= 448.0f) x.push_back(value);
  }
  const int64_t n = static_cast<int64_t>(x.size()), padded = (n + 63) / 64 * 64;
  ExpectShortRowsAgree(x, padded, "every bf16");
  std::vector<uint8_t> codes(static_cast<size_t>(padded));
  float scale = 0;
  EXPECT_TRUE(reference::EncodeE4m3({x.data(), n, padded, codes.data(), &scale}));
  EXPECT_EQ(scale, 4.0f);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(codes[i], FloatToE4m3(x[i])) << x[i];
}

TEST(Quantise, ARowWithoutALowPlaneHasTheSameHighOne) {
  TestRandom random(6);
  const AlignedVector<float> x = TestValues(ValueKind::kNormal, 64, random);
  int8_t hi[64], lo[64], alone[64];
  float scale, scale_alone;
  EXPECT_TRUE(reference::QuantiseRow({x.data(), 64, 64, hi, lo, &scale}));
  EXPECT_TRUE(reference::QuantiseRow({x.data(), 64, 64, alone, nullptr, &scale_alone}));
  EXPECT_EQ(scale, scale_alone);
  EXPECT_EQ(0, std::memcmp(hi, alone, sizeof hi));
}

TEST(Quantise, SmallestAndLargestRows) {
  const float smallest = kSmallestRowAmax, largest = std::numeric_limits<float>::max();
  for (float amax : {smallest, std::nextafter(smallest, 0.0f), std::nextafter(smallest, 1.0f),
                     largest, std::nextafter(largest, 0.0f), 0x1p-149f, 0x1p-126f}) {
    AlignedVector<float> x = {amax, -amax, amax / 3, -amax / 129, 0.0f, -0.0f};
    ExpectGroupsAgree(x, fmt::format("amax {:a}", amax));
    ExpectRowsAgree(x, 16, fmt::format("amax {:a}", amax));
    ExpectShortRowsAgree(x, 64, fmt::format("amax {:a}", amax));
    int8_t hi[16], lo[16];
    float scale = -1;
    EXPECT_TRUE(reference::QuantiseRow({x.data(), 6, 16, hi, lo, &scale}));
    EXPECT_EQ(scale, amax < smallest ? 0.0f : amax / 127.0f);
    EXPECT_EQ(hi[0], amax < smallest ? 0 : 127);
    EXPECT_EQ(hi[1], amax < smallest ? 0 : -127);
    uint8_t codes[64];
    EXPECT_TRUE(reference::EncodeE4m3({x.data(), 6, 64, codes, &scale}));
    EXPECT_EQ(scale, amax < smallest ? 0.0f : amax / 448.0f * 4.0f);
    EXPECT_EQ(codes[0], amax < smallest ? 0 : 0x7e);
    EXPECT_EQ(codes[1], amax < smallest ? 0 : 0xfe);
  }
}

// A code of NaN is never stored.
void ExpectNothingStored(const AlignedVector<float>& x) {
  const int64_t n = static_cast<int64_t>(x.size()), padded = (n + 63) / 64 * 64;
  std::vector<uint8_t> codes(static_cast<size_t>(padded), uint8_t{9});
  float scale = 9;
  EXPECT_FALSE(reference::EncodeE4m3({x.data(), n, padded, codes.data(), &scale}));
  EXPECT_EQ(scale, 0.0f);
  EXPECT_EQ(codes, std::vector<uint8_t>(static_cast<size_t>(padded), uint8_t{0}));
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
        ExpectShortRowsAgree(x, (n + 63) / 64 * 64, fmt::format("{} at {}", bad, at));
        ExpectNothingStored(x);
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

// With t = x / unit, unit = amax / 448: a code is off by at most 1 / 16 of a normal t and by 2^-10
// of a subnormal one; its integer rounds to steps of 1 / 64, which is exact for |t| >= 1 / 8. t and
// unit round by 4 u in all.
TEST(Quantise, ErrorOfFp8IsThatOfTheCodeAndOfItsSteps) {
  TestRandom random(5);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const ValueKind kind = repeat % 2 ? ValueKind::kNormal : ValueKind::kWideRange;
    const AlignedVector<float> x = TestValues(kind, 512, random);
    uint8_t codes[512];
    float scale = 0;
    EXPECT_TRUE(reference::EncodeE4m3({x.data(), 512, 512, codes, &scale}));
    for (size_t i = 0; i < x.size(); ++i) {
      const double t = double{x[i]} / (double{scale} / 4);
      const double steps = 0x1p-7 * (std::fabs(t) < 0.1251 ? 1 : 0);
      const double bound = std::max(std::fabs(t) / 16, 0x1p-10) + steps + 448 * 0x1p-22;
      EXPECT_LE(std::fabs(kE4m3Steps.steps[codes[i]] / 64.0 - t), bound) << t;
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
  ExpectShortRowsAgree(x, 64, "both infinities");
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
