#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "numerics/elementary.h"
#include "ops/kernel_test.h"

namespace hillstar {
namespace {

void ExpectFloatLinearAgrees(int64_t rows, int64_t cols, int64_t tokens,
                             const AlignedVector<float>& w, const AlignedVector<float>& x,
                             const std::string& note) {
  for (int64_t first = 0; first < rows; first += 2) {
    ExpectLevelsAgree(
        fmt::format("[{}, {}] {} tokens from row {}, {}", rows, cols, tokens, first, note),
        [&](const CpuKernels& k, KernelOutputs& out) {
          FloatLinearSlice s;
          s.w = w.data();
          s.x = x.data();
          s.cols = cols;
          s.num_tokens = tokens;
          s.first_row = first;
          s.num_rows = rows - first;
          s.y_stride = rows + 1;
          s.y = out.Add<float>("y", tokens * s.y_stride, 1);
          k.float_linear(s);
        });
  }
}

TEST(FloatLinear, EveryLevelGivesTheSameBits) {
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t cols : {1, 15, 16, 17, 63, 64, 65, 192, 255, 256, 257, 272, 300, 512, 576, 2048}) {
      const AlignedVector<float> w = TestValues(kind, 5 * cols, random);
      const AlignedVector<float> x = TestValues(ValueKind::kNormal, 3 * cols, random);
      ExpectFloatLinearAgrees(5, cols, 3, w, x, ValueKindName(kind));
    }
  }
  const AlignedVector<float> w = TestValues(ValueKind::kNormal, 6144, random);
  ExpectFloatLinearAgrees(1, 6144, 1, w, TestValues(ValueKind::kNormal, 6144, random), "long row");
}

// Every product underflows to -0. A kernel that pads the end of a row with zeros would lose the
// sign of some partial sums, and with it the sign of the result.
TEST(FloatLinear, NegativeUnderflowKeepsItsSign) {
  for (int64_t cols : {256, 257, 263, 512, 600}) {
    const AlignedVector<float> w(static_cast<size_t>(cols), 1e-30f);
    const AlignedVector<float> x(static_cast<size_t>(cols), -1e-30f);
    ExpectFloatLinearAgrees(1, cols, 1, w, x, "underflow");
  }
}

// A term meets at most cols / 256 + 1 fma and 8 additions: gamma of that on the magnitudes.
TEST(FloatLinear, IsWithinItsBoundOfDoublePrecision) {
  TestRandom random(2);
  for (int64_t cols : {1, 257, 2048, 6144}) {
    const AlignedVector<float> w = TestValues(ValueKind::kNormal, cols, random);
    const AlignedVector<float> x = TestValues(ValueKind::kNormal, cols, random);
    float y = 0;
    FloatLinearSlice s{w.data(), x.data(), cols, 1, 0, 1, &y, 1};
    reference::FloatLinear(s);
    double exact = 0, magnitude = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      exact += double{w[i]} * double{x[i]};
      magnitude += std::fabs(double{w[i]} * double{x[i]});
    }
    const double roundings = static_cast<double>(cols / 256 + 9);
    EXPECT_LE(std::fabs(double{y} - exact), roundings * 0x1p-24 * 1.001 * magnitude);
  }
}

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Choice Choose(const std::vector<float>& logits, const std::vector<float>& bias, int64_t num_chosen,
              bool normalise = true, float scaling = 1.0f) {
  Choice result;
  result.experts.assign(static_cast<size_t>(num_chosen), -1);
  result.weights.assign(static_cast<size_t>(num_chosen), -1.0f);
  std::vector<float> scratch(logits.size());
  RouterChoice c;
  c.logits = logits.data();
  c.bias = bias.data();
  c.num_experts = static_cast<int64_t>(logits.size());
  c.num_chosen = num_chosen;
  c.normalise = normalise;
  c.scaling = scaling;
  c.scores = scratch.data();
  c.experts = result.experts.data();
  c.weights = result.weights.data();
  ChooseExperts(c);
  return result;
}

std::vector<float> Normals(int64_t n, TestRandom& random) {
  const AlignedVector<float> x = TestValues(ValueKind::kNormal, n, random);
  return {x.begin(), x.end()};
}

TEST(Router, TiesGoToTheLowerIndex) {
  const Choice equal = Choose(std::vector<float>(16, 0.5f), std::vector<float>(16, 1.0f), 4);
  EXPECT_EQ(equal.experts, (std::vector<int32_t>{0, 1, 2, 3}));
  std::vector<float> logits(16, -1.0f);
  logits[9] = logits[4] = logits[13] = 2.0f;
  EXPECT_EQ(Choose(logits, std::vector<float>(16, 0.0f), 5).experts,
            (std::vector<int32_t>{4, 9, 13, 0, 1}));
}

TEST(Router, TheChoiceIsAStableSortOfScorePlusBias) {
  TestRandom random(3);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const std::vector<float> logits = Normals(256, random);
    // Biases of trained models lie close together, where bf16 would merge them.
    std::vector<float> bias(256);
    for (float& b : bias) b = random.Uniform(6.817f, 7.063f);
    std::vector<int32_t> order(256);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const size_t i = static_cast<size_t>(a), j = static_cast<size_t>(b);
      return Sigmoid(logits[i]) + bias[i] > Sigmoid(logits[j]) + bias[j];
    });
    order.resize(8);
    EXPECT_EQ(Choose(logits, bias, 8).experts, order);
  }
}

TEST(Router, TheBiasSelectsAndDoesNotWeigh) {
  TestRandom random(4);
  const std::vector<float> logits = Normals(32, random);
  std::vector<float> bias(32, 0.0f);
  for (size_t e : {3u, 8u, 30u}) bias[e] = 100.0f;
  const Choice c = Choose(logits, bias, 3, true, 2.5f);
  double sum = 0;
  for (int32_t e : c.experts) {
    EXPECT_TRUE(e == 3 || e == 8 || e == 30) << e;
    sum += 1 / (1 + std::exp(-double{logits[static_cast<size_t>(e)]}));
  }
  for (size_t k = 0; k < 3; ++k) {
    const double g = 1 / (1 + std::exp(-double{logits[static_cast<size_t>(c.experts[k])]}));
    // g and sum: 2^-22 relative each (docs/numerics.md), three additions, division, scaling.
    EXPECT_NEAR(double{c.weights[k]}, g / sum * 2.5, g / sum * 2.5 * (2 * 0x1p-22 + 5 * 0x1p-24));
  }
}

TEST(Router, WithoutNormalisationTheWeightIsTheScoreTimesTheScaling) {
  TestRandom random(5);
  const std::vector<float> logits = Normals(16, random), bias(16, 0.0f);
  const Choice c = Choose(logits, bias, 4, false, 2.5f);
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(c.weights[k], Sigmoid(logits[static_cast<size_t>(c.experts[k])]) * 2.5f);
  }
}

TEST(Router, TheScalingIsAppliedOnce) {
  const Choice c = Choose({0.3f, -5.0f}, {0.0f, 0.0f}, 1, true, 2.5f);
  EXPECT_EQ(c.experts[0], 0);
  EXPECT_EQ(c.weights[0], 2.5f);  // a single expert's share is g / (g + 1e-20) = 1
}

// Scores of almost nothing: without the guard 1e-20 each weight would be 1 / 8; with it they
// vanish, and nothing is divided by zero.
TEST(Router, VanishingScoresGiveVanishingWeights) {
  const Choice c = Choose(std::vector<float>(16, -1e4f), std::vector<float>(16, 0.0f), 8);
  for (float w : c.weights) {
    EXPECT_TRUE(std::isfinite(w));
    EXPECT_GE(w, 0.0f);
    EXPECT_LT(w, 1e-15f);
  }
}

TEST(Router, AllExpertsCanBeChosen) {
  TestRandom random(6);
  Choice c = Choose(Normals(16, random), Normals(16, random), 16);
  std::sort(c.experts.begin(), c.experts.end());
  for (int32_t e = 0; e < 16; ++e) EXPECT_EQ(c.experts[static_cast<size_t>(e)], e);
}

}  // namespace
}  // namespace hillstar
