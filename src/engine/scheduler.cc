#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/check.h"
#include "core/integers.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// Sequences that run, the oldest first, and beside them how many tokens each computes.
using Line = std::vector<const ScheduledSequence*>;
using Tokens = std::vector<int64_t>;

int64_t Remaining(const ScheduledSequence& s) { return s.num_known - s.num_computed; }

void Check(const ScheduledSequence& s) {
  const bool runs = s.phase == SequencePhase::kRunning;
  CHECK(s.num_computed >= 0 && Remaining(s) >= 1);
  CHECK(!s.answers || Remaining(s) == 1);
  CHECK(s.num_pages >= 0 && (runs || s.num_pages == 0));
  CHECK(s.num_shared_pages >= 0 && (!runs || s.num_shared_pages <= s.num_pages));
}

void Check(const SchedulerLimits& limits) {
  CHECK(limits.step_tokens >= 1 && limits.mixed_prompt_tokens >= 1 && limits.max_running >= 1);
  CHECK(limits.page_tokens >= 1);
  CHECK(limits.available_pages >= 0 && limits.available_pages <= limits.total_pages);
}

bool IsOlder(const ScheduledSequence* a, const ScheduledSequence* b) {
  return a->arrival < b->arrival;
}
bool IsYounger(const ScheduledSequence* a, const ScheduledSequence* b) { return IsOlder(b, a); }

// Pages that computing num_tokens more takes.
int64_t Growth(const ScheduledSequence& s, int64_t num_tokens, const SchedulerLimits& limits) {
  const int64_t held = s.phase == SequencePhase::kRunning ? s.num_pages : s.num_shared_pages;
  return std::max<int64_t>(0, CeilDiv(s.num_computed + num_tokens, limits.page_tokens) - held);
}

int64_t TotalGrowth(const Line& running, const Tokens& tokens, const SchedulerLimits& limits) {
  int64_t pages = 0;
  for (size_t i = 0; i < running.size(); ++i) pages += Growth(*running[i], tokens[i], limits);
  return pages;
}

// Rule 1. Returns the number of tokens given.
int64_t ShareAmongAnswers(const Line& running, const SchedulerLimits& limits, Tokens& tokens) {
  std::vector<size_t> answers;
  for (size_t i = 0; i < running.size(); ++i) {
    if (running[i]->answers) answers.push_back(i);
  }
  const auto limit = size_t(limits.step_tokens);
  if (answers.size() > limit) {
    std::nth_element(answers.begin(), answers.begin() + ptrdiff_t(limit), answers.end(),
                     [&](size_t a, size_t b) {
                       const int64_t step_a = running[a]->last_step, step_b = running[b]->last_step;
                       return step_a != step_b ? step_a < step_b : a < b;
                     });
    answers.resize(limit);
  }
  for (const size_t i : answers) tokens[i] = 1;
  return int64_t(answers.size());
}

// Rule 3 for num_tokens.
void ShareAmongPrompts(const Line& running, int64_t num_tokens, Tokens& tokens) {
  std::vector<size_t> prompts;
  for (size_t i = 0; i < running.size(); ++i) {
    if (!running[i]->answers) prompts.push_back(i);
  }
  if (prompts.empty()) return;
  const auto give = [&](size_t prompt, int64_t most) {
    const size_t i = prompts[prompt];
    const int64_t given = std::min(most, Remaining(*running[i]) - tokens[i]);
    tokens[i] += given;
    num_tokens -= given;
  };
  give(0, CeilDiv(num_tokens, 2));
  const int64_t sharing = std::min(kSharingPrompts, int64_t(prompts.size()) - 1);
  const int64_t shared = num_tokens;
  for (int64_t p = 0; p < sharing; ++p) {
    give(size_t(p) + 1, shared / sharing + (p < shared % sharing ? 1 : 0));
  }
  for (size_t p = 0; p < prompts.size() && num_tokens > 0; ++p) give(p, num_tokens);
}

// Rules 1 to 3.
Tokens ShareStep(const Line& running, const SchedulerLimits& limits) {
  Tokens tokens(running.size(), 0);
  const int64_t answers = ShareAmongAnswers(running, limits, tokens);
  int64_t left = limits.step_tokens - answers;
  if (answers > 0) left = std::min(left, limits.mixed_prompt_tokens);
  ShareAmongPrompts(running, left, tokens);
  return tokens;
}

// Rule 5: shortens `running` and returns the tokens of those that stay. Each pause shares the step
// anew, which is little beside moving the paused sequence's pages.
Tokens PauseUntilItFits(const SchedulerLimits& limits, Line& running, StepPlan& plan) {
  int64_t available = limits.available_pages;
  while (true) {
    Tokens tokens = ShareStep(running, limits);
    if (TotalGrowth(running, tokens, limits) <= available) return tokens;
    const ScheduledSequence& latest = *running.back();
    if (running.size() == 1) {  // somebody else holds pages; what fits is computed
      const int64_t rows = (latest.num_pages + available) * limits.page_tokens;
      tokens[0] = std::max<int64_t>(0, rows - latest.num_computed);
      return tokens;
    }
    available += latest.num_pages - latest.num_shared_pages;
    plan.pause.push_back(latest.id);
    running.pop_back();
  }
}

// Rule 4: lengthens `running`. Few of many candidates enter, so they are not sorted.
void LetEnter(Line candidates, const SchedulerLimits& limits, Line& running, StepPlan& plan) {
  int64_t free = limits.available_pages;
  for (const auto* s : running) free -= Growth(*s, Remaining(*s), limits);
  std::make_heap(candidates.begin(), candidates.end(), IsYounger);
  while (!candidates.empty() && int64_t(running.size()) < limits.max_running) {
    const ScheduledSequence& s = *candidates.front();
    const int64_t needed = Growth(s, Remaining(s), limits);
    const int64_t head_room = running.empty() ? 0 : int64_t(running.size()) + 1;
    if (needed + head_room > free) return;
    free -= needed;
    running.push_back(&s);
    (s.phase == SequencePhase::kPaused ? plan.resume : plan.admit).push_back(s.id);
    std::pop_heap(candidates.begin(), candidates.end(), IsYounger);
    candidates.pop_back();
  }
}

}  // namespace

StepPlan PlanStep(std::span<const ScheduledSequence> sequences, const SchedulerLimits& limits) {
  Check(limits);
  Line running, others;
  for (const ScheduledSequence& s : sequences) {
    Check(s);
    (s.phase == SequencePhase::kRunning ? running : others).push_back(&s);
  }
  std::sort(running.begin(), running.end(), IsOlder);
  StepPlan plan;
  Tokens tokens = PauseUntilItFits(limits, running, plan);
  if (plan.pause.empty()) {
    const size_t before = running.size();
    LetEnter(std::move(others), limits, running, plan);
    if (running.size() > before) {
      std::sort(running.begin(), running.end(), IsOlder);
      tokens = ShareStep(running, limits);
    }
  }
  for (size_t i = 0; i < running.size(); ++i) {
    if (tokens[i] > 0) plan.shares.push_back({running[i]->id, tokens[i]});
  }
  return plan;
}

void CheckAdmissible(int64_t prompt_tokens, int64_t max_tokens, const SchedulerLimits& limits) {
  CHECK(prompt_tokens >= 1 && max_tokens >= 1);
  const int64_t most_tokens = limits.total_pages * limits.page_tokens;
  const int64_t room = most_tokens - prompt_tokens;
  if (max_tokens <= room) return;
  const std::string pages = fmt::format("the {} pages of {} tokens hold {}", limits.total_pages,
                                        limits.page_tokens, most_tokens);
  if (room < 1) {
    throw Error(ErrorCode::kBudget,
                fmt::format("a prompt of {} tokens leaves no room for an answer: {}; give the "
                            "latent KV more memory (--kv-memory)",
                            prompt_tokens, pages));
  }
  throw Error(ErrorCode::kBudget,
              fmt::format("a prompt of {} tokens and an answer of up to {} do not fit: {}; ask for "
                          "a max_tokens of at most {} or give the latent KV more memory "
                          "(--kv-memory)",
                          prompt_tokens, max_tokens, pages, room));
}

}  // namespace hillstar
