// What a grammar says before it is compiled: rules, each an expression over bytes, tokens and
// rules. Expressions are immutable and shared; one thread at a time builds a GrammarSource.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace hillstar {

// Symbols of a rule's automaton: a byte, a token or a rule.
inline constexpr uint32_t kTokenSymbols = 0x0100'0000;
inline constexpr uint32_t kRuleSymbols = 0x0200'0000;
inline constexpr uint32_t kMaxTokenId = kRuleSymbols - kTokenSymbols - 1;

struct Expression;
using ExpressionPtr = std::shared_ptr<const Expression>;

struct Expression {
  enum class Kind {
    kSymbols,      // one symbol of `symbols`
    kSequence,     // all of `parts`, one behind the other
    kAlternative,  // one of `parts`; nothing at all can follow if there is none
    kRepeat,       // parts[0], `min` to `max` times
    kAutomaton     // a word of `automaton`, over bytes, tokens and rules
  };
  Kind kind;
  std::vector<SymbolRange> symbols = {};
  std::vector<ExpressionPtr> parts = {};
  uint32_t min = 0;
  std::optional<uint32_t> max = {};
  std::shared_ptr<const Dfa> automaton = {};
};

ExpressionPtr Symbols(std::vector<SymbolRange> symbols);
ExpressionPtr Bytes(std::string_view text);  // exactly these
ExpressionPtr Token(int32_t id);
ExpressionPtr TokensExcept(int32_t id);
ExpressionPtr Concatenation(std::vector<ExpressionPtr> parts);
ExpressionPtr Alternative(std::vector<ExpressionPtr> parts);
ExpressionPtr Repeat(ExpressionPtr part, uint32_t min, std::optional<uint32_t> max);
ExpressionPtr Optional(ExpressionPtr part);
ExpressionPtr AutomatonOf(Dfa automaton);
ExpressionPtr Nothing();  // the empty word
ExpressionPtr Never();    // no word at all
bool IsNever(const ExpressionPtr& expression);

struct GrammarRule {
  std::string name;  // for messages
  ExpressionPtr expression;
  // Called from where it is used rather than copied there, which small rules are otherwise.
  bool stays_apart = false;
};

class GrammarSource {
 public:
  GrammarSource();

  // A rule without an expression yet, for rules that refer to themselves.
  uint32_t AddRule(std::string name, bool stays_apart = false);
  void SetExpression(uint32_t rule, ExpressionPtr expression) {
    rules_[rule].expression = std::move(expression);
  }
  ExpressionPtr Call(uint32_t rule) const;
  ExpressionPtr AddAndCall(std::string name, ExpressionPtr expression, bool stays_apart = false);
  // Any character outside of ASCII, as UTF-8. One rule for all, so that masks know it again.
  ExpressionPtr CallNonAscii() const { return Call(kNonAsciiRule); }
  // One character of `characters` (joined code points), as UTF-8.
  ExpressionPtr Character(std::span<const SymbolRange> characters) const;

  const std::vector<GrammarRule>& rules() const { return rules_; }
  std::vector<GrammarRule>& rules() { return rules_; }

  static constexpr uint32_t kNonAsciiRule = 0;

 private:
  std::vector<GrammarRule> rules_;
};

// UTF-8 of the code points of a range without surrogates: one word of each sequence of byte ranges.
std::vector<std::vector<SymbolRange>> Utf8Sequences(SymbolRange code_points);

// How a text of code points stands in an answer.
enum class TextForm {
  kRaw,  // as it is
  kJson  // within the quotes of a JSON string: escaped where JSON asks for it, and only there
};
// The words of `texts` (over code points) as bytes.
ExpressionPtr Written(const Dfa& texts, TextForm form, WorkBudget* budget);

}  // namespace hillstar
