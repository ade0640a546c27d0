// One regular expression that cuts text into words, as Hugging Face's Split with behaviour Isolated
// does: each match is a word, and so is each stretch between matches. Immutable after construction:
// any thread may split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text_range.h"

namespace hillstar {

class SplitPattern {
 public:
  // Errors: kBadFile for a pattern that does not compile; kUnsupported for a construct that means
  // something else in Hugging Face's engine (Oniguruma) than here (PCRE2).
  static SplitPattern FromRegex(std::string_view pattern);
  static SplitPattern FromLiteral(std::string_view text);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Appends the words of text[range], which is valid UTF-8. Nothing outside `range` is seen.
  // Errors: kUnsupported where the pattern needs more steps than its limit.
  void Split(std::string_view text, TextRange range, std::vector<TextRange>* words) const;

 private:
  struct Code;
  explicit SplitPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace hillstar
