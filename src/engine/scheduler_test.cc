#include "engine/scheduler.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "core/integers.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr int64_t kPage = 64;

// Pages for everything, unless a test says otherwise.
SchedulerLimits Limits(int64_t available = 1000, int64_t total = 1000) {
  SchedulerLimits limits;
  limits.available_pages = available;
  limits.total_pages = total;
  return limits;
}

// The id of a test's sequence is its arrival.
ScheduledSequence Sequence(SequencePhase phase, int64_t arrival, int64_t known, int64_t computed) {
  ScheduledSequence s;
  s.id = s.arrival = arrival;
  s.phase = phase;
  s.num_known = known;
  s.num_computed = computed;
  if (phase == SequencePhase::kRunning) s.num_pages = CeilDiv(computed, kPage);
  return s;
}

ScheduledSequence Waiting(int64_t arrival, int64_t known, int64_t computed = 0) {
  return Sequence(SequencePhase::kWaiting, arrival, known, computed);
}
ScheduledSequence Prompt(int64_t arrival, int64_t known, int64_t computed = 0) {
  return Sequence(SequencePhase::kRunning, arrival, known, computed);
}
ScheduledSequence Answer(int64_t arrival, int64_t known, int64_t last_step = 0) {
  ScheduledSequence s = Sequence(SequencePhase::kRunning, arrival, known, known - 1);
  s.answers = true;
  s.last_step = last_step;
  return s;
}
ScheduledSequence Paused(int64_t arrival, int64_t known) {
  ScheduledSequence s = Sequence(SequencePhase::kPaused, arrival, known, known - 1);
  s.answers = true;
  return s;
}

// E.g. "pause 3 2, resume 1, admit 4: 1x44 4x4", the parts that are not empty.
std::string Plan(const std::vector<ScheduledSequence>& sequences, const SchedulerLimits& limits) {
  const StepPlan plan = PlanStep(sequences, limits);
  std::string text;
  const auto list = [&](const char* name, const std::vector<int64_t>& ids) {
    if (ids.empty()) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, fmt::join(ids, " "));
  };
  list("pause", plan.pause);
  list("resume", plan.resume);
  list("admit", plan.admit);
  for (size_t i = 0; i < plan.shares.size(); ++i) {
    text += fmt::format("{}{}x{}",
                        i > 0          ? " "
                        : text.empty() ? ""
                                       : ": ",
                        plan.shares[i].id, plan.shares[i].num_tokens);
  }
  return text;
}

TEST(PlanStep, NothingToDoIsAnEmptyPlan) { EXPECT_EQ(Plan({}, Limits()), ""); }

TEST(PlanStep, EveryAnswerGetsItsToken) {
  EXPECT_EQ(Plan({Answer(2, 10), Answer(1, 200), Answer(3, 64)}, Limits()), "1x1 2x1 3x1");
}

TEST(PlanStep, AnswersOfMoreThanAStepTakeTurns) {
  SchedulerLimits limits = Limits();
  limits.step_tokens = 2;
  // The longest unserved first, the older first among equals; prompts get nothing.
  EXPECT_EQ(
      Plan({Answer(1, 10, 5), Answer(2, 10, 4), Answer(3, 10, 4), Answer(4, 10, 3), Prompt(5, 10)},
           limits),
      "2x1 4x1");
  limits.step_tokens = 4;
  EXPECT_EQ(
      Plan({Answer(1, 10, 5), Answer(2, 10, 4), Answer(3, 10, 4), Answer(4, 10, 3), Prompt(5, 10)},
           limits),
      "1x1 2x1 3x1 4x1");
  limits.step_tokens = 5;
  EXPECT_EQ(
      Plan({Answer(1, 10, 5), Answer(2, 10, 4), Answer(3, 10, 4), Answer(4, 10, 3), Prompt(5, 10)},
           limits),
      "1x1 2x1 3x1 4x1 5x1");
}

TEST(PlanStep, APromptAloneTakesTheWholeStep) {
  EXPECT_EQ(Plan({Prompt(1, 2000, 100)}, Limits()), "1x512");
  EXPECT_EQ(Plan({Prompt(1, 2000, 1900)}, Limits()), "1x100");
}

TEST(PlanStep, PromptsBesideAnswersAreShort) {
  EXPECT_EQ(Plan({Prompt(1, 2000), Answer(2, 10)}, Limits()), "1x64 2x1");
  SchedulerLimits limits = Limits();
  limits.step_tokens = 50;  // less than mixed_prompt_tokens
  EXPECT_EQ(Plan({Prompt(1, 2000), Answer(2, 10)}, limits), "1x49 2x1");
}

// Budgets of one token and of a page with its neighbours.
TEST(PlanStep, TinyStepsAreFilledAndNeverPassed) {
  const std::vector<ScheduledSequence> mixed = {Answer(1, 10, 1), Prompt(2, 500), Prompt(3, 500)};
  const std::vector<ScheduledSequence> prompts = {Prompt(2, 500), Prompt(3, 500)};
  const auto plan = [&](const auto& sequences, int64_t step_tokens) {
    SchedulerLimits limits = Limits();
    limits.step_tokens = step_tokens;
    return Plan(sequences, limits);
  };
  EXPECT_EQ(plan(mixed, 1), "1x1");
  EXPECT_EQ(plan(mixed, 2), "1x1 2x1");
  EXPECT_EQ(plan(mixed, 3), "1x1 2x1 3x1");
  EXPECT_EQ(plan(mixed, 63), "1x1 2x31 3x31");
  EXPECT_EQ(plan(mixed, 64), "1x1 2x32 3x31");
  EXPECT_EQ(plan(mixed, 65), "1x1 2x32 3x32");
  EXPECT_EQ(plan(mixed, 66), "1x1 2x32 3x32");
  EXPECT_EQ(plan(prompts, 1), "2x1");
  EXPECT_EQ(plan(prompts, 63), "2x32 3x31");
  EXPECT_EQ(plan(prompts, 64), "2x32 3x32");
  EXPECT_EQ(plan(prompts, 65), "2x33 3x32");
}

TEST(PlanStep, TheOldestPromptGetsHalfAndTheNextShareTheRest) {
  SchedulerLimits limits = Limits();
  limits.step_tokens = 64;
  // The example of the header.
  EXPECT_EQ(Plan({Prompt(1, 1000), Prompt(2, 4), Prompt(3, 300)}, limits), "1x44 2x4 3x16");
  // Four share; a fifth gets nothing as long as they take it all.
  EXPECT_EQ(Plan({Prompt(1, 1000), Prompt(2, 99), Prompt(3, 99), Prompt(4, 99), Prompt(5, 99),
                  Prompt(6, 99)},
                 limits),
            "1x32 2x8 3x8 4x8 5x8");
  // 33 among four: the older ones get what does not divide.
  limits.step_tokens = 66;
  EXPECT_EQ(
      Plan({Prompt(1, 1000), Prompt(2, 99), Prompt(3, 99), Prompt(4, 99), Prompt(5, 99)}, limits),
      "1x33 2x9 3x8 4x8 5x8");
  // What the oldest leaves is shared too.
  limits.step_tokens = 64;
  EXPECT_EQ(Plan({Prompt(1, 4), Prompt(2, 99), Prompt(3, 99), Prompt(4, 99)}, limits),
            "1x4 2x20 3x20 4x20");
  // What everybody leaves goes down the line, past those that share.
  EXPECT_EQ(Plan({Prompt(1, 10), Prompt(2, 3), Prompt(3, 20), Prompt(4, 3), Prompt(5, 3),
                  Prompt(6, 20), Prompt(7, 99)},
                 limits),
            "1x10 2x3 3x20 4x3 5x3 6x20 7x5");
}

TEST(PlanStep, AnswersDoNotCountAsPrompts) {
  SchedulerLimits limits = Limits();
  limits.step_tokens = 66;
  EXPECT_EQ(Plan({Answer(1, 10), Prompt(2, 100), Answer(3, 10), Prompt(4, 100)}, limits),
            "1x1 2x32 3x1 4x32");
  // The last token of a prompt is a prompt's.
  limits.step_tokens = 1;
  EXPECT_EQ(Plan({Prompt(1, 100, 99), Answer(2, 10)}, limits), "2x1");
}

TEST(PlanStep, EntersInOrderAndComputesAtOnce) {
  EXPECT_EQ(Plan({Waiting(3, 100), Waiting(1, 100), Waiting(2, 100)}, Limits()),
            "admit 1 2 3: 1x100 2x100 3x100");
  EXPECT_EQ(Plan({Waiting(3, 100), Paused(2, 100), Paused(1, 50)}, Limits()),
            "resume 1 2, admit 3: 1x1 2x1 3x64");
  EXPECT_EQ(Plan({Answer(2, 100), Waiting(1, 70)}, Limits()), "admit 1: 1x64 2x1");
  // What a prefix gives is not computed.
  EXPECT_EQ(Plan({Waiting(1, 100, 64)}, Limits()), "admit 1: 1x36");
}

TEST(PlanStep, NoMoreThanMaxRunning) {
  SchedulerLimits limits = Limits();
  limits.max_running = 2;
  EXPECT_EQ(Plan({Waiting(3, 9), Answer(1, 9), Waiting(2, 9)}, limits), "admit 2: 1x1 2x9");
  EXPECT_EQ(Plan({Waiting(3, 9), Answer(1, 9), Answer(2, 9)}, limits), "1x1 2x1");
  limits.max_running = 1;  // less than run already: nobody is paused for it
  EXPECT_EQ(Plan({Waiting(3, 9), Answer(1, 9), Answer(2, 9)}, limits), "1x1 2x1");
}

TEST(PlanStep, EntersWithPagesForAllItsTokensAndHeadRoom) {
  // 65 tokens take 2 pages; the one that answers and the new one keep 1 each.
  EXPECT_EQ(Plan({Answer(1, 10), Waiting(2, 65)}, Limits(4)), "admit 2: 1x1 2x64");
  EXPECT_EQ(Plan({Answer(1, 10), Waiting(2, 65)}, Limits(3)), "1x1");
  EXPECT_EQ(Plan({Answer(1, 10), Waiting(2, 64)}, Limits(3)), "admit 2: 1x1 2x64");
  // The running prompt is yet to take 3 of its 4 pages.
  EXPECT_EQ(Plan({Prompt(1, 256, 1), Waiting(2, 65)}, Limits(7)), "admit 2: 1x255 2x65");
  EXPECT_EQ(Plan({Prompt(1, 256, 1), Waiting(2, 65)}, Limits(6)), "1x255");
  // Each one that enters counts for the next.
  EXPECT_EQ(Plan({Answer(1, 9), Waiting(2, 64), Waiting(3, 64)}, Limits(5)),
            "admit 2 3: 1x1 2x32 3x32");
  EXPECT_EQ(Plan({Answer(1, 9), Waiting(2, 64), Waiting(3, 64)}, Limits(4)), "admit 2: 1x1 2x64");
  // Those that come back need the same.
  EXPECT_EQ(Plan({Answer(1, 10), Paused(2, 65)}, Limits(4)), "resume 2: 1x1 2x1");
  EXPECT_EQ(Plan({Answer(1, 10), Paused(2, 65)}, Limits(3)), "1x1");
}

TEST(PlanStep, PagesThatAnotherHoldsAreNotTakenAgain) {
  ScheduledSequence waiting = Waiting(2, 200, 128);
  EXPECT_EQ(Plan({Answer(1, 150), waiting}, Limits(5)), "1x1");  // they are in the index only
  waiting.num_shared_pages = 2;
  EXPECT_EQ(Plan({Answer(1, 150), waiting}, Limits(4)), "admit 2: 1x1 2x64");
  EXPECT_EQ(Plan({Answer(1, 150), waiting}, Limits(3)), "1x1");
}

TEST(PlanStep, NobodyOvertakesAnOlderOne) {
  EXPECT_EQ(Plan({Answer(1, 10), Waiting(2, 640), Waiting(3, 1)}, Limits(8)), "1x1");
  EXPECT_EQ(Plan({Answer(1, 10), Paused(2, 640), Waiting(3, 1)}, Limits(8)), "1x1");
}

TEST(PlanStep, TheFirstEntersWithoutHeadRoom) {
  EXPECT_EQ(Plan({Waiting(1, 128), Waiting(2, 1)}, Limits(2, 2)), "admit 1: 1x128");
  EXPECT_EQ(Plan({Paused(1, 128), Waiting(2, 1)}, Limits(2, 2)), "resume 1: 1x1");
  EXPECT_EQ(Plan({Waiting(1, 128)}, Limits(1, 2)), "");  // a page is held elsewhere
}

TEST(PlanStep, PausesTheLatestUntilTheStepFits) {
  // Each has full pages, so that its next token takes one.
  const std::vector<ScheduledSequence> full = {Answer(3, 129), Answer(1, 65), Answer(2, 65)};
  EXPECT_EQ(Plan(full, Limits(3, 7)), "1x1 2x1 3x1");
  EXPECT_EQ(Plan(full, Limits(2, 6)), "pause 3: 1x1 2x1");
  EXPECT_EQ(Plan(full, Limits(0, 4)), "pause 3: 1x1 2x1");  // its two pages suffice
  const std::vector<ScheduledSequence> small = {Answer(1, 65), Answer(2, 65), Answer(3, 65)};
  EXPECT_EQ(Plan(small, Limits(1, 4)), "pause 3: 1x1 2x1");
  EXPECT_EQ(Plan(small, Limits(0, 3)), "pause 3 2: 1x1");
  // The latest has room in its page and is paused for the older one all the same.
  EXPECT_EQ(Plan({Answer(1, 65), Answer(2, 10)}, Limits(0, 2)), "pause 2: 1x1");
}

TEST(PlanStep, PausesForThePagesOfPromptsToo) {
  EXPECT_EQ(Plan({Prompt(1, 200, 64), Answer(2, 10)}, Limits(0, 2)), "pause 2: 1x64");
  EXPECT_EQ(Plan({Answer(1, 10), Prompt(2, 200, 64)}, Limits(0, 2)), "pause 2: 1x1");
}

TEST(PlanStep, TokensOfAPausedOneAreSharedAnew) {
  SchedulerLimits limits = Limits(1, 4);
  limits.step_tokens = 2;
  EXPECT_EQ(Plan({Answer(1, 65, 9), Answer(2, 10, 8), Answer(3, 65, 7)}, limits), "2x1 3x1");
  limits.available_pages = 0;
  EXPECT_EQ(Plan({Answer(1, 65, 9), Answer(2, 10, 8), Answer(3, 65, 7)}, limits),
            "pause 3: 1x1 2x1");
  // Without the answer the step may be long, and then the other prompt does not fit either.
  EXPECT_EQ(Plan({Prompt(1, 999, 64), Prompt(2, 999, 60), Answer(3, 65)}, Limits(1, 4)),
            "pause 3 2: 1x192");
}

TEST(PlanStep, SharedPagesDoNotComeBack) {
  // 3 shares one of its two pages with 1: pausing it gives one, which 1 takes.
  ScheduledSequence latest = Answer(3, 129);
  latest.num_shared_pages = 1;
  EXPECT_EQ(Plan({Answer(1, 65), Answer(2, 10), latest}, Limits(0, 3)), "pause 3: 1x1 2x1");
  latest.num_shared_pages = 2;
  EXPECT_EQ(Plan({Answer(1, 129), Answer(2, 10), latest}, Limits(0, 3)), "pause 3 2: 1x1");
}

TEST(PlanStep, APlanThatPausesLetsNobodyEnter) {
  // The pages of 3 would suffice for 4 and 5, and for 3 itself.
  EXPECT_EQ(Plan({Answer(1, 65), Answer(3, 1000), Paused(4, 10), Waiting(5, 10)}, Limits(0, 17)),
            "pause 3: 1x1");
  // 2 takes 8 pages and 1 another, of 8; without 2 there is room for more.
  EXPECT_EQ(Plan({Prompt(1, 65, 64), Prompt(2, 999, 64), Paused(3, 10)}, Limits(8, 10)),
            "pause 2: 1x1");
}

TEST(PlanStep, TheOldestComputesWhatFits) {
  EXPECT_EQ(Plan({Prompt(1, 500, 60)}, Limits(1, 20)), "1x68");  // 4 and a page
  EXPECT_EQ(Plan({Prompt(1, 500, 64)}, Limits(0, 20)), "");
  // Pages beyond those of its rows are room as well.
  ScheduledSequence ahead = Prompt(1, 500, 64);
  ahead.num_pages = 3;
  EXPECT_EQ(Plan({ahead}, Limits(0, 20)), "1x128");
}

// Seconds of the fastest of some plans, so that what else runs does not count.
double PlanSeconds(int64_t num_waiting) {
  std::vector<ScheduledSequence> sequences;
  for (int64_t i = 0; i < num_waiting; ++i) sequences.push_back(Waiting(100'000 - i, 1000));
  for (int64_t i = 0; i < 500; ++i) sequences.push_back(Answer(i, 100, i % 7));
  double fastest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(PlanStep(sequences, Limits(100'000, 100'000)).admit.size(), 12u);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, took.count());
  }
  return fastest;
}

TEST(PlanStep, TimeGrowsWithTheNumberOfSequencesAndNotItsSquare) {
  // 8 times the sequences take about 8 times as long; their square would take 64 times.
  EXPECT_LT(PlanSeconds(16'000), 24 * PlanSeconds(2'000));
}

std::string Refusal(int64_t prompt_tokens, int64_t max_tokens, int64_t total_pages) {
  try {
    CheckAdmissible(prompt_tokens, max_tokens, Limits(0, total_pages));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBudget);
    return e.what();
  }
  return "";
}

TEST(CheckAdmissible, SaysWhatWouldFit) {
  EXPECT_EQ(Refusal(600, 40, 10), "");
  EXPECT_EQ(Refusal(600, 41, 10),
            "a prompt of 600 tokens and an answer of up to 41 do not fit: the 10 pages of 64 "
            "tokens hold 640; ask for a max_tokens of at most 40 or give the latent KV more memory "
            "(--kv-memory)");
  EXPECT_EQ(Refusal(639, 1, 10), "");
  EXPECT_EQ(Refusal(640, 1, 10),
            "a prompt of 640 tokens leaves no room for an answer: the 10 pages of 64 tokens hold "
            "640; give the latent KV more memory (--kv-memory)");
  // No sum overflows.
  EXPECT_NE(Refusal(600, std::numeric_limits<int64_t>::max(), 10), "");
}

}  // namespace
}  // namespace hillstar
