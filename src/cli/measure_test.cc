// score, eval and bench against a scripted engine.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "cli/bandwidth.h"
#include "cli/bench.h"
#include "cli/eval.h"
#include "cli/score.h"
#include "cli/terminal.h"
#include "engine/fake_engine.h"
#include "formats/safetensors_test_files.h"

namespace hillstar {
namespace {

TEST(Bench, NoShareOfABoundIsAboveAll) {
  EXPECT_EQ(ShareText(0.5134), "51.3 %");
  EXPECT_EQ(ShareText(1), "100.0 %");
  EXPECT_EQ(ShareText(1.0001), "over the bound");
}

// After every token its successor is the most likely.
FakeModel CountingModel() {
  return [](std::span<const int32_t> ids) {
    std::vector<float> logits(264, 0.0f);
    logits[size_t((ids.back() + 1) % 264)] = 3.0f;
    return logits;
  };
}

constexpr const char* kOracle = R"({"model":"counter","cases":[
  {"name":"a","prompt_ids":[1,2,3],"greedy_ids":[4,5],"argmax":[2,3,4,5,6],
   "margin":[3,3,3,3,3],"top_logits":[[4,3.0],[0,0.25]],"mtp_argmax":[2,3,4,5,0]},
  {"name":"b","prompt_ids":[10],"greedy_ids":[11],"argmax":[11,99],"margin":[3,0.001]}]})";

TEST(Score, CountsEqualNearAndDifferentPositions) {
  FakeEngine engine(CountingModel());
  const Oracle oracle = ParseOracle(kOracle);
  EXPECT_TRUE(oracle.has_mtp());
  ScoreReport report = ScoreOracle(engine, oracle, 0.01, {});
  EXPECT_EQ(report.next.positions, 7);
  EXPECT_EQ(report.next.equal, 6);
  EXPECT_EQ(report.next.near_ties, 1);
  EXPECT_EQ(report.mtp.positions, 4);
  EXPECT_EQ(report.mtp.equal, 4);
  EXPECT_TRUE(report.passes());
  ASSERT_EQ(report.differences.size(), 1u);
  EXPECT_EQ(report.differences[0].case_name, "b");
  EXPECT_EQ(report.differences[0].position, 1);
  EXPECT_EQ(report.differences[0].expected, 99);
  EXPECT_EQ(report.differences[0].got, 12);
  EXPECT_DOUBLE_EQ(report.largest_logit_difference, 0.25);
  EXPECT_FALSE(ScoreOracle(engine, oracle, 0.0001, {}).passes());
}

TEST(Score, AnMtpDifferenceIsJudgedByOurMarginWhereNoneIsGiven) {
  FakeEngine engine(CountingModel());
  std::string text = kOracle;
  text.replace(text.find("\"mtp_argmax\":[2,3"), 17, "\"mtp_argmax\":[2,7");
  // The fake engine's margin of every MTP token is 1.
  EXPECT_TRUE(ScoreOracle(engine, ParseOracle(text), 1.5, {}).mtp.passes());
  const ScoreReport report = ScoreOracle(engine, ParseOracle(text), 0.5, {});
  EXPECT_FALSE(report.mtp.passes());
  EXPECT_FALSE(report.passes());
  ASSERT_EQ(report.differences.size(), 2u);
  EXPECT_TRUE(report.differences[0].is_mtp);
  EXPECT_EQ(report.differences[0].margin, 1.0);
}

TEST(Score, RefusesDamagedOracles) {
  for (const char* text :
       {"", "[]", "{}", R"({"cases":[]})", R"({"cases":[1]})", R"({"cases":[{"prompt_ids":[1]}]})",
        R"({"cases":[{"prompt_ids":[1],"argmax":[1],"margin":["x"]}]})",
        R"({"cases":[{"prompt_ids":[1],"argmax":[1,2],"margin":[1]}]})",
        R"({"cases":[{"prompt_ids":[4294967297],"argmax":[1],"margin":[1]}]})",
        R"({"cases":[{"prompt_ids":[0.5],"argmax":[1],"margin":[1]}]})",
        R"({"cases":[{"prompt_ids":[1],"argmax":[-1],"margin":[1]}]})"}) {
    EXPECT_THROW(ParseOracle(text), Error) << text;
  }
}

TEST(Hidden, ComparesEachStage) {
  // Two layers of hidden size 4: three stages without and four with the one after the last layer.
  class TappedEngine : public FakeEngine {
   public:
    using FakeEngine::FakeEngine;
    std::unique_ptr<Sequence> NewSequence(const SequenceOptions& options) override {
      const float values[8] = {1, 1, 1, 1, 2, 2, 2, 2};
      for (int64_t layer = 0; layer <= 3; ++layer) tap()(layer, 0, 2, values);
      return FakeEngine::NewSequence(options);
    }
  };
  TappedEngine engine(CountingModel());
  HiddenReference reference;
  reference.ids = {1, 2};
  reference.hidden_size = 4;
  reference.num_stages = 3;
  for (int stage = 0; stage < 3; ++stage) {
    for (const float x : {1.0f, 1.0f, 1.0f, 1.0f, 2.0f, 2.0f, 2.0f, 2.0f}) {
      reference.values.push_back(stage == 2 && x == 1 ? 1.5f : x);
    }
  }
  const auto rows = CompareHidden(engine, reference).stages;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].stage, "before layer 1");
  EXPECT_EQ(rows[1].relative_l2, 0);
  EXPECT_EQ(rows[2].stage, "after the final norm");
  EXPECT_NEAR(rows[2].worst_token, 0.5 / 1.5, 1e-12);
  EXPECT_NEAR(rows[2].relative_l2, std::sqrt(4 * 0.25 / (4 * 2.25 + 4 * 4)), 1e-12);
  reference.num_stages = 6;
  EXPECT_THROW(CompareHidden(engine, reference), Error);
}

// Token 0 is undecided after layer 1 and takes the expert that the reference does not take.
TEST(Hidden, DecidesTiesAsTheReferenceDoes) {
  class UndecidedEngine : public FakeEngine {
   public:
    using FakeEngine::FakeEngine;
    void SetRouterTap(RouterTap router) override { router_ = std::move(router); }
    std::unique_ptr<Sequence> NewSequence(const SequenceOptions& options) override {
      float values[12] = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
      const float gaps[3] = {1e-5f, 1e-5f, 0.5f};
      bool others[3] = {};
      for (int64_t layer = 0; layer <= 3; ++layer) {
        for (int t = 1; t < 3; ++t) values[4 * t] *= 1.0001f;  // an error that every token has
        tap()(layer, 0, 3, values);
        if (layer != 1) continue;
        router_(layer, 0, gaps, others);
        if (!others[0]) values[0] = 2;
        if (others[1]) values[4] = 9;  // this one was right
      }
      return FakeEngine::NewSequence(options);
    }

   private:
    RouterTap router_;
  };
  UndecidedEngine engine(CountingModel());
  HiddenReference reference{{1, 2, 3}, 3, 4, {}};
  for (int stage = 0; stage < 3; ++stage) {
    for (int i = 0; i < 12; ++i) reference.values.push_back(float(1 + i / 4));
  }
  const HiddenReport report = CompareHidden(engine, reference);
  ASSERT_EQ(report.ties.size(), 1u);
  EXPECT_EQ(report.ties[0].layer, 1);
  EXPECT_EQ(report.ties[0].position, 0);
  EXPECT_NEAR(report.ties[0].gap, 1e-5, 1e-9);
  EXPECT_NEAR(report.ties[0].error, 0.5, 1e-9);
  EXPECT_EQ(report.ties[0].other_error, 0);
  EXPECT_GT(report.stages[2].relative_l2, 0.1);
  EXPECT_LT(report.stages[2].ties_decided, 1e-3);
}

TEST(Hidden, ReadsTheDemoModelsFile) {
  const std::string folder = HILLSTAR_DEMO_CHECKPOINT;
  if (folder.empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const HiddenReference reference = ReadHiddenReference(folder + "/hidden.safetensors");
  EXPECT_EQ(reference.hidden_size, 384);
  EXPECT_EQ(reference.values.size(),
            size_t(reference.num_stages) * reference.ids.size() * size_t(384));
  EXPECT_TRUE(std::isfinite(reference.values.back()));
}

TEST(Hidden, RefusesAReferenceThatIsNotFinite) {
  const TempFolder temp;
  const float values[8] = {1, 1, 1, 1, 1, std::nanf(""), 1, 1};  // two stages of two tokens
  const int32_t ids[2] = {1, 2};
  const std::string header = R"({"ids":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
                             R"("hidden":{"dtype":"F32","shape":[2,2,2],"data_offsets":[8,40]}})";
  const auto length = uint64_t(header.size());
  std::ofstream file(temp.path() / "hidden.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header;
  file.write(reinterpret_cast<const char*>(ids), sizeof ids);
  file.write(reinterpret_cast<const char*>(values), sizeof values);
  file.close();
  try {
    ReadHiddenReference(temp.path() / "hidden.safetensors");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("stage 1, position 0"), std::string::npos)
        << error.what();
  }
}

constexpr const char* kRows =
    "{\"skill\":\"up\",\"prompt\":\"<|user|>a\",\"answer\":\"bcd<|endoftext|>\"}\n"
    "{\"skill\":\"up\",\"prompt\":\"a\",\"answer\":\"bcx<|endoftext|>\"}\n"
    "\n"
    "{\"skill\":\"down\",\"prompt\":\"a\",\"answer\":\"bcde<|user|>\"}\n";

// Counts up from the last letter and ends after d.
FakeModel LettersModel() {
  return [](std::span<const int32_t> ids) {
    std::vector<float> logits(264, 0.0f);
    logits[ids.back() == 'd' ? 256 : size_t(ids.back() + 1)] = 3.0f;
    return logits;
  };
}

TEST(Eval, CountsExactAnswersAndTheirLikelihood) {
  FakeEngine engine(LettersModel());
  const EvalReport report = Evaluate(engine, ParseEvalRows(kRows, "rows"), 100, {});
  EXPECT_EQ(report.skills, (std::vector<std::string>{"up", "down"}));
  EXPECT_EQ(report.by_skill.at("up").exact, 1);
  EXPECT_EQ(report.by_skill.at("up").rows, 2);
  EXPECT_EQ(report.by_skill.at("down").exact, 0);
  EXPECT_EQ(report.all.answer_tokens, 4 + 4 + 5);
  // A token with logit 3 among 263 zeros, and one with logit 0.
  const double likely = std::log(263 + std::exp(3.0)) - 3, unlikely = likely + 3;
  // Row 1: all four likely. Row 2: x and what follows it are not foreseen.
  EXPECT_NEAR(report.by_skill.at("up").nll, 4 * likely + 2 * likely + 2 * unlikely, 1e-6);
}

// A reference that is the same model finds the same answers exact, and the same likelihood.
TEST(Eval, AReferenceAnswersInTheEnginesPlace) {
  FakeEngine engine(LettersModel());
  const ReferenceFn reference = [&](std::span<const int32_t> ids, const ReferenceLogitsFn& fn) {
    for (size_t n = 1; n <= ids.size(); ++n) fn(int64_t(n) - 1, LettersModel()(ids.first(n)));
  };
  const auto rows = ParseEvalRows(kRows, "rows");
  const EvalReport want = Evaluate(engine, rows, 100, {});
  FakeEngine silent([](std::span<const int32_t>) { return std::vector<float>(264, 0.0f); });
  const EvalReport got = Evaluate(silent, rows, 100, {}, reference);
  for (const std::string& skill : want.skills) {
    EXPECT_EQ(got.by_skill.at(skill).exact, want.by_skill.at(skill).exact) << skill;
    EXPECT_NEAR(got.by_skill.at(skill).nll, want.by_skill.at(skill).nll, 1e-9) << skill;
  }
  EXPECT_EQ(got.all.exact, 1);
}

TEST(Eval, ProgressCountsTextAndErrorsNameTheLine) {
  FakeEngine engine(LettersModel(), /*context_tokens=*/60);
  std::string text = kRows;
  std::vector<uint64_t> done;
  Evaluate(engine, ParseEvalRows(text, "rows"), 100, [&](uint64_t bytes, uint64_t total) {
    done.push_back(bytes);
    EXPECT_EQ(total, 25u + 17u + 13u);
  });
  EXPECT_EQ(done, (std::vector<uint64_t>{25, 42, 55}));
  text += "{\"skill\":\"long\",\"prompt\":\"" + std::string(80, 'a') + "\",\"answer\":\"b\"}";
  try {
    Evaluate(engine, ParseEvalRows(text, "rows"), 100, {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("rows, line 5 (long): ")) << error.what();
  }
}

TEST(Eval, SelectsSkillsAndLimits) {
  EXPECT_EQ(SelectEvalRows(ParseEvalRows(kRows, "rows"), "", 0).size(), 3u);
  EXPECT_EQ(SelectEvalRows(ParseEvalRows(kRows, "rows"), "up", 0).size(), 2u);
  EXPECT_EQ(SelectEvalRows(ParseEvalRows(kRows, "rows"), "up,down", 1).size(), 2u);
  EXPECT_THROW(SelectEvalRows(ParseEvalRows(kRows, "rows"), "sideways", 0), Error);
}

TEST(Eval, RefusesDamagedRowsByLine) {
  const auto message = [](const std::string& second_line) -> std::string {
    try {
      ParseEvalRows("{\"skill\":\"a\",\"prompt\":\"b\",\"answer\":\"c\"}\n" + second_line,
                    "f.jsonl");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message("{\"skill\":1}"), "f.jsonl, line 2: the object has no text \"skill\"");
  EXPECT_EQ(message("{\"skill\":"),
            "f.jsonl, line 2 is not valid JSON: it ends too early, after 9 bytes.");
  EXPECT_EQ(message("[1]"), "f.jsonl, line 2 is not a JSON object");
  EXPECT_THROW(ParseEvalRows("", "rows"), Error);
  EXPECT_THROW(ParseEvalRows("[]", "rows"), Error);
}

TEST(Bench, MeasuresEachLengthAndRefusesWhatPassesTheContext) {
  FakeEngine engine(CountingModel(), /*context_tokens=*/100);
  int beside_prefill = 0, beside_decode = 0;
  const auto count = [](int* calls) { return double(++*calls); };
  BenchPlan plan{{16, 32},
                 {0, 64},
                 8,
                 3,
                 [&] { return count(&beside_prefill); },
                 [&] { return count(&beside_decode); }};
  const auto rows = MeasureSpeed(engine, plan, {});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_TRUE(rows[0].is_prefill);
  EXPECT_EQ(rows[1].num_tokens, 32);
  EXPECT_FALSE(rows[2].is_prefill);
  EXPECT_EQ(rows[2].context_tokens, 0);
  EXPECT_EQ(rows[3].context_tokens, 64);
  for (const BenchRow& row : rows) {
    EXPECT_GT(row.median_rate, 0);
    EXPECT_LE(row.lowest_rate, row.median_rate);
    EXPECT_GE(row.highest_rate, row.median_rate);
  }
  EXPECT_EQ(beside_prefill, 2 * (3 + 1));
  EXPECT_EQ(beside_decode, 2 * (3 + 1));
  EXPECT_EQ(rows[1].beside, (std::vector<double>{5, 6, 7, 8}));
  EXPECT_GT(rows[1].tokens_per_unit, rows[1].lowest_rate / 8);
  EXPECT_LT(rows[1].tokens_per_unit, rows[1].highest_rate / 5);
  EXPECT_EQ(MedianOf({3, 1, 2}), 2);
  EXPECT_EQ(MedianOf({4, 1, 3, 2}), 2.5);
  plan.context_tokens = {95};
  EXPECT_THROW(MeasureSpeed(engine, plan, {}), Error);
}

TEST(Bench, ReadsListsOfCounts) {
  EXPECT_EQ(ParseTokenCounts("prompt-tokens", "1,512", 1), (std::vector<int64_t>{1, 512}));
  for (const char* bad : {"", "0", "1,", ",1", "1;2", "x", "1.5", "99999999999"}) {
    EXPECT_THROW(ParseTokenCounts("prompt-tokens", bad, 1), Error) << bad;
  }
}

TEST(Terminal, WritesCountsAndNames) {
  EXPECT_EQ(CountText(0, "token"), "0 tokens");
  EXPECT_EQ(CountText(1, "thread"), "1 thread");
  EXPECT_EQ(CountText(2, "thread"), "2 threads");
  EXPECT_EQ(EscapeControls("a\x1b[2J\n\tb\x7f\u00e9"), "a\\x1b[2J\\n\\tb\\x7f\u00e9");
}

TEST(Bandwidth, IsPlausible) {
  const std::vector<uint8_t> buffer(size_t{64} << 20, 1);
  const std::vector<std::span<const uint8_t>> memory = {{buffer.data(), buffer.size()}};
  const double bandwidth = MeasureReadBandwidth(2, memory, 2);
  EXPECT_GT(bandwidth, 1e8);   // a tenth of the slowest memory in use
  EXPECT_LT(bandwidth, 1e13);  // beyond any cache
}

}  // namespace
}  // namespace hillstar
