// What Python's str methods do, on UTF-8 texts that carry marks. Pure functions; any thread may
// call.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/marked_text.h"
#include "tokenizer/text_range.h"

namespace hillstar::jinja {

// Whether Python's str.isspace counts it.
bool IsSpace(uint32_t code);

// The range that is left when the characters of `set` (white space where it is empty) are taken
// off the left and the right side.
TextRange StripRange(std::string_view text, std::string_view set, bool left, bool right);

// As str.strip().
inline std::string_view Strip(std::string_view text) {
  return StripRange(text, {}, true, true).of(text);
}

// Where each character begins, and the text's size at the end; a stray byte counts as one.
std::vector<size_t> CharacterOffsets(std::string_view text);
size_t CountCharacters(std::string_view text);

// As str.split(separator, max_splits); the parts keep their marks. An empty separator splits at
// runs of white space. max_splits < 0: no limit. `from_right`: as rsplit.
std::vector<MarkedText> Split(const MarkedText& text, std::string_view separator,
                              int64_t max_splits, bool from_right);
// As str.splitlines().
std::vector<MarkedText> SplitLines(const MarkedText& text);

// As str.replace(from, to, max_count); max_count < 0: all.
MarkedText Replace(const MarkedText& text, std::string_view from, const MarkedText& to,
                   int64_t max_count);

enum class LetterCase { kUpper, kLower };
// Character by character: "ß" stays as it is, while Python makes it "SS".
MarkedText ChangeCase(const MarkedText& text, LetterCase to);
// As str.capitalize().
MarkedText Capitalize(const MarkedText& text);
// As Jinja's filter title: words begin after white space, - ( { [ and <.
MarkedText Title(const MarkedText& text);

}  // namespace hillstar::jinja
