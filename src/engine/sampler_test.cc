#include "engine/sampler.h"
#include "engine/token_logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hillstar {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int32_t DrawOnce(const SamplingParams& params, const std::vector<float>& logits,
                 int64_t position = 0) {
  Sampler sampler(params, {}, int64_t(logits.size()));
  return sampler.Draw(logits, position);
}

// How often each id is drawn at positions 0..n-1.
std::vector<int> Histogram(const SamplingParams& params, const std::vector<float>& logits, int n) {
  Sampler sampler(params, {}, int64_t(logits.size()));
  std::vector<int> counts(logits.size());
  for (int i = 0; i < n; ++i) ++counts[size_t(sampler.Draw(logits, i))];
  return counts;
}

TEST(Philox, EqualsThePublishedTestVectors) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomWord, IsSpreadOut) {
  int counts[10] = {};
  for (uint64_t i = 0; i < 20000; ++i) {
    ++counts[DrawTarget(RandomWord(7, i), 10)];
  }
  // 2000 expected in each; five standard deviations are 212.
  for (const int count : counts) EXPECT_NEAR(count, 2000, 212);
}

TEST(Exp, IsNearTheLibrarys) {
  EXPECT_EQ(ExpNonPositive(0), 1);
  EXPECT_EQ(ExpNonPositive(-800), 0);
  EXPECT_EQ(ExpNonPositive(-std::numeric_limits<double>::infinity()), 0);
  for (double x = -700; x < 0; x += 0.37) {
    EXPECT_NEAR(ExpNonPositive(x) / std::exp(x), 1, 1e-15) << x;
  }
}

TEST(Argmax, TakesTheLowerIdOfATie) {
  EXPECT_EQ(Argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Argmax(std::vector<float>(5, 0.0f)), 0);
  EXPECT_EQ(Argmax(std::vector<float>{-kInf, -5, -kInf}), 1);
}

TEST(Sampler, RefusesRowsWithoutAnAnswer) {
  for (const double temperature : {0.0, 1e-5, 1.0}) {
    SamplingParams params;
    params.temperature = temperature;
    for (const auto& row : std::vector<std::vector<float>>{
             {-kInf, -kInf, -kInf}, {1, kNan, 2}, {kNan, kNan}, {0, kInf}}) {
      try {
        DrawOnce(params, row);
        ADD_FAILURE() << "drawn at temperature " << temperature;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
      }
    }
  }
}

TEST(Sampler, TinyTemperaturesAndNucleiTakeTheMostLikely) {
  const std::vector<float> logits = {1, 5, 4.999f, -kInf, 5};
  for (const double temperature : {0.0, 1e-30, 1e-5, 0.99e-4}) {
    SamplingParams params;
    params.temperature = temperature;
    for (int64_t position = 0; position < 50; ++position) {
      EXPECT_EQ(DrawOnce(params, logits, position), 1) << temperature;
    }
  }
  for (const double top_p : {0.0, 1e-9}) {
    SamplingParams params;
    params.top_p = top_p;
    for (int64_t position = 0; position < 50; ++position) {
      EXPECT_EQ(DrawOnce(params, logits, position), 1) << top_p;
    }
  }
}

TEST(Sampler, GridOfParametersAlwaysGivesATokenThatCanBe) {
  const std::vector<std::vector<float>> rows = {
      {0, 0, 0, 0}, {-kInf, 3, -kInf, 2}, {1e30f, -1e30f, 0, 1e30f}, {-1e38f, 1e38f, 0, 0}};
  for (const auto& row : rows) {
    for (const double temperature : {0.0, 1e-4, 1e-3, 1.0, 100.0}) {
      for (const double top_p : {0.0, 1e-9, 0.5, 1.0}) {
        for (const int64_t top_k : {0, 1, 3, 1000}) {
          for (const double min_p : {0.0, 0.5, 1.0}) {
            const SamplingParams params{temperature, top_p, top_k, min_p};
            const int32_t id = DrawOnce(params, row, 3);
            ASSERT_GE(id, 0);
            ASSERT_LT(size_t(id), row.size());
            EXPECT_GT(row[size_t(id)], -kInf);
          }
        }
      }
    }
  }
}

TEST(Sampler, DrawsInProportion) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0, 0};
  const std::vector<int> counts = Histogram({}, logits, 16000);
  const double expected[] = {8000, 4000, 2000, 2000};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(counts[i], expected[i], 5 * std::sqrt(expected[i]));
}

TEST(Sampler, EqualLogitsAreDrawnEvenly) {
  const std::vector<int> counts = Histogram({}, std::vector<float>(8, -2.0f), 16000);
  for (const int count : counts) EXPECT_NEAR(count, 2000, 5 * std::sqrt(2000.0));
}

TEST(Sampler, TopKTopPAndMinPLeaveOutTheUnlikely) {
  const std::vector<float> logits = {0, std::log(2.0f), 0, std::log(4.0f)};  // 1/8 1/4 1/8 1/2
  SamplingParams top_k;
  top_k.top_k = 3;  // of the tie the lower id
  SamplingParams top_p;
  top_p.top_p = 0.7;  // 1/2 is too little, 3/4 enough
  SamplingParams min_p;
  min_p.min_p = 0.4;
  const auto k = Histogram(top_k, logits, 2000);
  EXPECT_TRUE(k[0] > 0 && k[1] > 0 && k[2] == 0 && k[3] > 0);
  for (const SamplingParams& params : {top_p, min_p}) {
    const auto counts = Histogram(params, logits, 2000);
    EXPECT_TRUE(counts[0] == 0 && counts[1] > 0 && counts[2] == 0 && counts[3] > 0);
  }
}

TEST(Sampler, DependsOnSeedAndPositionOnly) {
  const std::vector<float> logits(100, 1.0f);
  SamplingParams params;
  params.seed = 42;
  Sampler one(params, {}, 100);
  std::vector<int32_t> forward, backward;
  for (int64_t i = 0; i < 20; ++i) forward.push_back(one.Draw(logits, i));
  Sampler other(params, {}, 100);
  for (int64_t i = 19; i >= 0; --i) backward.insert(backward.begin(), other.Draw(logits, i));
  EXPECT_EQ(forward, backward);
  params.seed = 43;
  Sampler third(params, {}, 100);
  std::vector<int32_t> other_seed;
  for (int64_t i = 0; i < 20; ++i) other_seed.push_back(third.Draw(logits, i));
  EXPECT_NE(forward, other_seed);
}

TEST(Penalties, ChangeTheArgmaxAtTemperatureZero) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f};
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(DrawOnce(params, logits), 0);

  params.repetition_penalty = 1.2;  // over the prompt as well
  EXPECT_EQ(Sampler(params, std::vector<int32_t>{0}, 3).Draw(logits, 0), 1);

  params.repetition_penalty = 1;
  params.presence_penalty = 0.5;
  Sampler presence(params, std::vector<int32_t>{0}, 3);
  EXPECT_EQ(presence.Draw(logits, 0), 0);  // not over the prompt
  presence.Accept(0);
  EXPECT_EQ(presence.Draw(logits, 1), 1);

  params.presence_penalty = 0;
  params.frequency_penalty = 0.06;
  Sampler frequency(params, {}, 3);
  frequency.Accept(0);
  EXPECT_EQ(frequency.Draw(logits, 1), 0);
  frequency.Accept(0);
  EXPECT_EQ(frequency.Draw(logits, 2), 1);
}

TEST(Penalties, RepetitionMakesNegativeLogitsSmaller) {
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2;
  EXPECT_EQ(Sampler(params, std::vector<int32_t>{0}, 2).Draw(std::vector<float>{-1, -1.5f}, 0), 1);
}

TEST(Rules, BiasesComeAfterPenaltiesAndMayForbid) {
  const std::vector<float> logits = {2.0f, 1.9f, -1.0f};
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Sampler(params, {}, 3, {{{1, 0.2f}}, nullptr}).Draw(logits, 0), 1);
  EXPECT_EQ(Sampler(params, {}, 3, {{{0, -100}, {1, -100}}, nullptr}).Draw(logits, 0), 2);
  params.repetition_penalty = 100;  // 2 becomes 0.02, and then 2.02
  EXPECT_EQ(Sampler(params, std::vector<int32_t>{0}, 3, {{{0, 2}}, nullptr}).Draw(logits, 0), 0);
  EXPECT_THROW(Sampler(params, {}, 3, {{{3, 1}}, nullptr}), Error);
}

// Allows one token after the other.
class Script : public TokenConstraint {
 public:
  explicit Script(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  void Restrict(std::span<uint32_t> allowed) override {
    std::ranges::fill(allowed, 0u);
    if (next_ < ids_.size()) allowed[size_t(ids_[next_]) / 32] |= 1u << (ids_[next_] % 32);
  }
  void Accept(int32_t id) override { EXPECT_EQ(id, ids_[next_++]); }

 private:
  std::vector<int32_t> ids_;
  size_t next_ = 0;
};

TEST(Rules, AConstraintLeavesOnlyWhatItAllows) {
  std::vector<float> logits(70, 0.0f);
  logits[3] = 50;
  Sampler sampler({}, {}, 70, {{}, std::make_shared<Script>(std::vector<int32_t>{0, 31, 32, 69})});
  EXPECT_TRUE(sampler.needs_logits());
  for (const int32_t want : {0, 31, 32, 69}) {
    ASSERT_EQ(sampler.Draw(logits, want), want);
    sampler.Accept(want);
  }
  try {
    sampler.Draw(logits, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
    EXPECT_NE(std::string(error.what()).find("grammar"), std::string::npos);
  }
}

TEST(Logprobs, AreOfTheLogitsAsTheyCame) {
  const std::vector<float> logits = {0.0f, std::log(3.0f), 0.0f, std::log(5.0f)};
  const TokenLogprobs got = LogprobsOf(logits, 2, 3);
  EXPECT_EQ(got.drawn.id, 2);
  EXPECT_NEAR(got.drawn.logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(got.top.size(), 3u);
  EXPECT_EQ(got.top[0].id, 3);
  EXPECT_NEAR(got.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(got.top[1].id, 1);
  EXPECT_EQ(got.top[2].id, 0);  // of equal ones the lower id
  EXPECT_EQ(LogprobsOf(logits, 0, 20).top.size(), 4u);
  EXPECT_TRUE(LogprobsOf(logits, 0, 0).top.empty());
}

TEST(CheckSamplingParams, RefusesValuesOutsideTheirRange) {
  const auto refuses = [](auto change) {
    SamplingParams params;
    change(params);
    try {
      CheckSamplingParams(params);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kBadRequest;
    }
    return false;
  };
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.temperature = -0.1; }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.temperature = double(kNan); }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.top_p = 1.01; }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.top_k = -1; }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.min_p = 2; }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.repetition_penalty = 0; }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.presence_penalty = 3; }));
  EXPECT_TRUE(refuses([](SamplingParams& p) { p.frequency_penalty = -3; }));
  EXPECT_FALSE(refuses([](SamplingParams&) {}));
}

}  // namespace
}  // namespace hillstar
