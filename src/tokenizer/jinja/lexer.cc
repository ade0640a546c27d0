#include "tokenizer/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "hillstar/error.h"
#include "tokenizer/jinja/text.h"
#include "tokenizer/utf8.h"

namespace hillstar::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", "<=", ">=", "+", "-", "*",
                                           "/",  "%",  "~",  "<",  ">",  "=",  ".", ",", ":",
                                           "|",  "(",  ")",  "[",  "]",  "{",  "}"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }

// One kind of line end, and none at the end of the template, as Jinja has it by default.
std::string NormalizeLines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeLines(source)) {}

  std::vector<Token> Run() {
    while (pos_ < source_.size()) {
      const size_t tag = FindTag();
      LexText(tag);
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      Advance(tag + (HasSign(tag) ? 3 : 2));
      if (kind == '#') {
        SkipComment();
      } else {
        LexTag(kind == '{');
      }
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Refuse(const std::string& what) const { RefuseTemplate(line_, what); }

  std::string_view Rest() const { return std::string_view(source_).substr(pos_); }
  bool At(std::string_view text) const { return Rest().starts_with(text); }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    pos_ = to;
  }

  // Where the next tag begins; the template's size where there is none.
  size_t FindTag() const {
    for (size_t at = source_.find('{', pos_); at != std::string::npos;
         at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() &&
          std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) {
        return at;
      }
    }
    return source_.size();
  }

  bool HasSign(size_t tag) const {
    return tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+');
  }

  void LexText(size_t tag) {
    std::string_view text = std::string_view(source_).substr(pos_, tag - pos_);
    if (tag < source_.size()) {
      const char sign = HasSign(tag) ? source_[tag + 2] : ' ';
      const size_t line_begin = text.rfind('\n') + 1;  // 0 where there is no line break
      if (sign == '-') {
        text = StripRange(text, {}, false, true).of(text);
      } else if (sign != '+' && source_[tag + 1] != '{' && (line_begin > 0 || line_starts_) &&
                 Strip(text.substr(line_begin)).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) Add(TokenKind::kText, std::string(text));
    Advance(tag);
  }

  // After a tag's end: what white space belongs to the tag. `sign` is the character before the end.
  void SkipAfterTag(char sign, bool trims_line) {
    size_t end = pos_;
    if (sign == '-') {
      end += StripRange(Rest(), {}, true, false).begin;
    } else if (sign != '+' && trims_line && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    line_starts_ = end > pos_ && source_[end - 1] == '\n';
    Advance(end);
  }

  void SkipComment() {
    const size_t end = source_.find("#}", pos_);
    if (end == std::string::npos) Refuse("a comment {# has no end");
    const char sign = end > pos_ ? source_[end - 1] : ' ';
    Advance(end + 2);
    SkipAfterTag(sign, true);
  }

  void LexTag(bool is_output) {
    const std::string_view end = is_output ? "}}" : "%}";
    Add(is_output ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    const int begin_line = line_;
    std::vector<char> brackets;  // open ones: inside them no tag ends
    while (true) {
      Advance(pos_ + StripRange(Rest(), {}, true, false).begin);
      if (pos_ >= source_.size()) RefuseTemplate(begin_line, "a tag has no end");
      if (brackets.empty()) {
        const bool has_sign = At("-") || (At("+") && !is_output);
        if (Rest().substr(has_sign ? 1 : 0).starts_with(end)) {
          Add(is_output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
          const char sign = has_sign ? source_[pos_] : ' ';
          Advance(pos_ + (has_sign ? 3 : 2));
          SkipAfterTag(sign, !is_output);
          return;
        }
      }
      LexWord(&brackets);
    }
  }

  void LexWord(std::vector<char>* brackets) {
    const char c = source_[pos_];
    if (IsNameStart(c)) {
      size_t end = pos_;
      while (end < source_.size() && IsNamePart(source_[end])) ++end;
      Add(TokenKind::kName, source_.substr(pos_, end - pos_));
      Advance(end);
    } else if (IsDigit(c)) {
      LexNumber();
    } else if (c == '\'' || c == '"') {
      LexString(c);
    } else {
      LexOperator(brackets);
    }
  }

  void LexNumber() {
    const bool is_index = !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator &&
                          tokens_.back().text == ".";
    size_t end = pos_;
    const auto digits = [&] {
      while (end < source_.size() && IsDigit(source_[end])) ++end;
    };
    const auto digit_at = [&](size_t at) { return at < source_.size() && IsDigit(source_[at]); };
    digits();
    bool is_float = false;
    if (!is_index && end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      is_float = true;
      ++end;
      digits();
    }
    if (!is_index && end < source_.size() && (source_[end] | 0x20) == 'e') {
      const bool has_sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      if (digit_at(end + (has_sign ? 2 : 1))) {
        is_float = true;
        end += has_sign ? 2 : 1;
        digits();
      }
    }
    if (end < source_.size() && IsNamePart(source_[end])) {
      Refuse("a number in an unusual spelling: " + source_.substr(pos_, end + 1 - pos_));
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, source_.substr(pos_, end - pos_));
    Advance(end);
  }

  void LexOperator(std::vector<char>* brackets) {
    for (const std::string_view op : kOperators) {
      if (!At(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') {
        brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (brackets->empty() || brackets->back() != c) Refuse(fmt::format("unexpected '{}'", c));
        brackets->pop_back();
      }
      Add(TokenKind::kOperator, std::string(op));
      Advance(pos_ + op.size());
      return;
    }
    const size_t length = ScanUtf8(source_, pos_).length;
    Refuse("unexpected '" + source_.substr(pos_, length) + "'");
  }

  void LexString(char quote) {
    std::string out;
    size_t at = pos_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] == '\\' && at + 1 < source_.size()) {
        at = Unescape(at + 1, &out);
      } else {
        out.push_back(source_[at++]);
      }
    }
    if (at >= source_.size()) Refuse("a string has no end");
    Add(TokenKind::kString, std::move(out));
    Advance(at + 1);
  }

  // An escape as Python's string literals have it; source_[at] follows the backslash. Returns where
  // the string goes on.
  size_t Unescape(size_t at, std::string* out) const {
    const char c = source_[at];
    constexpr std::string_view kLetters = "ntrabfv\\'\"";
    constexpr std::string_view kMeanings = "\n\t\r\a\b\f\v\\'\"";
    const size_t known = kLetters.find(c);
    if (known != std::string_view::npos) {
      out->push_back(kMeanings[known]);
      return at + 1;
    }
    if (c == '\n') return at + 1;
    const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (num_digits > 0) {
      uint32_t code = 0;
      for (size_t i = 1; i <= num_digits; ++i) {
        const char digit = at + i < source_.size() ? source_[at + i] : ' ';
        const size_t value = std::string_view("0123456789abcdef")
                                 .find(static_cast<char>(IsDigit(digit) ? digit : digit | 0x20));
        if (value == std::string_view::npos) Refuse("a broken escape in a string");
        code = code << 4 | static_cast<uint32_t>(value);
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        Refuse("an escape in a string names no character");
      }
      AppendUtf8(code, out);
      return at + 1 + num_digits;
    }
    if (IsDigit(c) || c == 'N') Refuse("an octal or named escape in a string");
    out->push_back('\\');
    out->push_back(c);
    return at + 1;
  }

  std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // whether source_[pos_] is the first of a line
  std::vector<Token> tokens_;
};

}  // namespace

void RefuseTemplate(int line, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("The chat template, line {}: {}.", line, what));
}

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace hillstar::jinja
