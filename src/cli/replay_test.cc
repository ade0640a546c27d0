// score --replay against a scripted engine.
#include "cli/replay.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/replay_report.h"
#include "engine/fake_engine.h"
#include "numerics/likelihood.h"

namespace hillstar {
namespace {

constexpr size_t kVocab = 264;

// After every token its successor is the most likely.
std::vector<float> CountingLogits(int32_t id) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[size_t(id + 1) % kVocab] = 3.0f;
  return logits;
}
FakeModel CountingModel() {
  return [](std::span<const int32_t> ids) { return CountingLogits(ids.back()); };
}

// A reference with logits of its own, given over in pieces of `piece`.
ReferenceFn ReferenceOf(const FakeModel& model, size_t piece) {
  return [=](std::span<const int32_t> ids, const ReferenceLogitsFn& on_logits) {
    for (size_t first = 0; first < ids.size(); first += piece) {
      std::vector<float> logits;
      for (size_t i = first; i < std::min(first + piece, ids.size()); ++i) {
        const std::vector<float> row = model(ids.subspan(0, i + 1));
        logits.insert(logits.end(), row.begin(), row.end());
      }
      on_logits(int64_t(first), logits);
    }
  };
}

std::string TextOf(const FakeEngine& engine, const ReplayText& text) {
  return engine.tokenizer().Decode(text.ids, /*skip_special=*/false);
}
std::string AnswersOf(const FakeEngine& engine, const ReplayText& text) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.ids.size(); ++i) {
    if (text.is_answer[i]) ids.push_back(text.ids[i]);
  }
  return engine.tokenizer().Decode(ids, /*skip_special=*/false);
}

std::vector<EvalRow> Rows(int count) {
  std::vector<EvalRow> rows;
  for (int i = 0; i < count; ++i) {
    const std::string letter(1, char('a' + i));
    rows.push_back({"skill", "<|user|>" + letter + "?<|assistant|>", letter + "!<|endoftext|>",
                    "rows, line " + std::to_string(i + 1)});
  }
  return rows;
}

TEST(ReplayTextTest, JoinsEveryRowOnceBeforeTheFirstComesAgain) {
  const FakeEngine engine(CountingModel());
  // A row has six tokens: user, letter, ?, assistant, letter, !; 96 are two passes over eight rows.
  const ReplayText text = MakeReplayText(engine, Rows(8), 96, 1);
  ASSERT_EQ(text.ids.size(), 96u);
  ASSERT_EQ(text.is_answer.size(), 96u);
  const std::string joined = TextOf(engine, text);
  EXPECT_EQ(joined.find("<|endoftext|>"), std::string::npos);
  std::string orders[2];
  for (size_t row = 0; row < 16; ++row) {
    const char letter = char(text.ids[6 * row + 1]);
    orders[row / 8] += letter;
    EXPECT_EQ(text.ids[6 * row], 257);
    EXPECT_EQ(text.ids[6 * row + 3], 259);
    EXPECT_EQ(char(text.ids[6 * row + 4]), letter);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(text.is_answer[6 * row + i], i >= 4) << row;
  }
  EXPECT_EQ(std::set<char>(orders[0].begin(), orders[0].end()).size(), 8u);
  EXPECT_EQ(std::set<char>(orders[1].begin(), orders[1].end()).size(), 8u);
  EXPECT_NE(orders[0], orders[1]);
}

TEST(ReplayTextTest, IsAFunctionOfRowsSeedAndLength) {
  const FakeEngine engine(CountingModel());
  const ReplayText text = MakeReplayText(engine, Rows(8), 100, 7);
  EXPECT_EQ(MakeReplayText(engine, Rows(8), 100, 7).ids, text.ids);
  EXPECT_NE(MakeReplayText(engine, Rows(8), 100, 8).ids, text.ids);
  const ReplayText shorter = MakeReplayText(engine, Rows(8), 50, 7);
  EXPECT_TRUE(std::equal(shorter.ids.begin(), shorter.ids.end(), text.ids.begin()));
  // Of std::mt19937_64, which is the same everywhere.
  EXPECT_EQ(AnswersOf(engine, MakeReplayText(engine, Rows(8), 48, 1)), "e!g!d!f!b!h!c!a!");
}

TEST(ReplayTextTest, LeavesOutRowsThatWouldBeMostOfTheText) {
  const FakeEngine engine(CountingModel());
  std::vector<EvalRow> rows = Rows(3);
  rows.push_back({"long", "<|user|>" + std::string(200, 'z'), "z", "rows, line 4"});
  EXPECT_EQ(TextOf(engine, MakeReplayText(engine, rows, 400, 1)).find('z'), std::string::npos);
  // An eighth of 1,616 are the 202 tokens of the long row.
  EXPECT_NE(TextOf(engine, MakeReplayText(engine, rows, 1616, 1)).find('z'), std::string::npos);
  EXPECT_EQ(TextOf(engine, MakeReplayText(engine, rows, 1615, 1)).find('z'), std::string::npos);
  // Where all are too long, all are taken.
  EXPECT_NE(TextOf(engine, MakeReplayText(engine, {rows[3]}, 400, 1)).find('z'), std::string::npos);
  EXPECT_EQ(MakeReplayText(engine, rows, 7, 1).ids.size(), 7u);
}

std::string MessageOf(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

TEST(ReplayTextTest, RefusesWhatCannotBe) {
  const FakeEngine engine(CountingModel(), /*context_tokens=*/60);
  EXPECT_EQ(MessageOf([&] { MakeReplayText(engine, Rows(2), 61, 1); }, ErrorCode::kUsage),
            "a text of 61 tokens (--replay-tokens) does not fit the context of 60 (--context)");
  const std::vector<EvalRow> empty = {{"a", "", "<|endoftext|>", "rows, line 1"}};
  EXPECT_EQ(MessageOf([&] { MakeReplayText(engine, empty, 60, 1); }, ErrorCode::kBadFile),
            "the rows hold no text");
}

TEST(Likelihood, OfTwoTokensByHand) {
  const std::vector<float> p = {0.0f, float(std::log(3.0))}, q = {0.0f, 0.0f};
  EXPECT_NEAR(LogSumExp(p), std::log(4.0), 1e-7);
  EXPECT_NEAR(NegativeLogLikelihood(p, 1), std::log(4.0 / 3), 1e-7);
  EXPECT_NEAR(KlDivergence(p, q), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
  EXPECT_NEAR(KlDivergence(q, p), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-7);
  EXPECT_EQ(KlDivergence(p, p), 0);
  // Of p the deviations are -d and d; those of p - q the same.
  EXPECT_NEAR(RelativeDifference(p, q), 1, 1e-12);
  const std::vector<float> twice = {7.0f, 7 + float(2 * std::log(3.0))};
  EXPECT_NEAR(RelativeDifference(p, twice), 1, 1e-6);
  EXPECT_EQ(RelativeDifference(q, p), 0);
  const std::vector<float> large = {1000.0f, 999.0f};
  EXPECT_NEAR(LogSumExp(large), 1000 + std::log(1 + std::exp(-1.0)), 1e-9);
}

TEST(ReplayRun, AllIsEqualWhereTheReferenceIsTheEngine) {
  FakeEngine engine(CountingModel());
  const ReplayText text = MakeReplayText(engine, Rows(8), 600, 1);
  std::vector<uint64_t> done;
  const ReplayReport report = Replay(engine, text, ReferenceOf(CountingModel(), 250),
                                     [&](uint64_t positions, uint64_t total) {
                                       done.push_back(positions);
                                       EXPECT_EQ(total, 600u);
                                     });
  EXPECT_EQ(done, (std::vector<uint64_t>{250, 500, 600}));
  EXPECT_TRUE(report.passes());
  EXPECT_TRUE(report.has_reference);
  EXPECT_EQ(report.first_unequal, -1);
  EXPECT_EQ(report.all.positions, 600);
  EXPECT_EQ(report.all.equal_bits, 600);
  EXPECT_EQ(report.all.same_argmax, 600);
  EXPECT_EQ(report.all.largest_kl(), 0);
  for (const ReplaySums& quarter : report.quarters) {
    EXPECT_EQ(quarter.positions, 150);
    EXPECT_EQ(quarter.answer_tokens, 50);
  }
  // Nothing in the answers is the successor of what stands before it.
  EXPECT_NEAR(report.all.nll_per_token(), std::log(kVocab - 1 + std::exp(3.0)), 1e-9);
  EXPECT_EQ(report.all.nll, report.all.reference_nll);
}

// The reference prefers another token at positions 400 and 401, and finds the answer's token after
// 301 likelier.
TEST(ReplayRun, CountsWhatTheReferenceHasOtherwise) {
  FakeEngine engine(CountingModel());
  ReplayText text{std::vector<int32_t>(600, 5), std::vector<bool>(600)};
  text.is_answer[302] = true;
  const FakeModel model = [](std::span<const int32_t> ids) {
    std::vector<float> logits = CountingLogits(ids.back());
    if (ids.size() == 401) logits[9] = 4.0f;
    if (ids.size() == 402) logits[9] = 3.5f;
    if (ids.size() == 302) logits[5] = 2.5f;
    return logits;
  };
  const ReplayReport report = Replay(engine, text, ReferenceOf(model, 256), {});
  EXPECT_TRUE(report.passes());
  EXPECT_EQ(report.all.same_argmax, 598);
  EXPECT_EQ(report.quarters[2].same_argmax, 148);
  EXPECT_EQ(report.all.largest_margin, 1.0);
  EXPECT_EQ(std::ranges::max_element(report.all.kl) - report.all.kl.begin(), 400);
  const std::vector<float> ours = CountingLogits(5);
  std::vector<float> theirs = ours;
  theirs[9] = 4.0f;
  EXPECT_NEAR(report.all.largest_kl(), KlDivergence(theirs, ours), 1e-12);
  EXPECT_EQ(report.quarters[0].largest_kl(), 0);
  EXPECT_EQ(report.all.median_error(), 0);
  EXPECT_EQ(report.quarters[2].error[100], RelativeDifference(theirs, ours));
  EXPECT_NEAR(report.quarters[2].mean_kl(), 4 * report.all.mean_kl(), 1e-12);
  EXPECT_GT(report.all.mean_kl(), report.all.largest_kl() / 600);
  EXPECT_EQ(report.quarters[2].answer_tokens, 1);
  EXPECT_NEAR(report.all.nll, NegativeLogLikelihood(ours, 5), 1e-12);
  EXPECT_NEAR(report.all.reference_nll, std::log(262 + std::exp(3.0) + std::exp(2.5)) - 2.5, 1e-9);
}

// An engine whose prefill computes other bits at one position.
class DriftingEngine : public FakeEngine {
 public:
  explicit DriftingEngine(size_t position) : FakeEngine(CountingModel()), position_(position) {}
  std::unique_ptr<Sequence> NewSequence(const SequenceOptions& options) override {
    if (num_sequences_++ > 0) return FakeEngine::NewSequence(options);
    const FakeModel model = [position = position_](std::span<const int32_t> ids) {
      std::vector<float> logits = CountingLogits(ids.back());
      if (ids.size() == position + 1) logits[3] = -0.0f;
      return logits;
    };
    return std::make_unique<FakeSequence>(model, int64_t(kVocab), 4096);
  }

 private:
  size_t position_;
  int num_sequences_ = 0;
};

TEST(ReplayRun, OneBitOfOneLogitIsSeen) {
  for (const size_t position : {size_t{0}, size_t{255}, size_t{256}, size_t{599}}) {
    DriftingEngine engine(position);
    const ReplayText text{std::vector<int32_t>(600, 5), std::vector<bool>(600)};
    const ReplayReport report = Replay(engine, text, {}, {});
    EXPECT_FALSE(report.passes());
    EXPECT_FALSE(report.has_reference);
    EXPECT_EQ(report.all.equal_bits, 599);
    EXPECT_EQ(report.first_unequal, int64_t(position));
    EXPECT_NE(ReplayTable(report).find("first differ at position " + std::to_string(position)),
              std::string::npos);
  }
}

TEST(ReplayRun, AFewPositionsAreEnough) {
  FakeEngine engine(CountingModel());
  const ReplayReport report = Replay(engine, {{1, 2, 3}, {false, false, true}}, {}, {});
  EXPECT_TRUE(report.passes());
  EXPECT_EQ(report.all.positions, 3);
  EXPECT_EQ(report.all.answer_tokens, 1);
}

ReplayReport SmallReport() {
  ReplayReport report;
  report.has_reference = true;
  report.quarters[0] = {3, 3, 2, 0.25, {0.125, 0.25, 0}, {0.5, 0.25, 1}, 2, 4.0, 3.0};
  report.quarters[2] = {1, 1, 1, 0, {0.125}, {2}, 0, 0, 0};
  for (const ReplaySums& quarter : report.quarters) report.all.Add(quarter);
  return report;
}

TEST(ReplayReportTest, EndsWithOneLine) {
  ReplayReport report = SmallReport();
  const std::string table = ReplayTable(report);
  EXPECT_TRUE(table.ends_with(
      "largest KL at position 1; where the argmax differs, the reference's margin is at most "
      "0.2500\n4 of 4 positions equal in bits between steps and prefill; 3 of 4 with the "
      "reference's argmax; mean KL 1.2e-01 nats; answer NLL 2.0000 (reference 1.5000)\n"))
      << table;
  EXPECT_NE(table.find("\n0 to 2 "), std::string::npos) << table;
  EXPECT_NE(table.find("\n3 to 3 "), std::string::npos) << table;
  report.has_reference = false;
  EXPECT_TRUE(ReplayTable(report).ends_with(
      "4 of 4 positions equal in bits between steps and prefill; answer NLL 2.0000\n"));
}

TEST(ReplayReportTest, JsonSaysTheSame) {
  ReplayReport report = SmallReport();
  auto json = ReplayJson(report);
  EXPECT_EQ(json["positions"], 4);
  EXPECT_EQ(json["same_argmax"], 3);
  EXPECT_EQ(json["mean_kl"], 0.125);
  EXPECT_EQ(json["median_logit_error"], 0.75);
  EXPECT_EQ(json["quarters"][0]["median_logit_error"], 0.5);
  EXPECT_EQ(json["quarters"][0]["largest_kl"], 0.25);
  EXPECT_EQ(json["largest_kl_position"], 1);
  EXPECT_EQ(json["reference_nll_per_token"], 1.5);
  EXPECT_TRUE(json["first_unequal"].is_null());
  EXPECT_EQ(json["quarters"].size(), 4u);
  EXPECT_EQ(json["passes"], true);
  report.has_reference = false;
  report.first_unequal = 2;
  report.all.equal_bits = 3;
  json = ReplayJson(report);
  EXPECT_FALSE(json.contains("mean_kl"));
  EXPECT_EQ(json["first_unequal"], 2);
  EXPECT_EQ(json["passes"], false);
}

}  // namespace
}  // namespace hillstar
