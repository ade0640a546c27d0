// The rules of a grammar as deterministic automata, the first half of compiling. Small rules are
// copied to where they are called, unless they call themselves.
#pragma once

#include <vector>

#include "grammar/automaton.h"
#include "grammar/expression.h"
#include "grammar/work_budget.h"

namespace hillstar {

// By rule; empty for those that `root` does not need.
std::vector<Dfa> RuleAutomata(const GrammarSource& source, uint32_t root, WorkBudget* budget);

}  // namespace hillstar
