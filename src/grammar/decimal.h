// Decimal numbers of any length, as bounds of what an answer's numbers may be. Values; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hillstar {

// whole.fraction, without leading zeros of the one and trailing zeros of the other; zero is neither
// negative nor has it digits.
struct Decimal {
  bool is_negative = false;
  std::string whole, fraction;

  // Of a JSON number. Nothing for exponents beyond 400.
  static std::optional<Decimal> Of(std::string_view json_number);
  bool is_zero() const { return whole.empty() && fraction.empty(); }
  Decimal Magnitude() const { return {false, whole, fraction}; }
  // With at most so many digits behind the point: the nearest one towards zero, or away from it.
  Decimal Rounded(size_t num_digits, bool away_from_zero) const;
};

// -1, 0 or 1
int Compare(const Decimal& a, const Decimal& b);

}  // namespace hillstar
