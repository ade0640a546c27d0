#include "grammar/work_budget.h"

#include "hillstar/error.h"

namespace hillstar {

void WorkBudget::Spend(int64_t steps) {
  left_ -= steps;
  if (left_ < 0) {
    throw Error(ErrorCode::kBadRequest,
                "The grammar is too large: building its automaton takes more steps than a request "
                "may cost. Counts, patterns with counts in them, and many optional members cost "
                "most.");
  }
}

}  // namespace hillstar
