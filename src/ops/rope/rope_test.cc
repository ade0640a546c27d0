#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "ops/kernel_test.h"

namespace hillstar {
namespace {

struct RopeInputs {
  AlignedVector<float> in, cos, sin;
};

RopeInputs MakeInputs(ValueKind kind, int64_t half, int64_t pos, TestRandom& random) {
  RopeInputs r{TestValues(kind, 2 * half, random), {}, {}};
  for (int64_t j = 0; j < half; ++j) {
    const double exponent = -static_cast<double>(j) / static_cast<double>(half);
    const double angle = static_cast<double>(pos) * std::pow(8e6, exponent);
    r.cos.push_back(static_cast<float>(std::cos(angle)));
    r.sin.push_back(static_cast<float>(std::sin(angle)));
  }
  return r;
}

TEST(Rope, EveryLevelGivesTheSameBits) {
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t half : {1, 4, 7, 8, 16, 17, 32, 64}) {
      for (int64_t pos : {0, 1, 63, 4095, 1048575}) {
        const RopeInputs r = MakeInputs(kind, half, pos, random);
        ExpectLevelsAgree(fmt::format("half {} pos {} {}", half, pos, ValueKindName(kind)),
                          [&](const CpuKernels& k, KernelOutputs& out) {
                            float* y = out.Add<float>("out", 2 * half, 1);
                            k.rope({r.in.data(), r.cos.data(), r.sin.data(), half, y});
                          });
      }
    }
  }
}

TEST(Rope, PairsInHalvesOut) {
  const float in[] = {1, 2, 3, 4, 5, 6}, cos[] = {1, 0, -1}, sin[] = {0, 1, 0};
  float out[6];
  reference::Rope({in, cos, sin, 3, out});
  const float expected[] = {1, -4, -5, 2, 3, -6};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out[i], expected[i]) << i;
}

// Position 0 turns nothing: cos = 1 and sin = 0 must give the inputs, bit for bit.
TEST(Rope, PositionZeroIsAPermutation) {
  TestRandom random(2);
  const RopeInputs r = MakeInputs(ValueKind::kNormal, 32, 0, random);
  float out[64];
  reference::Rope({r.in.data(), r.cos.data(), r.sin.data(), 32, out});
  for (size_t j = 0; j < 32; ++j) {
    EXPECT_EQ(out[j], r.in[2 * j]);
    EXPECT_EQ(out[32 + j], r.in[2 * j + 1]);
  }
}

// One rounding of the product b sin and one of the fma: |error| <= u |b sin| + u |out|.
TEST(Rope, TwoRoundingsFromDoublePrecision) {
  TestRandom random(3);
  const double u = 0x1p-24 * 1.001;
  const RopeInputs r = MakeInputs(ValueKind::kNormal, 32, 777, random);
  float out[64];
  reference::Rope({r.in.data(), r.cos.data(), r.sin.data(), 32, out});
  for (size_t j = 0; j < 32; ++j) {
    const double a = double{r.in[2 * j]}, b = double{r.in[2 * j + 1]};
    const double c = double{r.cos[j]}, s = double{r.sin[j]};
    EXPECT_LE(std::fabs(double{out[j]} - (a * c - b * s)),
              u * (std::fabs(b * s) + std::fabs(a * c - b * s)));
    EXPECT_LE(std::fabs(double{out[32 + j]} - (b * c + a * s)),
              u * (std::fabs(a * s) + std::fabs(b * c + a * s)));
  }
}

}  // namespace
}  // namespace hillstar
