// Where a grammar takes plain text, however it goes on: PushDown::Node::text_run.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/push_down.h"
#include "grammar/work_budget.h"

namespace hillstar {

// Fills in text_run of all nodes. `non_ascii` is where the rule of characters outside of ASCII
// begins, or 0. `may_accept`, by node: whether nothing can follow where the node's rule ends, as
// nothing calls it; elsewhere what calls a rule that may end could take plain characters too.
void FindTextRuns(uint32_t non_ascii, const std::vector<bool>& may_accept, PushDown* grammar,
                  WorkBudget* budget);

}  // namespace hillstar
