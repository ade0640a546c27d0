// Cuts a Jinja template into text, tags and the words inside tags, with the white-space control
// that Hugging Face sets (trim_blocks and lstrip_blocks). Pure; any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar::jinja {

enum class TokenKind {
  kText,         // between tags, as it is written out
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kBlockBegin,   // {%
  kBlockEnd,     // %}
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;
  int line = 1;
};

// Ends with a kEnd token. Errors: kUnsupported naming line and construct.
std::vector<Token> Tokenize(std::string_view source);

// Throws Error kUnsupported: "The chat template, line 12: ...".
[[noreturn]] void RefuseTemplate(int line, const std::string& what);

}  // namespace hillstar::jinja
