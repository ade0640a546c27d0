// The texts of numbers within bounds, as a grammar. Pure; any thread may call.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/decimal.h"
#include "grammar/expression.h"

namespace hillstar {

struct NumberBound {
  Decimal value;
  bool is_excluded = false;  // the number itself does not count
};

struct NumberBounds {
  std::optional<NumberBound> min, max;
};

// Takes the bound if it leaves less: of a least number `towards` is 1, of a largest one -1.
void Tighten(const NumberBound& bound, int towards, std::optional<NumberBound>* tightest);

// Digits that a number has at most, so that no answer goes on in one for ever: before the point
// and behind it where nothing bounds it, and before it where something does.
inline constexpr int kMaxDigits = 15;
// A whole number without bounds, as identifiers are.
inline constexpr int kMaxIntegerDigits = 18;
inline constexpr int64_t kMaxMultiple = 1000;

// Whole numbers without point and exponent. `multiple`: 1 for any. Never() where there is none.
// Validators compute with doubles, so bounds that are excluded may have 15 digits at most;
// multiples too. Errors: kBadRequest with a sentence that says so.
ExpressionPtr IntegerText(const NumberBounds& bounds, int64_t multiple, WorkBudget* budget);

// Numbers with or without a point; with an exponent only where there are no bounds.
ExpressionPtr NumberText(const NumberBounds& bounds);

}  // namespace hillstar
