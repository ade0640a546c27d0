// Regular expressions of JSON schemas (ECMA-262 with the u flag) as languages of whole texts, so
// that a text can be made to match instead of being tested. Pure; any thread may call.
#pragma once

#include <string_view>

#include "grammar/automaton.h"

namespace hillstar {

// The texts in which the pattern matches somewhere. Supported: alternatives, groups, classes, the
// escapes of characters and of \d \w \s, counts, ^ and $ where a match begins or ends, and (?=...)
// and (?!...) right behind the ^ that all of the pattern begins with.
// Errors: kBadRequest, naming what is not (other looking around, \b, back references, \p) or
// malformed.
Dfa TextsMatching(std::string_view pattern, WorkBudget* budget);

}  // namespace hillstar
