#include "grammar/number_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "grammar/rule_automata.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

Dfa AutomatonOfText(const ExpressionPtr& text) {
  WorkBudget budget;
  GrammarSource source;
  const uint32_t rule = source.AddRule("number");
  source.SetExpression(rule, text);
  return RuleAutomata(source, rule, &budget)[rule];
}

NumberBound Bound(const std::string& number, bool is_excluded) {
  return {*Decimal::Of(number), is_excluded};
}

bool Satisfies(double value, const NumberBounds& bounds, double min, double max) {
  if (bounds.min && (value < min || (value == min && bounds.min->is_excluded))) return false;
  return !bounds.max || !(value > max || (value == max && bounds.max->is_excluded));
}

TEST(NumberTextTest, Decimals) {
  const auto text = [](const char* number) {
    const Decimal decimal = *Decimal::Of(number);
    return (decimal.is_negative ? "-" : "") + decimal.whole + "." + decimal.fraction;
  };
  EXPECT_EQ(text("0"), ".");
  EXPECT_EQ(text("-0.0"), ".");
  EXPECT_EQ(text("120.50"), "120.5");
  EXPECT_EQ(text("1.25e3"), "1250.");
  EXPECT_EQ(text("-12.5E-3"), "-.0125");
  EXPECT_FALSE(Decimal::Of("1e999"));
  EXPECT_EQ(Compare(*Decimal::Of("-1.5"), *Decimal::Of("-1.25")), -1);
  EXPECT_EQ(Compare(*Decimal::Of("10"), *Decimal::Of("9.99")), 1);
  EXPECT_EQ(Compare(*Decimal::Of("0.10"), *Decimal::Of("1e-1")), 0);
  const Decimal rounded = Decimal::Of("-9.9951")->Rounded(2, true);
  EXPECT_EQ(Compare(rounded, *Decimal::Of("-10")), 0);
  EXPECT_EQ(Compare(Decimal::Of("9.9951")->Rounded(2, false), *Decimal::Of("9.99")), 0);
}

// Every whole number near the bounds, and none beside them.
TEST(NumberTextTest, IntegersAreThoseWithinTheBounds) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const int low = int(random() % 3000) - 1500, high = low + int(random() % 1500);
    const int64_t multiple = i % 3 == 0 ? 1 + int64_t(random() % 12) : 1;
    NumberBounds bounds;
    if (i % 5 != 1) bounds.min = Bound(std::to_string(low), random() % 2 == 0);
    if (i % 5 != 2) bounds.max = Bound(std::to_string(high), random() % 2 == 0);
    WorkBudget budget;
    const Dfa texts = AutomatonOfText(IntegerText(bounds, multiple, &budget));
    for (int value = -4000; value <= 4000; ++value) {
      const bool is_in = Satisfies(value, bounds, low, high) && value % multiple == 0;
      ASSERT_EQ(Accepts(texts, std::to_string(value)), is_in) << value << " " << low << " " << high;
    }
    for (const char* text : {"", "-", "00", "01", "-0", "+1", "1.0", "1e1"}) {
      EXPECT_FALSE(Accepts(texts, text)) << text;
    }
  }
}

TEST(NumberTextTest, NumbersAreThoseWithinTheBounds) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const auto number = [&](int digits) {
      const double scale = std::pow(10, digits);
      return fmt::format("{:.{}f}", double(int(random() % 4000) - 2000) / scale, digits);
    };
    std::string low = number(int(random() % 4)), high = number(int(random() % 4));
    if (std::stod(low) > std::stod(high)) std::swap(low, high);
    NumberBounds bounds;
    if (i % 5 != 1) bounds.min = Bound(low, random() % 2 == 0);
    if (i % 5 != 2) bounds.max = Bound(high, random() % 2 == 0);
    const Dfa texts = AutomatonOfText(NumberText(bounds));
    for (int j = 0; j < 300; ++j) {
      // Near a bound as well as anywhere.
      std::string text = number(int(random() % 5));
      if (j % 3 == 0) {
        text = j % 2 == 0 ? low : high;
        if (text.find('.') == std::string::npos) text += '.';
        text += std::to_string(random() % 100);
      }
      const bool is_in = Satisfies(std::stod(text), bounds, std::stod(low), std::stod(high));
      EXPECT_EQ(Accepts(texts, text), is_in) << text << " in " << low << " " << high;
    }
    for (const char* text : {"", "-", ".5", "5.", "00.5", "1e1", "0x1"}) {
      EXPECT_FALSE(Accepts(texts, text)) << text;
    }
  }
}

// Numbers with so many digits that a double takes them for the bound.
TEST(NumberTextTest, NoNumberIsTakenForABoundThatIsExcluded) {
  NumberBounds bounds;
  bounds.min = Bound("0.12345678901234567", false);
  bounds.max = Bound("1", true);
  const Dfa texts = AutomatonOfText(NumberText(bounds));
  EXPECT_FALSE(Accepts(texts, "0.99999999999999999"));
  EXPECT_TRUE(Accepts(texts, "0.99999999999999"));
  bounds.max = Bound("12345678901234567", true);
  EXPECT_THROW(NumberText(bounds), Error);
  WorkBudget budget;
  EXPECT_THROW(IntegerText(bounds, 1, &budget), Error);
}

TEST(NumberTextTest, DigitsAreBounded) {
  WorkBudget budget;
  const Dfa whole = AutomatonOfText(IntegerText({}, 1, &budget));
  EXPECT_TRUE(Accepts(whole, "-" + std::string(18, '9')));
  EXPECT_FALSE(Accepts(whole, std::string(19, '9')));
  const Dfa any = AutomatonOfText(NumberText({}));
  EXPECT_TRUE(Accepts(any, "-0.000000000000001e-99"));
  EXPECT_FALSE(Accepts(any, std::string(16, '1')));
  EXPECT_FALSE(Accepts(any, "1e100"));
  // A large bound lets in what is as large.
  NumberBounds bounds;
  bounds.min = Bound("10000000000000000", false);
  const Dfa large = AutomatonOfText(IntegerText(bounds, 1, &budget));
  EXPECT_TRUE(Accepts(large, "10000000000000000"));
  EXPECT_FALSE(Accepts(large, "9999999999999999"));
  bounds.min = Bound("1e30", false);
  EXPECT_TRUE(AutomatonOfText(IntegerText(bounds, 1, &budget)).IsEmpty());
}

}  // namespace
}  // namespace hillstar
