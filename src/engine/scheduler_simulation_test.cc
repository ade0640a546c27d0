// Random histories of sequences, each plan of which is applied to a toy account of pages and held
// against the rules of scheduler.h, computed here in another way.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/integers.h"
#include "engine/scheduler.h"

namespace hillstar {
namespace {

// A page of a prompt's beginning that several sequences have in common: which beginning, which of
// its pages.
using PrefixPage = std::pair<int64_t, int64_t>;

// Pages that sequences own, and pages of prefixes with the number of sequences that hold them.
class PageAccount {
 public:
  explicit PageAccount(int64_t total) : total_(total) {}

  int64_t total() const { return total_; }
  int64_t available() const { return total_ - owned_ - num_held(); }
  bool Has(PrefixPage page) const { return holders_.contains(page); }
  bool IsHeld(PrefixPage page) const { return num_holders(page) > 0; }
  int64_t num_holders(PrefixPage page) const { return Has(page) ? holders_.at(page) : 0; }

  void Hold(PrefixPage page) { ++holders_.at(page); }
  void Release(PrefixPage page) { --holders_.at(page); }
  // Pushes a page that nobody holds out of the index, if none is free. False if there is none.
  [[nodiscard]] bool Take() {
    if (owned_ + int64_t(holders_.size()) == total_) {
      const auto unheld = std::find_if(holders_.begin(), holders_.end(),
                                       [](const auto& page) { return page.second == 0; });
      if (unheld == holders_.end()) return false;
      holders_.erase(unheld);
    }
    ++owned_;
    return true;
  }
  void GiveBack(int64_t num_pages) { owned_ -= num_pages; }
  // An owned page becomes one that others may find.
  void Publish(PrefixPage page) {
    --owned_;
    holders_[page] = 1;
  }

 private:
  int64_t num_held() const {
    return std::count_if(holders_.begin(), holders_.end(),
                         [](const auto& page) { return page.second > 0; });
  }

  int64_t total_;
  int64_t owned_ = 0;
  std::map<PrefixPage, int64_t> holders_;
};

// A sequence with what the scheduler does not know of it.
struct Request {
  ScheduledSequence state;  // pages, a prefix's tokens and `answers` are filled in for each plan
  int64_t prompt = 0;       // tokens
  int64_t answer = 0;       // tokens, of which num_known - prompt are drawn
  int64_t prefix = 0;
  int64_t prefix_pages = 0;  // of the prompt, that others with this prefix have too
  std::set<PrefixPage> held;
  int64_t num_owned = 0;
  int64_t turns_ahead = 0;  // of others, before rule 1 serves it

  bool runs() const { return state.phase == SequencePhase::kRunning; }
  int64_t num_pages() const { return num_owned + int64_t(held.size()); }
  int64_t remaining() const { return state.num_known - state.num_computed; }
};

struct World {
  SchedulerLimits limits;
  int64_t num_requests = 0;
  int64_t longest_prompt = 0;
  int64_t longest_answer = 0;
  int64_t arrival_odds = 0;  // one in so many
  int64_t cancel_odds = 0;   // likewise, in each step; 0: none
  bool keeps_rows = false;   // of a paused sequence; else they are computed anew
  bool varies = false;       // step_tokens, from step to step
  // What the engine tells: a page counts as shared whoever else holds it, and what one that enters
  // finds in the index is not known before.
  bool knows_little = false;
};

// How often it happened, over all histories.
struct Coverage {
  int64_t pauses = 0, adopted_pages = 0, left_out = 0, missed_turns = 0, finished = 0;
};

class History {
 public:
  explicit History(unsigned seed, Coverage* coverage)
      : random_(seed),
        world_(DrawWorld()),
        pages_(world_.limits.total_pages),
        coverage_(*coverage) {}

  void Run();

 private:
  struct Prompt {
    int64_t remaining = 0, given = 0;
  };

  int64_t Draw(int64_t first, int64_t last) {
    return first + int64_t(random_() % uint64_t(last - first + 1));
  }
  int64_t OneOf(std::initializer_list<int64_t> values) {
    return values.begin()[Draw(0, int64_t(values.size()) - 1)];
  }
  World DrawWorld();
  void Arrive();
  void CancelOne();
  std::vector<Request*> InOrder();
  void FillIn();
  void FillInEntering(Request& r);
  void Step();

  void Leave(Request& r);
  void Enter(const StepPlan& plan);
  void Compute(const StepPlan& plan);
  void TakePages(Request& r);

  void CheckPauses(const StepPlan& plan);
  void CheckEntries(const StepPlan& plan);
  void CheckOrder();
  void CheckShares(const StepPlan& plan);
  void CheckPrompts(const std::vector<Prompt>& prompts, int64_t num_tokens);
  void CheckTurns(const StepPlan& plan);

  // Pages of its prefix that are in the index, without a gap from the first on.
  int64_t NumFound(const Request& r, int64_t num_pages) const {
    int64_t found = 0;
    while (found < num_pages && pages_.Has({r.prefix, found})) ++found;
    return found;
  }
  bool KeepsRows(const ScheduledSequence& s) const {
    return s.phase == SequencePhase::kPaused && world_.keeps_rows;
  }
  int64_t Pages(int64_t num_tokens) const { return CeilDiv(num_tokens, world_.limits.page_tokens); }
  // That all its known tokens take and it does not have.
  int64_t Owed(const ScheduledSequence& s) const {
    const bool runs = s.phase == SequencePhase::kRunning;
    return std::max<int64_t>(0, Pages(s.num_known) - (runs ? s.num_pages : s.num_shared_pages));
  }
  std::vector<ScheduledSequence> States() const {
    std::vector<ScheduledSequence> states;
    for (const auto& [id, r] : requests_) states.push_back(r.state);
    return states;
  }

  std::mt19937 random_;
  World world_;
  PageAccount pages_;
  Coverage& coverage_;
  std::map<int64_t, Request> requests_;  // by id
  int64_t num_arrived_ = 0, step_ = 0, latest_entry_ = 0;
  bool finds_more_ = false;  // in the index, in this step, than the plan knew
};

World History::DrawWorld() {
  World w;
  w.limits.step_tokens = OneOf({1, 2, 3, 7, 63, 64, 65, 512});
  w.limits.mixed_prompt_tokens = OneOf({1, 5, 64, 100});
  w.limits.max_running = OneOf({1, 3, 512, 512});
  w.limits.page_tokens = OneOf({1, 3, 4, 16, 64});
  w.limits.total_pages = Draw(2, 32);
  w.num_requests = Draw(1, 16);
  w.longest_prompt = OneOf({3, 40, 200});
  w.longest_answer = OneOf({1, 30, 150});
  w.arrival_odds = OneOf({1, 2, 10, 60});
  w.cancel_odds = OneOf({0, 0, 20, 100});
  w.keeps_rows = Draw(0, 1) == 1;
  w.varies = Draw(0, 3) == 0;
  w.knows_little = Draw(0, 1) == 1;
  return w;
}

void History::Arrive() {
  const SchedulerLimits& limits = world_.limits;
  const int64_t most = limits.total_pages * limits.page_tokens;
  Request r;
  r.state.id = 1'000 * Draw(0, 1'000'000) + num_arrived_;  // tells nothing of the order
  r.state.arrival = num_arrived_++;
  r.prompt = r.state.num_known = Draw(1, std::min(world_.longest_prompt, most - 1));
  r.answer = Draw(1, std::min(world_.longest_answer, most - r.prompt));
  CheckAdmissible(r.prompt, r.answer, limits);
  r.prefix = Draw(0, 2);
  r.prefix_pages = std::min(Draw(0, 6), (r.prompt - 1) / limits.page_tokens);
  requests_[r.state.id] = r;
}

void History::CancelOne() {
  if (requests_.empty()) return;
  const auto it = std::next(requests_.begin(), Draw(0, int64_t(requests_.size()) - 1));
  Leave(it->second);
  requests_.erase(it);
}

std::vector<Request*> History::InOrder() {
  std::vector<Request*> line;
  for (auto& [id, r] : requests_) line.push_back(&r);
  std::sort(line.begin(), line.end(),
            [](const Request* a, const Request* b) { return a->state.arrival < b->state.arrival; });
  return line;
}

void History::FillIn() {
  std::set<PrefixPage> seen;
  for (Request* r : InOrder()) {
    ScheduledSequence& s = r->state;
    s.num_pages = r->num_pages();
    s.num_shared_pages = 0;
    for (const PrefixPage& page : r->held) {
      const bool is_older_ones = !seen.insert(page).second;
      const bool is_others = pages_.num_holders(page) > 1;
      s.num_shared_pages += int64_t(world_.knows_little ? is_others : is_older_ones);
    }
    if (!r->runs()) FillInEntering(*r);
    s.answers = s.num_known > r->prompt && r->remaining() == 1;
  }
}

void History::FillInEntering(Request& r) {
  ScheduledSequence& s = r.state;
  if (world_.knows_little) {
    if (!KeepsRows(s)) s.num_computed = 0;
    return;
  }
  if (!KeepsRows(s)) {
    s.num_computed = NumFound(r, r.prefix_pages) * world_.limits.page_tokens;
  }
  const int64_t full = s.num_computed / world_.limits.page_tokens;
  const int64_t found = NumFound(r, std::min(full, r.prefix_pages));
  for (int64_t i = 0; i < found; ++i) s.num_shared_pages += pages_.IsHeld({r.prefix, i}) ? 1 : 0;
}

void History::Leave(Request& r) {
  for (const PrefixPage& page : r.held) pages_.Release(page);
  pages_.GiveBack(r.num_owned);
  r.held.clear();
  r.num_owned = 0;
}

void History::Enter(const StepPlan& plan) {
  std::vector<int64_t> entering = plan.resume;
  entering.insert(entering.end(), plan.admit.begin(), plan.admit.end());
  for (const int64_t id : plan.resume) {
    EXPECT_EQ(requests_.at(id).state.phase, SequencePhase::kPaused);
  }
  for (const int64_t id : plan.admit) {
    EXPECT_EQ(requests_.at(id).state.phase, SequencePhase::kWaiting);
  }
  for (const int64_t id : entering) {
    Request& r = requests_.at(id);
    if (world_.knows_little && !KeepsRows(r.state)) {
      r.state.num_computed = NumFound(r, r.prefix_pages) * world_.limits.page_tokens;
      finds_more_ |= r.state.num_computed > 0;
    }
    r.state.phase = SequencePhase::kRunning;
    const int64_t full = r.state.num_computed / world_.limits.page_tokens;
    const int64_t found = NumFound(r, std::min(full, r.prefix_pages));
    for (int64_t i = 0; i < found; ++i) {
      r.held.insert({r.prefix, i});
      pages_.Hold({r.prefix, i});
    }
    coverage_.adopted_pages += found;
    latest_entry_ = step_;
  }
  for (const int64_t id : entering) TakePages(requests_.at(id));
}

void History::TakePages(Request& r) {
  while (r.num_pages() < Pages(r.state.num_computed)) {
    ASSERT_TRUE(pages_.Take()) << "no page is left";
    ++r.num_owned;
  }
}

void History::Compute(const StepPlan& plan) {
  for (const StepPlan::Share& share : plan.shares) {
    Request& r = requests_.at(share.id);
    ScheduledSequence& s = r.state;
    s.num_computed += std::min(share.num_tokens, r.remaining());
    s.last_step = step_;
    TakePages(r);
    const int64_t full = std::min(r.prefix_pages, s.num_computed / world_.limits.page_tokens);
    for (int64_t i = 0; i < full; ++i) {
      const PrefixPage page{r.prefix, i};
      if (pages_.Has(page)) continue;
      pages_.Publish(page);
      r.held.insert(page);
      --r.num_owned;
    }
    if (r.remaining() > 0) continue;
    ++s.num_known;
    if (s.num_known < r.prompt + r.answer) continue;
    ++coverage_.finished;
    Leave(r);
    requests_.erase(share.id);
  }
}

int64_t TotalGrowth(const std::vector<ScheduledSequence>& running, const StepPlan& plan,
                    int64_t page_tokens) {
  std::map<int64_t, int64_t> tokens;
  for (const StepPlan::Share& share : plan.shares) tokens[share.id] = share.num_tokens;
  int64_t pages = 0;
  for (const ScheduledSequence& s : running) {
    pages +=
        std::max<int64_t>(0, CeilDiv(s.num_computed + tokens[s.id], page_tokens) - s.num_pages);
  }
  return pages;
}

// Rule 5: each pause is needed, given those before it, and those that stay fit.
void History::CheckPauses(const StepPlan& plan) {
  std::vector<ScheduledSequence> running;
  for (const auto& [id, r] : requests_) {
    if (r.runs()) running.push_back(r.state);
  }
  std::sort(running.begin(), running.end(),
            [](const auto& a, const auto& b) { return a.arrival < b.arrival; });
  SchedulerLimits unbounded = world_.limits;
  unbounded.total_pages = unbounded.available_pages = 1'000'000;
  int64_t available = pages_.available();
  for (const int64_t id : plan.pause) {
    ASSERT_GT(running.size(), 1u) << "the oldest is paused";
    ASSERT_EQ(id, running.back().id) << "not the latest is paused";
    EXPECT_GT(TotalGrowth(running, PlanStep(running, unbounded), world_.limits.page_tokens),
              available);
    available += running.back().num_pages - running.back().num_shared_pages;
    running.pop_back();
  }
  const StepPlan rest = PlanStep(running, unbounded);
  // Two who are paused may have had pages in common, so the oldest may have more than it is told.
  if (!world_.knows_little || running.size() > 1) {
    EXPECT_LE(TotalGrowth(running, rest, world_.limits.page_tokens), available);
    EXPECT_TRUE(!plan.resume.empty() || !plan.admit.empty() || plan.shares == rest.shares);
  }
  if (plan.pause.empty()) return;
  coverage_.pauses += int64_t(plan.pause.size());
  EXPECT_TRUE(plan.resume.empty() && plan.admit.empty());
  EXPECT_GT(step_, latest_entry_ + world_.limits.page_tokens) << "paused soon after an entry";
}

// Rule 4: those that enter fit with head room, and the first that does not enter would not.
void History::CheckEntries(const StepPlan& plan) {
  if (!plan.pause.empty()) return;
  std::set<int64_t> entering(plan.resume.begin(), plan.resume.end());
  entering.insert(plan.admit.begin(), plan.admit.end());
  int64_t owed = 0, num_running = 0;
  const ScheduledSequence* left_out = nullptr;
  for (const Request* r : InOrder()) {
    if (r->runs() || entering.contains(r->state.id)) {
      owed += Owed(r->state);
      ++num_running;
    } else if (left_out == nullptr) {
      left_out = &r->state;
    }
  }
  const int64_t available = pages_.available();
  if (!entering.empty()) {
    EXPECT_LE(num_running, world_.limits.max_running);
    EXPECT_LE(owed + (num_running > 1 ? num_running : 0), available);
  }
  if (left_out == nullptr) return;
  ++coverage_.left_out;
  EXPECT_GT(num_running, 0);
  EXPECT_TRUE(num_running >= world_.limits.max_running ||
              owed + Owed(*left_out) + num_running + 1 > available)
      << left_out->arrival << " could enter";
}

// No sequence runs while an older one is paused or waits, nor is paused while an older one waits.
void History::CheckOrder() {
  const auto rank = [](SequencePhase phase) {
    return phase == SequencePhase::kRunning ? 0 : phase == SequencePhase::kPaused ? 1 : 2;
  };
  int latest = 0;
  for (const Request* r : InOrder()) {
    EXPECT_GE(rank(r->state.phase), latest) << r->state.arrival << " overtakes";
    latest = rank(r->state.phase);
  }
}

// Rules 1 and 2, and 3 by CheckPrompts.
void History::CheckShares(const StepPlan& plan) {
  std::map<int64_t, int64_t> tokens;
  int64_t latest = -1;
  for (const StepPlan::Share& share : plan.shares) {
    const Request& r = requests_.at(share.id);
    tokens[share.id] = share.num_tokens;
    EXPECT_TRUE(r.runs());
    EXPECT_TRUE(share.num_tokens >= 1 && share.num_tokens <= r.remaining()) << share.num_tokens;
    EXPECT_GT(r.state.arrival, latest);
    latest = r.state.arrival;
  }
  int64_t num_answers = 0, num_served = 0;
  std::vector<Prompt> prompts;
  for (const Request* r : InOrder()) {
    if (!r->runs()) continue;
    const int64_t given = tokens.contains(r->state.id) ? tokens[r->state.id] : 0;
    if (r->state.answers) {
      ++num_answers;
      num_served += given;
    } else {
      prompts.push_back({r->remaining(), given});
    }
  }
  const int64_t step_tokens = world_.limits.step_tokens;
  EXPECT_EQ(num_served, std::min(num_answers, step_tokens));
  const int64_t left = step_tokens - num_served;
  CheckPrompts(prompts, num_answers > 0 ? std::min(left, world_.limits.mixed_prompt_tokens) : left);
}

// Rule 1 where answers are more than a step takes: nobody else is served twice before one's turn.
void History::CheckTurns(const StepPlan& plan) {
  std::set<int64_t> served;
  for (const StepPlan::Share& share : plan.shares) served.insert(share.id);
  int64_t num_others = -1;  // that run or are paused
  for (const auto& [id, r] : requests_) num_others += r.state.phase != SequencePhase::kWaiting;
  for (auto& [id, r] : requests_) {
    if (!r.runs() || served.contains(id)) {
      r.turns_ahead = num_others;
    } else if (r.state.answers) {
      ++coverage_.missed_turns;
      r.turns_ahead -= world_.limits.step_tokens;
      EXPECT_GE(r.turns_ahead, 0) << r.state.arrival << " waits too long";
    }
  }
}

void History::CheckPrompts(const std::vector<Prompt>& prompts, int64_t num_tokens) {
  if (prompts.empty()) return;
  int64_t wanted = 0, given = 0;
  for (const Prompt& p : prompts) {
    wanted += p.remaining;
    given += p.given;
  }
  EXPECT_EQ(given, std::min(wanted, num_tokens));
  const int64_t half = std::min(prompts[0].remaining, (num_tokens + 1) / 2);
  EXPECT_GE(prompts[0].given, half);
  const int64_t sharing = std::min<int64_t>(4, int64_t(prompts.size()) - 1);
  bool older_are_done = prompts[0].given == prompts[0].remaining;
  for (size_t i = 1; i < prompts.size(); ++i) {
    const bool shares = int64_t(i) <= sharing;
    const int64_t least = shares ? (num_tokens - half) / sharing : 0;
    const int64_t most = shares ? (num_tokens - half + sharing - 1) / sharing : 0;
    EXPECT_GE(prompts[i].given, std::min(prompts[i].remaining, least)) << i;
    EXPECT_TRUE(older_are_done || prompts[i].given <= most) << i;
    older_are_done &= prompts[i].given == prompts[i].remaining;
  }
}

void History::Step() {
  FillIn();
  world_.limits.available_pages = pages_.available();
  if (world_.varies) world_.limits.step_tokens = OneOf({1, 2, 5, 20, 512});
  std::vector<ScheduledSequence> input = States();
  const StepPlan plan = PlanStep(input, world_.limits);
  for (size_t i = input.size(); i > 1; --i) std::swap(input[i - 1], input[random_() % i]);
  EXPECT_EQ(PlanStep(input, world_.limits), plan) << "the order of the input matters";
  const bool may_only_pause = world_.knows_little && !plan.pause.empty();
  EXPECT_TRUE(plan.shares.empty() == input.empty() || may_only_pause);
  CheckPauses(plan);
  CheckEntries(plan);
  for (const int64_t id : plan.pause) {
    Leave(requests_.at(id));
    requests_.at(id).state.phase = SequencePhase::kPaused;
  }
  finds_more_ = false;
  Enter(plan);
  CheckOrder();
  if (!finds_more_ && !may_only_pause) CheckShares(plan);
  CheckTurns(plan);
  Compute(plan);
}

void History::Run() {
  // By far more than the tokens of all requests, each of which takes one step at most but for
  // those that are computed anew.
  constexpr int64_t kMostSteps = 50'000;
  while (num_arrived_ < world_.num_requests || !requests_.empty()) {
    ASSERT_LT(++step_, kMostSteps) << requests_.size() << " sequences do not end";
    while (num_arrived_ < world_.num_requests && Draw(1, world_.arrival_odds) == 1) Arrive();
    if (world_.cancel_odds > 0 && Draw(1, world_.cancel_odds) == 1) CancelOne();
    Step();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(pages_.available(), pages_.total());
}

TEST(Simulation, EveryHistoryKeepsTheRules) {
  constexpr unsigned kHistories = 3000;
  Coverage coverage;
  for (unsigned seed = 0; seed < kHistories; ++seed) {
    SCOPED_TRACE(testing::Message() << "history " << seed);
    History(seed, &coverage).Run();
    if (HasFailure()) return;
  }
  // The histories hold enough of what the rules are about.
  EXPECT_GT(coverage.pauses, 1000);
  EXPECT_GT(coverage.adopted_pages, 1000);
  EXPECT_GT(coverage.left_out, 1000);
  EXPECT_GT(coverage.missed_turns, 1000);
  EXPECT_GT(coverage.finished, 10'000);
}

}  // namespace
}  // namespace hillstar
