// GBNF, the grammar notation of llama.cpp: a recursive descent over its text.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/json_scan.h"
#include "grammar/expression.h"
#include "grammar/grammar.h"
#include "grammar/push_down.h"
#include "hillstar/error.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 10;
constexpr int kMaxNesting = 64;  // parentheses
constexpr uint32_t kMaxRepeats = 16384;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class GbnfReader {
 public:
  GbnfReader(std::string_view text, const Tokenizer& tokenizer)
      : text_(text), tokenizer_(tokenizer) {}

  std::shared_ptr<const Grammar> Read() {
    if (text_.size() > kMaxTextBytes) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("The grammar has {} bytes; at most {} are read.", text_.size(),
                              kMaxTextBytes));
    }
    SkipBlanks(true);
    while (pos_ < text_.size()) ReadRule();
    const auto root = rules_.find("root");
    if (root == rules_.end() || !root->second.is_defined) Fail("defines no rule \"root\"");
    for (const auto& [name, rule] : rules_) {
      if (!rule.is_defined) {
        line_ = rule.line;
        Fail(fmt::format("uses the rule {}, which it does not define", Quoted(name)));
      }
    }
    WorkBudget budget;
    return std::make_shared<const Grammar>(Compile(source_, root->second.id, &budget));
  }

 private:
  struct Rule {
    uint32_t id;
    bool is_defined = false;
    int line;  // where it was used first
  };

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kBadRequest, fmt::format("Line {} of the grammar {}.", line_, what));
  }

  bool AtEnd() const { return pos_ == text_.size(); }
  char Here() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  bool Takes(std::string_view part) {
    if (!text_.substr(pos_).starts_with(part)) return false;
    pos_ += part.size();
    return true;
  }
  // Blanks and comments.
  void SkipBlanks(bool newlines_too) {
    for (; pos_ < text_.size(); ++pos_) {
      const char c = text_[pos_];
      if (c == '#') {
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
        if (pos_ == text_.size()) return;
      }
      const bool is_newline = text_[pos_] == '\n' || text_[pos_] == '\r';
      if (is_newline && !newlines_too) return;
      if (!is_newline && text_[pos_] != ' ' && text_[pos_] != '\t') return;
      if (text_[pos_] == '\n') ++line_;
    }
  }

  std::string ReadName() {
    const size_t begin = pos_;
    while (pos_ < text_.size() && IsNameCharacter(text_[pos_])) ++pos_;
    if (pos_ == begin) {
      Fail(AtEnd() ? "ends where a rule's name should be"
                   : fmt::format("has {} where a rule's name should be", Quoted(Rest())));
    }
    return std::string(text_.substr(begin, pos_ - begin));
  }
  std::string_view Rest() const { return text_.substr(pos_, 16); }

  Rule& RuleOf(const std::string& name) {
    const auto [found, is_new] = rules_.try_emplace(name, Rule{0, false, line_});
    if (is_new) found->second.id = source_.AddRule(name);
    return found->second;
  }

  void ReadRule() {
    const std::string name = ReadName();
    SkipBlanks(false);
    if (!Takes("::=")) Fail(fmt::format("has no ::= behind the rule's name {}", Quoted(name)));
    SkipBlanks(true);
    Rule& rule = RuleOf(name);
    if (rule.is_defined) Fail(fmt::format("defines the rule {} a second time", Quoted(name)));
    rule.is_defined = true;
    source_.SetExpression(rule.id, ReadAlternatives(0));
    SkipBlanks(false);
    if (!AtEnd() && Here() != '\n' && Here() != '\r') {
      Fail(fmt::format("has {}, which is nothing that a rule is made of", Quoted(Rest())));
    }
    SkipBlanks(true);
  }

  ExpressionPtr ReadAlternatives(int nesting) {
    std::vector<ExpressionPtr> alternatives;
    while (true) {
      alternatives.push_back(ReadSequence(nesting));
      // A line that begins with | goes on with the rule before it.
      const size_t before = pos_;
      const int line = line_;
      SkipBlanks(true);
      if (Takes("|")) {
        SkipBlanks(true);
        continue;
      }
      pos_ = before;
      line_ = line;
      return Alternative(std::move(alternatives));
    }
  }

  ExpressionPtr ReadSequence(int nesting) {
    std::vector<ExpressionPtr> parts;
    while (true) {
      SkipBlanks(nesting > 0);
      if (AtEnd()) break;
      ExpressionPtr part;
      switch (Here()) {
        case '"': part = ReadLiteral(); break;
        case '[': part = ReadClass(); break;
        case '<':
        case '!': part = ReadToken(); break;
        case '(': part = ReadGroup(nesting); break;
        case '.':
          ++pos_;
          part = source_.Character(kCodePoints);
          break;
        default:
          if (!IsNameCharacter(Here())) return Concatenation(std::move(parts));
          part = source_.Call(RuleOf(ReadName()).id);
      }
      parts.push_back(ReadRepeats(std::move(part)));
    }
    return Concatenation(std::move(parts));
  }

  ExpressionPtr ReadGroup(int nesting) {
    if (nesting == kMaxNesting) {
      Fail(fmt::format("nests parentheses deeper than {}", kMaxNesting));
    }
    ++pos_;
    ExpressionPtr inner = ReadAlternatives(nesting + 1);
    SkipBlanks(true);
    if (!Takes(")")) Fail("does not close a parenthesis");
    return inner;
  }

  // More than one may follow, as in "a"{2}?.
  ExpressionPtr ReadRepeats(ExpressionPtr part) {
    for (int num_repeats = 0;; ++num_repeats) {
      if (num_repeats > 8) Fail("repeats a repeat of a repeat");
      if (Takes("*")) {
        part = Repeat(part, 0, {});
      } else if (Takes("+")) {
        part = Repeat(part, 1, {});
      } else if (Takes("?")) {
        part = Optional(part);
      } else if (Takes("{")) {
        part = ReadCounts(part);
      } else {
        return part;
      }
    }
  }

  ExpressionPtr ReadCounts(ExpressionPtr part) {
    SkipBlanks(false);
    const uint32_t min = ReadCount();
    SkipBlanks(false);
    std::optional<uint32_t> max = min;
    if (Takes(",")) {
      SkipBlanks(false);
      max = Here() == '}' ? std::optional<uint32_t>() : ReadCount();
      SkipBlanks(false);
    }
    if (!Takes("}")) Fail("does not close the { of a repeat");
    if (max && *max < min) Fail(fmt::format("repeats {} to {} times, which is never", min, *max));
    return Repeat(std::move(part), min, max);
  }

  uint32_t ReadCount() {
    if (Here() < '0' || Here() > '9') Fail("has no number behind the { of a repeat");
    uint32_t count = 0;
    while (Here() >= '0' && Here() <= '9') {
      count = 10 * count + uint32_t(text_[pos_++] - '0');
      if (count > kMaxRepeats) Fail(fmt::format("repeats more often than {} times", kMaxRepeats));
    }
    return count;
  }

  // A character of a literal or a class, escaped or not.
  uint32_t ReadCharacter() {
    if (AtEnd()) Fail("ends within a literal");
    if (Here() == '\n') ++line_;
    if (Here() != '\\') {
      const Utf8Step step = ScanUtf8(text_, pos_);
      if (step.status != Utf8Status::kCharacter) Fail("is not UTF-8");
      pos_ += step.length;
      return step.code;
    }
    pos_ += 2;
    switch (pos_ <= text_.size() ? text_[pos_ - 1] : '\0') {
      case 'x': return ReadHex(2);
      case 'u': return ReadHex(4);
      case 'U': return ReadHex(8);
      case 't': return '\t';
      case 'r': return '\r';
      case 'n': return '\n';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^': return uint32_t(text_[pos_ - 1]);
      default: pos_ -= 2; Fail(fmt::format("has the unknown escape {}", Quoted(Rest())));
    }
  }

  uint32_t ReadHex(int num_digits) {
    uint32_t code = 0;
    for (int i = 0; i < num_digits; ++i) {
      const char c = AtEnd() ? '\0' : text_[pos_++];
      uint32_t digit = 0;
      if (c >= '0' && c <= '9')
        digit = uint32_t(c - '0');
      else if (c >= 'a' && c <= 'f')
        digit = uint32_t(c - 'a' + 10);
      else if (c >= 'A' && c <= 'F')
        digit = uint32_t(c - 'A' + 10);
      else
        Fail(fmt::format("has an escape with fewer than {} digits", num_digits));
      code = code << 4 | digit;
    }
    if (!Contains(kCodePoints, {code, code})) {
      Fail(fmt::format("names U+{:04X}, which is no character", code));
    }
    return code;
  }

  ExpressionPtr ReadLiteral() {
    ++pos_;
    std::string bytes;
    while (Here() != '"' || AtEnd()) AppendUtf8(ReadCharacter(), &bytes);
    ++pos_;
    return Bytes(bytes);
  }

  ExpressionPtr ReadClass() {
    ++pos_;
    const bool is_negated = Takes("^");
    std::vector<SymbolRange> characters;
    while (Here() != ']' || AtEnd()) {
      SymbolRange range{};
      range.first = range.last = ReadCharacter();
      if (Here() == '-' && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']') {
        ++pos_;
        range.last = ReadCharacter();
        if (range.last < range.first) Fail("has a range whose end comes before its beginning");
      }
      characters.push_back(range);
    }
    ++pos_;
    characters = Joined(std::move(characters));
    // A range may go over the surrogates, which are no characters.
    const std::vector<SymbolRange> others = Without(kCodePoints, characters);
    const std::vector<SymbolRange> meant = is_negated ? others : Without(kCodePoints, others);
    return source_.Character(meant);
  }

  // <[ID]>, <text> or either behind a !.
  ExpressionPtr ReadToken() {
    const bool is_negated = Takes("!");
    const size_t end = text_.find('>', pos_);
    if (Here() != '<' || end == std::string_view::npos) {
      Fail(fmt::format("has {}, which is nothing that a rule is made of", Quoted(Rest())));
    }
    const std::string_view name = text_.substr(pos_, end + 1 - pos_);
    pos_ = end + 1;
    const int32_t id = TokenOf(name);
    return is_negated ? TokensExcept(id) : Token(id);
  }

  int32_t TokenOf(std::string_view name) const {
    if (!name.starts_with("<[") || !name.ends_with("]>")) {
      const std::optional<int32_t> id = tokenizer_.AddedTokenId(name);
      if (!id) {
        Fail(fmt::format("names the token {}, which is no added token of the model", Quoted(name)));
      }
      return *id;
    }
    const std::string_view digits = name.substr(2, name.size() - 4);
    int64_t id = 0;
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    if (digits.empty() || digits.size() > 8 || !std::ranges::all_of(digits, is_digit)) {
      Fail(fmt::format("has {} where a token's number should be", Quoted(name)));
    }
    for (const char c : digits) id = 10 * id + (c - '0');
    if (id >= tokenizer_.vocab_size()) {
      Fail(fmt::format("names token {}; the model has {}", id, tokenizer_.vocab_size()));
    }
    return int32_t(id);
  }

  std::string_view text_;
  const Tokenizer& tokenizer_;
  size_t pos_ = 0;
  int line_ = 1;
  GrammarSource source_;
  std::map<std::string, Rule> rules_;
};

}  // namespace

std::shared_ptr<const Grammar> GrammarOfGbnf(std::string_view gbnf, const Tokenizer& tokenizer) {
  return GbnfReader(gbnf, tokenizer).Read();
}

}  // namespace hillstar
