// Which texts a JSON schema's string may be, as automata over code points. One thread at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace hillstar {

// Longer texts are never made: a larger maxLength means this one.
inline constexpr uint32_t kMaxBoundedCharacters = 16384;

// Patterns and formats, each compiled once.
class TextLanguages {
 public:
  explicit TextLanguages(WorkBudget* budget) : budget_(budget) {}

  // Errors: as TextsMatching's.
  std::shared_ptr<const Dfa> OfPattern(const std::string& pattern);
  // A strict form: what it accepts a validator accepts. REQUIRES: IsTextFormat(format).
  std::shared_ptr<const Dfa> OfFormat(std::string_view format);

 private:
  WorkBudget* budget_;
  std::map<std::string, std::shared_ptr<const Dfa>> by_pattern_;
};

bool IsTextFormat(std::string_view format);
// "date, time, ...": for messages.
std::string TextFormats();

}  // namespace hillstar
