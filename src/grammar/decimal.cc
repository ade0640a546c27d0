#include "grammar/decimal.h"

#include <algorithm>
#include <cstdlib>

namespace hillstar {
namespace {

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order < 0 ? -1 : 1;
  const int order = a.fraction.compare(b.fraction);  // without trailing zeros: by length at last
  return order < 0 ? -1 : (order > 0 ? 1 : 0);
}

}  // namespace

std::optional<Decimal> Decimal::Of(std::string_view json_number) {
  Decimal number;
  number.is_negative = json_number.starts_with('-');
  if (number.is_negative) json_number.remove_prefix(1);
  const size_t mark = json_number.find_first_of("eE");
  long exponent = 0;
  if (mark != std::string_view::npos) {
    exponent = std::atol(std::string(json_number.substr(mark + 1)).c_str());
    if (exponent < -400 || exponent > 400) return std::nullopt;
  }
  const std::string_view digits = json_number.substr(0, mark);
  const size_t point = digits.find('.');
  number.whole = std::string(digits.substr(0, point));
  if (point != std::string_view::npos) number.fraction = std::string(digits.substr(point + 1));
  for (; exponent > 0; --exponent) {
    number.whole += number.fraction.empty() ? '0' : number.fraction[0];
    if (!number.fraction.empty()) number.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    number.fraction.insert(0, 1, number.whole.empty() ? '0' : number.whole.back());
    if (!number.whole.empty()) number.whole.pop_back();
  }
  number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
  number.fraction.erase(number.fraction.find_last_not_of('0') + 1);
  if (number.is_zero()) number.is_negative = false;
  return number;
}

Decimal Decimal::Rounded(size_t num_digits, bool away_from_zero) const {
  if (fraction.size() <= num_digits) return *this;
  std::string digits = "0" + whole + fraction.substr(0, num_digits);
  if (away_from_zero) {
    size_t last = digits.size() - 1;
    for (; digits[last] == '9'; --last) digits[last] = '0';
    ++digits[last];
  }
  digits.insert(digits.size() - num_digits, 1, '.');
  return *Of((is_negative ? "-" : "") + digits);
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  const int order = CompareMagnitudes(a, b);
  return a.is_negative ? -order : order;
}

}  // namespace hillstar
