#include "grammar/number_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/rule_automata.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

ExpressionPtr Digit(char first, char last) { return Symbols({{uint32_t(first), uint32_t(last)}}); }
ExpressionPtr Digits(size_t min, size_t max) {
  return Repeat(Digit('0', '9'), uint32_t(min), uint32_t(max));
}
ExpressionPtr Text(const std::string& text) { return Bytes(text); }

bool IsAll(std::string_view digits, char digit) {
  return digits.find_first_not_of(digit) == std::string_view::npos;
}

// Digit strings of one length between two of them; a bound that no longer binds is null.
ExpressionPtr DigitsBetween(const char* low, const char* high, size_t length) {
  // Bounds that every digit fits are none.
  if (low != nullptr && IsAll(low, '0')) low = nullptr;
  if (high != nullptr && IsAll(high, '9')) high = nullptr;
  if (low == nullptr && high == nullptr) return Digits(length, length);
  if (length == 0) return Nothing();
  const char first = low != nullptr ? *low : '0', last = high != nullptr ? *high : '9';
  const char* const low_rest = low != nullptr ? low + 1 : nullptr;
  const char* const high_rest = high != nullptr ? high + 1 : nullptr;
  if (first > last) return Never();
  if (first == last) {
    return Concatenation({Digit(first, first), DigitsBetween(low_rest, high_rest, length - 1)});
  }
  std::vector<ExpressionPtr> ways = {
      Concatenation({Digit(first, first), DigitsBetween(low_rest, nullptr, length - 1)}),
      Concatenation({Digit(last, last), DigitsBetween(nullptr, high_rest, length - 1)})};
  if (last - first > 1) {
    ways.push_back(
        Concatenation({Digit(char(first + 1), char(last - 1)), Digits(length - 1, length - 1)}));
  }
  return Alternative(std::move(ways));
}

// Whole numbers from `low` to `high`, both >= 0.
ExpressionPtr WholesBetween(int64_t low, int64_t high) {
  std::vector<ExpressionPtr> ways;
  int64_t first = 0, last = 9;  // of the numbers with so many digits
  while (true) {
    if (last >= low) {
      const std::string from = std::to_string(std::max(first, low));
      const std::string to = std::to_string(std::min(last, high));
      ways.push_back(DigitsBetween(from.c_str(), to.c_str(), from.size()));
    }
    if (last >= high) break;
    first = last + 1;
    last = 10 * first - 1;
  }
  return Alternative(std::move(ways));
}

constexpr int64_t kLargestSafe = 999'999'999'999'999;  // 15 digits
constexpr int64_t kLargest = 999'999'999'999'999'999;  // 18 digits
static_assert(kMaxDigits == 15 && kMaxIntegerDigits == 18);

[[noreturn]] void FailExcluded() {
  throw Error(ErrorCode::kBadRequest,
              fmt::format("An excluded bound of more than {} digits cannot be told from its "
                          "neighbours by a validator.",
                          kMaxDigits));
}

// The whole number at or above (towards = 1) or at or below (-1) a bound, kept within +-kLargest.
int64_t WholeBound(const NumberBound& bound, int towards) {
  const Decimal& value = bound.value;
  if (bound.is_excluded && value.whole.size() > size_t(kMaxDigits)) FailExcluded();
  const bool is_large = value.whole.size() > size_t(kMaxIntegerDigits);
  int64_t whole = is_large ? kLargest + 1 : std::atoll(value.whole.c_str());
  if (value.is_negative) whole = -whole;
  if (is_large) return whole;
  if (!value.fraction.empty()) {
    if (towards > 0 && !value.is_negative) ++whole;
    if (towards < 0 && value.is_negative) --whole;
  } else if (bound.is_excluded) {
    whole += towards;
  }
  return whole;
}

// Whole numbers that `divisor` divides, as far as digits and a sign tell.
Dfa MultiplesOf(int64_t divisor) {
  const auto n = uint32_t(divisor);
  Dfa dfa;
  dfa.nodes.resize(size_t{n} + 2);  // start, behind the sign, and by remainder
  const auto add_digits = [&](size_t node, uint32_t remainder) {
    for (uint32_t digit = 0; digit < 10; ++digit) {
      dfa.nodes[node].edges.push_back(
          {{'0' + digit, '0' + digit}, 2 + (10 * remainder + digit) % n});
    }
  };
  dfa.nodes[0].edges.push_back({{'-', '-'}, 1});
  add_digits(0, 0);
  add_digits(1, 0);
  for (uint32_t remainder = 0; remainder < n; ++remainder) add_digits(2 + remainder, remainder);
  dfa.nodes[2].accepts = true;
  return dfa;
}

// Fractions of up to `num_digits` digits between two, both of that many; null: no bound. An
// excluded bound does not count itself. `is_begun`: a digit has come, so that it may end.
struct FractionBounds {
  const char* low;
  const char* high;
  bool excludes_low, excludes_high;
};
bool MayEnd(const FractionBounds& bounds) {
  const bool fits_low = bounds.low == nullptr || (IsAll(bounds.low, '0') && !bounds.excludes_low);
  const bool fits_high =
      bounds.high == nullptr || !IsAll(bounds.high, '0') || !bounds.excludes_high;
  return fits_low && fits_high;
}

ExpressionPtr FractionDigits(FractionBounds bounds, size_t num_digits, bool is_begun) {
  // Bounds that every digit fits are none.
  if (bounds.low != nullptr && IsAll(bounds.low, '0') && !bounds.excludes_low) bounds.low = nullptr;
  if (bounds.high != nullptr && IsAll(bounds.high, '9') && num_digits > 0 &&
      !bounds.excludes_high) {
    bounds.high = nullptr;
  }
  if (bounds.low == nullptr && bounds.high == nullptr) return Digits(is_begun ? 0 : 1, num_digits);
  std::vector<ExpressionPtr> ways;
  if (is_begun && MayEnd(bounds)) ways.push_back(Nothing());
  if (num_digits == 0) return Alternative(std::move(ways));
  char first = '0', last = '9';  // of the digits behind which nothing binds
  const auto add = [&](char digit) {
    FractionBounds rest = bounds;
    rest.low = bounds.low != nullptr && digit == *bounds.low ? bounds.low + 1 : nullptr;
    rest.high = bounds.high != nullptr && digit == *bounds.high ? bounds.high + 1 : nullptr;
    ways.push_back(
        Concatenation({Digit(digit, digit), FractionDigits(rest, num_digits - 1, true)}));
  };
  const bool is_one =
      bounds.low != nullptr && bounds.high != nullptr && *bounds.low == *bounds.high;
  if (bounds.low != nullptr) {
    add(*bounds.low);
    first = char(*bounds.low + 1);
  }
  if (bounds.high != nullptr) {
    if (!is_one && *bounds.high >= first) add(*bounds.high);
    last = char(*bounds.high - 1);
  }
  if (first <= last) {
    ways.push_back(Concatenation({Digit(first, last), Digits(0, num_digits - 1)}));
  }
  return Alternative(std::move(ways));
}

// What may follow the whole part: nothing, or a point and digits.
ExpressionPtr Fraction(const FractionBounds& bounds, size_t num_digits) {
  std::vector<ExpressionPtr> ways;
  if (MayEnd(bounds)) ways.push_back(Nothing());
  if (num_digits > 0) {
    ways.push_back(Concatenation({Text("."), FractionDigits(bounds, num_digits, false)}));
  }
  return Alternative(std::move(ways));
}

// Numbers without a sign between two that are >= 0.
ExpressionPtr MagnitudesBetween(const NumberBound& low, const NumberBound& high,
                                size_t num_fraction_digits) {
  const auto padded = [&](const Decimal& value) {
    return value.fraction + std::string(num_fraction_digits - value.fraction.size(), '0');
  };
  const std::string low_digits = padded(low.value), high_digits = padded(high.value);
  const int64_t low_whole = std::atoll(low.value.whole.c_str());
  const int64_t high_whole = std::atoll(high.value.whole.c_str());
  const FractionBounds both = {low_digits.c_str(), high_digits.c_str(), low.is_excluded,
                               high.is_excluded};
  const size_t n = num_fraction_digits;
  if (low_whole > high_whole) return Never();
  if (low_whole == high_whole) {
    if (low_digits > high_digits) return Never();
    return Concatenation({Text(std::to_string(low_whole)), Fraction(both, n)});
  }
  FractionBounds at_low = both, at_high = both, free = both;
  at_low.high = at_high.low = free.low = free.high = nullptr;
  std::vector<ExpressionPtr> ways = {
      Concatenation({Text(std::to_string(low_whole)), Fraction(at_low, n)}),
      Concatenation({Text(std::to_string(high_whole)), Fraction(at_high, n)})};
  if (high_whole - low_whole > 1) {
    ways.push_back(
        Concatenation({WholesBetween(low_whole + 1, high_whole - 1), Fraction(free, n)}));
  }
  return Alternative(std::move(ways));
}

// The bound, or the next number of so few digits behind the point that it does not exclude.
NumberBound Inwards(const NumberBound& bound, size_t num_digits, int towards) {
  if (bound.value.fraction.size() <= num_digits) return bound;
  return {bound.value.Rounded(num_digits, bound.value.is_negative == (towards < 0)), false};
}

ExpressionPtr UnboundedNumber() {
  const ExpressionPtr whole =
      Alternative({Text("0"), Concatenation({Digit('1', '9'), Digits(0, size_t(kMaxDigits - 1))})});
  const ExpressionPtr fraction = Concatenation({Text("."), Digits(1, size_t(kMaxDigits))});
  const ExpressionPtr exponent =
      Concatenation({Symbols({{'E', 'E'}, {'e', 'e'}}), Optional(Symbols({{'+', '+'}, {'-', '-'}})),
                     Digits(1, 2)});
  return Concatenation({Optional(Text("-")), whole, Optional(fraction), Optional(exponent)});
}

}  // namespace

void Tighten(const NumberBound& bound, int towards, std::optional<NumberBound>* tightest) {
  const int order = *tightest ? towards * Compare(bound.value, (*tightest)->value) : 1;
  if (order > 0 || (order == 0 && bound.is_excluded)) *tightest = bound;
}

ExpressionPtr IntegerText(const NumberBounds& bounds, int64_t multiple, WorkBudget* budget) {
  const bool is_bounded = bounds.min || bounds.max;
  int64_t low = bounds.min ? WholeBound(*bounds.min, 1) : -kLargest;
  int64_t high = bounds.max ? WholeBound(*bounds.max, -1) : kLargest;
  if (multiple > 1) {
    if (multiple > kMaxMultiple) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("Multiples of {} are not supported; those of up to {} are.", multiple,
                              kMaxMultiple));
    }
    low = std::max(low, -kLargestSafe);
    high = std::min(high, kLargestSafe);
  } else if (is_bounded) {
    // A side without a bound goes as far as doubles are exact, or where the other side is.
    if (!bounds.min && high >= -kLargestSafe) low = -kLargestSafe;
    if (!bounds.max && low <= kLargestSafe) high = kLargestSafe;
  }
  low = std::max(low, -kLargest);
  high = std::min(high, kLargest);
  std::vector<ExpressionPtr> ways;
  if (low <= high && low < 0) {
    ways.push_back(Concatenation(
        {Text("-"), WholesBetween(std::max(int64_t{1}, -std::min(high, int64_t{-1})), -low)}));
  }
  if (low <= high && high >= 0) ways.push_back(WholesBetween(std::max(int64_t{0}, low), high));
  const ExpressionPtr all = Alternative(std::move(ways));
  if (multiple <= 1 || IsNever(all)) return all;
  GrammarSource source;
  const uint32_t rule = source.AddRule("integer");
  source.SetExpression(rule, all);
  const Dfa range = RuleAutomata(source, rule, budget)[rule];
  Dfa both = Intersection(range, MultiplesOf(multiple), budget);
  return both.IsEmpty() ? Never() : AutomatonOf(std::move(both));
}

ExpressionPtr NumberText(const NumberBounds& bounds) {
  if (!bounds.min && !bounds.max) return UnboundedNumber();
  size_t num_whole = 1, num_fraction = 0;
  bool excludes_any = false;
  for (const auto& bound : {bounds.min, bounds.max}) {
    if (!bound) continue;
    const Decimal& value = bound->value;
    if (bound->is_excluded && value.whole.size() > size_t(kMaxDigits)) FailExcluded();
    excludes_any = excludes_any || bound->is_excluded;
    if (value.whole.size() <= size_t(kMaxDigits)) {
      num_whole = std::max(num_whole, value.whole.size());
      num_fraction = std::max(num_fraction, value.fraction.size());
    }
  }
  // Where a bound is excluded, no number may have so many digits that a validator takes it for the
  // bound; the bounds themselves are then moved inwards to the next number of so many digits.
  const size_t free_fraction = size_t(kMaxDigits) - num_whole;
  num_fraction = excludes_any ? free_fraction : std::max(num_fraction, free_fraction);
  // Bounds that no number of so many digits reaches are none.
  NumberBound largest;
  largest.value.whole = std::to_string(kLargestSafe);
  NumberBound low = largest, high = largest, zero;
  low.value.is_negative = true;
  if (bounds.min && Compare(bounds.min->value, low.value) > 0) {
    low = Inwards(*bounds.min, num_fraction, 1);
  }
  if (bounds.max && Compare(bounds.max->value, high.value) < 0) {
    high = Inwards(*bounds.max, num_fraction, -1);
  }
  if (Compare(low.value, largest.value) > 0 || Compare(low.value, high.value) > 0) return Never();
  std::vector<ExpressionPtr> ways;
  if (low.value.is_negative) {
    NumberBound from = high.value.is_negative || high.value.is_zero() ? high : zero;
    from.value = from.value.Magnitude();
    NumberBound to = low;
    to.value = to.value.Magnitude();
    ways.push_back(Concatenation({Text("-"), MagnitudesBetween(from, to, num_fraction)}));
  }
  if (!high.value.is_negative) {
    ways.push_back(MagnitudesBetween(low.value.is_negative ? zero : low, high, num_fraction));
  }
  return Alternative(std::move(ways));
}

}  // namespace hillstar
