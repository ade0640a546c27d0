// A place in a template's tokens, and what parsers ask and expect there. Not thread-safe: of one
// parse.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/lexer.h"

namespace hillstar::jinja {

// Words that cannot be names.
inline constexpr std::string_view kReservedWords[] = {
    "and", "or", "not", "if", "else", "in", "is", "true", "True", "none", "None", "false", "False"};

template <typename List>
bool Contains(const List& list, std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

// Every refusal throws Error kUnsupported naming the line.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  // Counts how deep the parser is in nested constructs.
  class Nesting {
   public:
    Nesting(const TokenReader* reader, int* depth, int limit) : depth_(depth) {
      if (*depth_ >= limit) reader->Refuse("it nests too deeply");
      ++*depth_;
    }
    ~Nesting() { --*depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int* depth_;
  };

  [[noreturn]] void Refuse(const std::string& what) const { RefuseTemplate(Current().line, what); }

  const Token& Current() const { return tokens_[pos_]; }
  const Token& Next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  const Token& Take() {
    const Token& token = tokens_[pos_];
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return token;
  }
  std::string Describe() const {
    switch (Current().kind) {
      case TokenKind::kText: return "text";
      case TokenKind::kOutputBegin: return "{{";
      case TokenKind::kOutputEnd: return "}}";
      case TokenKind::kBlockBegin: return "{%";
      case TokenKind::kBlockEnd: return "%}";
      case TokenKind::kEnd: return "the end of the template";
      default: return "'" + Current().text + "'";
    }
  }

  bool Is(TokenKind kind) const { return Current().kind == kind; }
  bool IsOp(std::string_view op) const { return Is(TokenKind::kOperator) && Current().text == op; }
  bool IsWord(std::string_view word) const {
    return Is(TokenKind::kName) && Current().text == word;
  }
  bool TakeOp(std::string_view op) {
    if (!IsOp(op)) return false;
    Take();
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (!IsWord(word)) return false;
    Take();
    return true;
  }
  void ExpectOp(std::string_view op) {
    if (!TakeOp(op)) Refuse(fmt::format("{} where '{}' was expected", Describe(), op));
  }
  void Expect(TokenKind kind, std::string_view what) {
    if (!Is(kind)) Refuse(fmt::format("{} where {} was expected", Describe(), what));
    Take();
  }
  std::string ExpectName() {
    if (!Is(TokenKind::kName) || Contains(kReservedWords, Current().text)) {
      Refuse(Describe() + " where a name was expected");
    }
    return Take().text;
  }

 private:
  std::vector<Token> tokens_;
  size_t pos_ = 0;
};

}  // namespace hillstar::jinja
