// UTF-8 as bytes: where characters begin and end, and what is not UTF-8. Pure functions; any thread
// may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hillstar {

enum class Utf8Status {
  kCharacter,  // a whole character
  kInvalid,    // no character begins with these bytes (overlong, surrogate, stray byte)
  kUnfinished  // the text ends inside a character that could still become valid
};

struct Utf8Step {
  Utf8Status status;
  uint32_t length;  // bytes; of an invalid sequence its maximal subpart (at least 1)
  uint32_t code;    // of a whole character
};

// What stands at text[pos]. REQUIRES: pos < text.size().
Utf8Step ScanUtf8(std::string_view text, size_t pos);

// Bytes of the longest prefix that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

// Appends the character `code` (at most 0x10FFFF, no surrogate).
void AppendUtf8(uint32_t code, std::string* out);

// The text with each maximal invalid subpart as U+FFFD, as browsers decode it (WHATWG).
std::string ReplaceInvalidUtf8(std::string_view text);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace hillstar
