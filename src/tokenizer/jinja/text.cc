#include "tokenizer/jinja/text.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <string>

#include "tokenizer/utf8.h"

namespace hillstar::jinja {
namespace {

bool InSet(std::string_view character, uint32_t code, std::string_view set) {
  if (set.empty()) return IsSpace(code);
  for (size_t pos = 0; pos < set.size();) {
    const size_t length = ScanUtf8(set, pos).length;
    if (set.substr(pos, length) == character) return true;
    pos += length;
  }
  return false;
}

// Where the last character of text[0, end) begins; a stray byte is a character of its own.
size_t LastCharacter(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) {
    --begin;
  }
  const Utf8Step step = ScanUtf8(text.substr(0, end), begin);
  const bool whole = step.status == Utf8Status::kCharacter && begin + step.length == end;
  return whole ? begin : end - 1;
}

// The C library's Unicode tables, where the machine has them.
locale_t UnicodeLocale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

uint32_t ChangeCase(uint32_t code, LetterCase to) {
  if (code < 0x80) {
    const uint32_t first = to == LetterCase::kUpper ? 'a' : 'A';
    return code >= first && code < first + 26 ? code ^ 0x20 : code;
  }
  const locale_t locale = UnicodeLocale();
  if (locale == nullptr) return code;
  const auto wide = static_cast<wint_t>(code);
  return static_cast<uint32_t>(to == LetterCase::kUpper ? towupper_l(wide, locale)
                                                        : towlower_l(wide, locale));
}

// Changes each character as `case_of(index, code)` says.
template <typename CaseOf>
MarkedText ChangeEach(const MarkedText& text, const CaseOf& case_of) {
  MarkedText out;
  size_t index = 0;
  for (size_t pos = 0; pos < text.size(); ++index) {
    const Utf8Step step = ScanUtf8(text.text(), pos);
    std::string changed;
    if (step.status == Utf8Status::kCharacter) {
      AppendUtf8(ChangeCase(step.code, case_of(index, step.code)), &changed);
    } else {
      changed = text.text().substr(pos, step.length);
    }
    out.Append(changed, text.IsMarked(pos));
    pos += step.length;
  }
  return out;
}

// Ranges between runs of white space, at most `max_splits` + 1 (no limit below 0); the last one
// reaches to the end (from the right: the first one to the start), stripped of the outer side only.
std::vector<TextRange> SplitAtSpace(std::string_view text, int64_t max_splits, bool from_right) {
  std::vector<TextRange> parts;
  TextRange rest = StripRange(text, {}, true, true);
  const auto size_limit = static_cast<size_t>(max_splits) + 1;
  if (max_splits >= 0) rest = StripRange(text, {}, !from_right, from_right);
  std::vector<TextRange> words;
  for (size_t pos = rest.begin; pos < rest.end;) {
    const size_t begin = pos + StripRange(text.substr(pos, rest.end - pos), {}, true, false).begin;
    size_t end = begin;
    while (end < rest.end) {
      const Utf8Step step = ScanUtf8(text.substr(0, rest.end), end);
      if (step.status == Utf8Status::kCharacter && IsSpace(step.code)) break;
      end += step.length;
    }
    if (begin < end) words.push_back({begin, end});
    pos = end;
  }
  if (max_splits < 0 || words.size() < size_limit) return words;
  if (from_right) {
    const size_t num_joined = words.size() - size_limit + 1;
    parts.push_back({rest.begin, words[num_joined - 1].end});
    parts.insert(parts.end(), words.begin() + static_cast<std::ptrdiff_t>(num_joined), words.end());
  } else {
    parts.assign(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(size_limit));
    parts.back().end = rest.end;
  }
  return parts;
}

std::vector<TextRange> SplitAt(std::string_view text, std::string_view separator,
                               int64_t max_splits, bool from_right) {
  std::vector<TextRange> parts;
  size_t begin = 0;
  size_t end = text.size();
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const std::string_view rest = text.substr(0, end);
    const size_t found = from_right ? rest.rfind(separator) : rest.find(separator, begin);
    if (found == std::string_view::npos) break;
    if (from_right) {
      parts.push_back({found + separator.size(), end});
      end = found;
    } else {
      parts.push_back({begin, found});
      begin = found + separator.size();
    }
  }
  parts.push_back({begin, end});
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

bool IsLineBreak(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

}  // namespace

bool IsSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

TextRange StripRange(std::string_view text, std::string_view set, bool left, bool right) {
  TextRange range{0, text.size()};
  while (left && range.begin < range.end) {
    const Utf8Step step = ScanUtf8(text, range.begin);
    if (!InSet(text.substr(range.begin, step.length), step.code, set)) break;
    range.begin += step.length;
  }
  while (right && range.begin < range.end) {
    const size_t last = LastCharacter(text, range.end);
    const Utf8Step step = ScanUtf8(text.substr(0, range.end), last);
    if (!InSet(text.substr(last, step.length), step.code, set)) break;
    range.end = last;
  }
  return range;
}

std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (size_t pos = 0; pos < text.size(); pos += ScanUtf8(text, pos).length) {
    offsets.push_back(pos);
  }
  offsets.push_back(text.size());
  return offsets;
}

size_t CountCharacters(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); pos += ScanUtf8(text, pos).length) ++count;
  return count;
}

std::vector<MarkedText> Split(const MarkedText& text, std::string_view separator,
                              int64_t max_splits, bool from_right) {
  const std::vector<TextRange> ranges =
      separator.empty() ? SplitAtSpace(text.text(), max_splits, from_right)
                        : SplitAt(text.text(), separator, max_splits, from_right);
  std::vector<MarkedText> parts;
  parts.reserve(ranges.size());
  for (const TextRange range : ranges) parts.push_back(text.Slice(range.begin, range.end));
  return parts;
}

std::vector<MarkedText> SplitLines(const MarkedText& text) {
  std::vector<MarkedText> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = ScanUtf8(text.text(), pos);
    const bool is_break = step.status == Utf8Status::kCharacter && IsLineBreak(step.code);
    if (is_break) lines.push_back(text.Slice(begin, pos));
    pos += step.length;
    if (step.code == '\r' && pos < text.size() && text.text()[pos] == '\n') ++pos;
    if (is_break) begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.Slice(begin, text.size()));
  return lines;
}

MarkedText Replace(const MarkedText& text, std::string_view from, const MarkedText& to,
                   int64_t max_count) {
  MarkedText out;
  const std::string_view bytes = text.text();
  size_t pos = 0;
  for (int64_t count = 0; max_count < 0 || count < max_count; ++count) {
    // An empty text is found before each character and at the end.
    if (from.empty()) {
      out.Append(to);
      if (pos >= bytes.size()) return out;
      const size_t next = pos + ScanUtf8(bytes, pos).length;
      out.Append(text.Slice(pos, next));
      pos = next;
      continue;
    }
    const size_t found = bytes.find(from, pos);
    if (found == std::string_view::npos) break;
    out.Append(text.Slice(pos, found));
    out.Append(to);
    pos = found + from.size();
  }
  out.Append(text.Slice(pos, bytes.size()));
  return out;
}

MarkedText ChangeCase(const MarkedText& text, LetterCase to) {
  return ChangeEach(text, [to](size_t, uint32_t) { return to; });
}

MarkedText Capitalize(const MarkedText& text) {
  return ChangeEach(text, [](size_t index, uint32_t) {
    return index == 0 ? LetterCase::kUpper : LetterCase::kLower;
  });
}

MarkedText Title(const MarkedText& text) {
  bool begins = true;
  return ChangeEach(text, [&begins](size_t, uint32_t code) {
    const LetterCase to = begins ? LetterCase::kUpper : LetterCase::kLower;
    begins = IsSpace(code) ||
             (code < 0x80 &&
              std::string_view("-({[<").find(static_cast<char>(code)) != std::string_view::npos);
    return to;
  });
}

}  // namespace hillstar::jinja
