#include "tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "hillstar/error.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

// A pattern that backtracks further than this is hostile or broken: GLM's needs a few steps a
// match, and one pass over the text for a run of white space.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kMaxPatternBytes = 64 * 1024;

std::string ErrorText(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

[[noreturn]] void Refuse(std::string_view construct, std::string_view pattern) {
  throw Error(ErrorCode::kUnsupported,
              "The tokenizer's split pattern uses " + std::string(construct) +
                  ", which this program does not serve: " + std::string(pattern));
}

// What an escape of Oniguruma is in PCRE2. White space is Unicode's White_Space there, while
// PCRE2's \s also holds U+180E; \w and \b differ in marks; \h is a hexadecimal digit there.
std::string TranslateEscape(char letter, std::string_view pattern) {
  switch (letter) {
    case 's': return "\\p{White_Space}";
    case 'S': return "\\P{White_Space}";
    case 'd': return "\\p{Nd}";
    case 'D': return "\\P{Nd}";
    case 'p':
    case 'P':
    case 'n':
    case 'r':
    case 't':
    case 'f': return {'\\', letter};
    default: break;
  }
  const auto byte = static_cast<uint8_t>(letter);
  const bool is_word = (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
  if (is_word || (byte >= '0' && byte <= '9')) {
    Refuse("the escape \\" + std::string(1, letter), pattern);
  }
  return {'\\', letter};
}

// A group may be one of these; others (names, conditions, calls, verbs) are refused.
void CheckGroup(std::string_view rest, std::string_view pattern) {
  if (rest.starts_with("(*")) Refuse("a verb (*", pattern);
  if (!rest.starts_with("(?")) return;
  for (const char* known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
    if (rest.starts_with(known)) return;
  }
  Refuse("the group " + std::string(rest.substr(0, 4)), pattern);
}

std::string TranslatePattern(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      out += TranslateEscape(pattern[++i], pattern);
      // A property's name in braces is no quantifier.
      if ((pattern[i] | 0x20) == 'p' && i + 1 < pattern.size() && pattern[i + 1] == '{') {
        const size_t close = std::min(pattern.find('}', i), pattern.size() - 1);
        out += pattern.substr(i + 1, close - i);
        i = close;
      }
      continue;
    }
    if (in_class) {
      if (pattern.substr(i).starts_with("&&")) Refuse("an intersection && of classes", pattern);
      if (c == '[') Refuse("a class inside a class", pattern);
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (pattern.substr(i).starts_with("[^]") || pattern.substr(i).starts_with("[]")) {
        Refuse("an unescaped ] at the start of a class", pattern);
      }
    } else if (c == '(') {
      CheckGroup(pattern.substr(i), pattern);
    } else if (c == '}' && pattern.substr(i).starts_with("}+")) {
      Refuse("the quantifier }+", pattern);
    }
    out.push_back(c);
  }
  return out;
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct MatchDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

size_t NextCharacter(std::string_view text, size_t pos) { return pos + ScanUtf8(text, pos).length; }

}  // namespace

struct SplitPattern::Code {
  std::string pattern;  // as the file has it, for messages
  std::unique_ptr<pcre2_code, CodeDeleter> code;
  std::unique_ptr<pcre2_match_context, ContextDeleter> context;

  Code(std::string_view original, std::string_view translated, uint32_t options)
      : pattern(original) {
    if (original.empty() || original.size() > kMaxPatternBytes) {
      throw Error(ErrorCode::kBadFile, "The tokenizer's split pattern is empty or longer than " +
                                           std::to_string(kMaxPatternBytes) + " bytes.");
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             options, &error, &offset, nullptr));
    if (code == nullptr) {
      throw Error(ErrorCode::kBadFile, "The tokenizer's split pattern does not compile (" +
                                           ErrorText(error) + "): " + pattern);
    }
    // Without a JIT compiler the interpreter matches the same, only more slowly.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    context.reset(pcre2_match_context_create(nullptr));
    CHECK(context != nullptr);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  }

  // True and *match if the pattern matches at or after `start`.
  bool Find(std::string_view subject, size_t start, pcre2_match_data* data,
            TextRange* match) const {
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
    int rc = pcre2_match(code.get(), bytes, subject.size(), start, PCRE2_NO_UTF_CHECK, data,
                         context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code.get(), bytes, subject.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data, context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      throw Error(ErrorCode::kUnsupported, "The tokenizer's split pattern gave up on a text of " +
                                               std::to_string(subject.size()) + " bytes (" +
                                               ErrorText(rc) + "): " + pattern);
    }
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data);
    *match = {ovector[0], ovector[1]};
    return true;
  }
};

SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

SplitPattern SplitPattern::FromRegex(std::string_view pattern) {
  // Oniguruma's ^ and $ (Ruby syntax) match at every line.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  return SplitPattern(std::make_unique<Code>(pattern, TranslatePattern(pattern), options));
}

SplitPattern SplitPattern::FromLiteral(std::string_view text) {
  return SplitPattern(std::make_unique<Code>(text, text, PCRE2_UTF | PCRE2_LITERAL));
}

void SplitPattern::Split(std::string_view text, TextRange range,
                         std::vector<TextRange>* words) const {
  const std::string_view subject = range.of(text);
  const std::unique_ptr<pcre2_match_data, MatchDeleter> data(
      pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  CHECK(data != nullptr);
  const auto add = [&](size_t begin, size_t end) {
    if (begin < end) words->push_back({range.begin + begin, range.begin + end});
  };
  size_t done = 0;   // words reach up to here
  size_t start = 0;  // the next search begins here
  TextRange match{};
  while (start < subject.size() && code_->Find(subject, start, data.get(), &match)) {
    add(done, match.begin);
    add(match.begin, match.end);
    done = match.end;
    // An empty match cuts, too, and the search goes on behind the next character.
    start = done;
    if (match.size() == 0 && done < subject.size()) start = NextCharacter(subject, done);
    if (match.size() == 0 && done == subject.size()) break;
  }
  add(done, subject.size());
}

}  // namespace hillstar
