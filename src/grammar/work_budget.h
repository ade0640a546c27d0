// How much work and memory one grammar may cost while it is built, so that no schema or grammar of
// a request holds a server up. One thread at a time.
#pragma once

#include <cstdint>

namespace hillstar {

class WorkBudget {
 public:
  // About 0.15 s of building on one core, and 300 MB of automata at the very most.
  static constexpr int64_t kDefaultSteps = 5'000'000;

  explicit WorkBudget(int64_t steps = kDefaultSteps) : left_(steps) {}

  // A step makes or looks at one node or edge of an automaton.
  // Errors: kBadRequest when nothing is left.
  void Spend(int64_t steps);

 private:
  int64_t left_;
};

}  // namespace hillstar
