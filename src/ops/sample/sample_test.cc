// The sampler of every level against the reference, and the reference at its edges.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ops/sample/sample_test_rows.h"

namespace hillstar {
namespace {

constexpr int64_t kVocabulary = 154880;

int32_t DrawFast(const CpuKernels& kernels, const std::vector<float>& logits,
                 const DrawParams& params, int64_t position) {
  const auto n = int64_t(logits.size());
  std::vector<uint64_t> scratch(DrawScratchBytes(n) / sizeof(uint64_t) + 1);
  return DrawToken(kernels, logits.data(), n, params, position,
                   reinterpret_cast<uint8_t*>(scratch.data()));
}
int32_t DrawPlain(const std::vector<float>& logits, const DrawParams& params, int64_t position) {
  return DrawTokenByReference(logits.data(), int64_t(logits.size()), params, position);
}

// Every id that comes at one of so many positions.
std::vector<int32_t> Drawn(const std::vector<float>& logits, const DrawParams& params,
                           int64_t positions = 2000) {
  std::vector<int32_t> ids;
  for (int64_t p = 0; p < positions; ++p) {
    const int32_t id = DrawFast(*AvailableKernels().front(), logits, params, p);
    EXPECT_EQ(id, DrawPlain(logits, params, p));
    ids.push_back(id);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

TEST(Sample, LevelsAgree) {
  for (int kind = 0; kind < kNumLogitKinds; ++kind) {
    for (const int64_t n : {1, 2, 15, 16, 17, 100, 1023, 1025, 5000}) {
      TestRandom random(uint64_t(kind * 10000 + n));
      const std::vector<float> logits = TestLogits(LogitKind(kind), n, random);
      const DrawParams params = TestDraw(random);
      const LogitRange range = reference::FindLargest(logits.data(), n);
      const double temperature = std::max(params.temperature, kGreedyTemperature);
      ExpectLevelsAgree("kind " + std::to_string(kind) + ", " + std::to_string(n) + " logits",
                        [&](const CpuKernels& k, KernelOutputs& out) {
                          const LogitRange found = k.find_largest(logits.data(), n);
                          out.AddFlag("is_finite", found.is_finite);
                          if (!range.is_finite) return;
                          // -0 and +0 are the same largest logit.
                          *out.Add<float>("largest", 1) = found.largest + 0.0f;
                          auto* bytes = out.Add<uint8_t>("weights", 8 * n);
                          std::vector<uint64_t> weights(static_cast<size_t>(n));
                          uint64_t sums[2];
                          sums[0] = k.weigh_logits(
                              {logits.data(), n, range.largest, temperature, weights.data()});
                          sums[1] = k.sum_kept({logits.data(), weights.data(), n / 3, n,
                                                params.min_weight, logits[size_t(n / 2)], n / 2});
                          std::memcpy(bytes, weights.data(), size_t(8 * n));
                          std::memcpy(out.Add<uint8_t>("sums", 16), sums, 16);
                        });
    }
  }
}

TEST(Sample, DrawsWhatTheReferenceDraws) {
  TestRandom random(7);
  for (int repeat = 0; repeat < 40; ++repeat) {
    for (int kind = 0; kind < kNumLogitKinds; ++kind) {
      const int64_t n = 1 + random.Below(random.Below(2) ? 20 : 3000);
      const std::vector<float> logits = TestLogits(LogitKind(kind), n, random);
      for (int draw = 0; draw < 12; ++draw) {
        const DrawParams params = TestDraw(random);
        const int64_t position = random.Below(1000);
        const int32_t want = DrawPlain(logits, params, position);
        for (const CpuKernels* kernels : AvailableKernels()) {
          ASSERT_EQ(DrawFast(*kernels, logits, params, position), want)
              << kernels->level << ", kind " << kind << ", " << n << " logits, "
              << DescribeDraw(params);
        }
      }
    }
  }
}

TEST(Sample, AVocabulary) {
  for (int kind = 0; kind < kNumLogitKinds; ++kind) {
    TestRandom random{uint64_t(kind)};
    const std::vector<float> logits = TestLogits(LogitKind(kind), kVocabulary, random);
    for (int draw = 0; draw < 6; ++draw) {
      const DrawParams params = TestDraw(random);
      ASSERT_EQ(DrawFast(*AvailableKernels().front(), logits, params, draw),
                DrawPlain(logits, params, draw))
          << "kind " << kind << ", " << DescribeDraw(params);
    }
  }
}

TEST(Sample, AMillionEqualLogitsDoNotOverflow) {
  const std::vector<float> logits(size_t{kMaxDrawnLogits}, 3.0f);
  SamplingParams params;
  for (const double top_p : {0.5, 1.0}) {
    params.top_p = top_p;
    const DrawParams draw = DrawParamsOf(params);
    for (int64_t position = 0; position < 3; ++position) {
      // All weigh the same, so the token is the word's share of the ids.
      const auto kept = uint64_t(top_p * double(kMaxDrawnLogits));
      EXPECT_EQ(uint64_t(DrawFast(*AvailableKernels().front(), logits, draw, position)),
                DrawTarget(RandomWord(0, uint64_t(position)), kept));
    }
  }
}

TEST(Sample, OneCandidateIsAlwaysDrawn) {
  EXPECT_EQ(Drawn({-7.0f}, DrawParamsOf({})), (std::vector<int32_t>{0}));
  EXPECT_EQ(Drawn({-kInfinity, 2.0f, -kInfinity}, DrawParamsOf({})), (std::vector<int32_t>{1}));
  // A weight rounds to 0 from ln(2) * 44 = 30.498 below the largest on.
  EXPECT_EQ(Drawn({0.0f, -30.6f, -1000.0f}, DrawParamsOf({})), (std::vector<int32_t>{0}));
  std::vector<uint64_t> weights(2);
  const float edge[] = {0.0f, -30.4f};
  reference::WeighLogits({edge, 2, 0.0f, 1.0, weights.data()});
  EXPECT_EQ(weights, (std::vector<uint64_t>{kLargestWeight, 1}));
}

TEST(Sample, SumsAreExact) {
  for (const LeastWeightDraw& draw : kLeastWeightDraws) {
    SamplingParams params;
    params.seed = draw.seed;
    EXPECT_EQ(DrawPlain(LeastWeightRow(), DrawParamsOf(params), 1), draw.id);
    for (const CpuKernels* kernels : AvailableKernels()) {
      EXPECT_EQ(DrawFast(*kernels, LeastWeightRow(), DrawParamsOf(params), 1), draw.id);
    }
  }
}

TEST(Sample, TopPOfZeroAndOne) {
  const std::vector<float> logits = {0, 1, 1, -2};
  SamplingParams params;
  params.top_p = 0;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{1}));
  params.top_p = 1;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 2, 3}));
  params.top_p = 1 - 0x1p-53;  // everything but a part of the last weight's unit
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(NucleusSum(UINT64_MAX, 12345), 12345u);
  EXPECT_EQ(NucleusSum(0, 12345), 1u);
  EXPECT_EQ(NucleusSum(uint64_t{1} << 63, 10), 5u);
  EXPECT_EQ(NucleusSum(uint64_t{1} << 63, 11), 6u);
}

TEST(Sample, TiesAtTheEdgeOfTheNucleusGoToLowerIds) {
  // Eight of equal weight: a half reaches 0.5 exactly, a little more takes one more.
  const std::vector<float> logits(8, 5.0f);
  SamplingParams params;
  params.top_p = 0.5;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 2, 3}));
  params.top_p = std::nextafter(0.5, 1.0);
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  params.top_p = 1;
  params.top_k = 3;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 2}));
  // Of the three that top_k leaves, two thirds are not reached by two of equal weight; and the
  // likeliest lie behind the ties.
  params.top_p = 0.7;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 2}));
  params.top_k = 4;
  params.top_p = 1;
  EXPECT_EQ(Drawn({1, 1, 1, 4, 5, 1}, DrawParamsOf(params), 20000),
            (std::vector<int32_t>{0, 1, 3, 4}));
}

TEST(Sample, MinPComesLast) {
  // 1/8, 1/4, 1/8, 1/2: the nucleus of 0.9 is the likeliest three.
  const std::vector<float> logits = {0, std::log(2.0f), 0, std::log(4.0f)};
  SamplingParams params;
  params.top_p = 0.8;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{0, 1, 3}));
  params.min_p = 0.3;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{1, 3}));
  params.min_p = 1;
  EXPECT_EQ(Drawn(logits, DrawParamsOf(params)), (std::vector<int32_t>{3}));
}

}  // namespace
}  // namespace hillstar
