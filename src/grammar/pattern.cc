#include "grammar/pattern.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/json_scan.h"
#include "grammar/expression.h"
#include "grammar/rule_automata.h"
#include "hillstar/error.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

// A text counts as standing between these two, so that ^ and $ are symbols like others.
constexpr uint32_t kTextBegin = 0x110002, kTextEnd = 0x110004;

constexpr int kMaxNesting = 64;
constexpr uint32_t kMaxRepeats = 16384;

using Ranges = std::vector<SymbolRange>;
const Ranges kDigits = {{'0', '9'}};
const Ranges kWordCharacters = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kBlanks = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Ranges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

Ranges AllCodePoints() { return {kCodePoints[0], kCodePoints[1]}; }

class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : text_(pattern) {}

  ExpressionPtr Read() {
    const Part all = ReadAlternatives(0);
    if (pos_ < text_.size()) Fail("has a ) that closes nothing");
    const ExpressionPtr any = Repeat(Symbols(AllCodePoints()), 0, {});
    return Concatenation({Optional(Concatenation({Symbols({{kTextBegin, kTextBegin}}), any})),
                          all.expression,
                          Optional(Concatenation({any, Symbols({{kTextEnd, kTextEnd}})}))});
  }

 private:
  struct Part {
    ExpressionPtr expression;
    int num_begins = 0, num_ends = 0;  // ^ and $ on one way through it at most
  };

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kBadRequest, fmt::format("The pattern {} {}.", Quoted(text_), what));
  }

  char Here() const { return pos_ < text_.size() ? text_[pos_] : '\0'; }
  bool AtEnd() const { return pos_ == text_.size(); }
  bool Takes(std::string_view part) {
    if (!text_.substr(pos_).starts_with(part)) return false;
    pos_ += part.size();
    return true;
  }

  Part ReadAlternatives(int nesting) {
    Part all;
    std::vector<ExpressionPtr> ways;
    do {
      const Part way = ReadSequence(nesting);
      ways.push_back(way.expression);
      all.num_begins = std::max(all.num_begins, way.num_begins);
      all.num_ends = std::max(all.num_ends, way.num_ends);
    } while (Takes("|"));
    all.expression = Alternative(std::move(ways));
    return all;
  }

  Part ReadSequence(int nesting) {
    Part all;
    std::vector<ExpressionPtr> parts;
    while (!AtEnd() && Here() != '|' && Here() != ')') {
      const Part part = ReadCounts(ReadAtom(nesting));
      all.num_begins += part.num_begins;
      all.num_ends += part.num_ends;
      // Each takes a symbol of its own; the text has one of either.
      if (all.num_begins > 1 || all.num_ends > 1) Fail("has a ^ or a $ twice in a row of parts");
      parts.push_back(part.expression);
    }
    all.expression = Concatenation(std::move(parts));
    return all;
  }

  Part ReadAtom(int nesting) {
    switch (Here()) {
      case '^': ++pos_; return {Symbols({{kTextBegin, kTextBegin}}), 1, 0};
      case '$': ++pos_; return {Symbols({{kTextEnd, kTextEnd}}), 0, 1};
      case '(': return ReadGroup(nesting);
      case '[': return {Symbols(ReadClass())};
      case '.': ++pos_; return {Symbols(Without(kCodePoints, kLineEnds))};
      case '\\': return {Symbols(ReadEscape(false))};
      case '*':
      case '+':
      case '?':
      case '{':
      case '}':
      case ']': Fail(fmt::format("has a {} where it counts or closes nothing", Here()));
      default: {
        const uint32_t code = ReadCodePoint();
        return {Symbols({{code, code}})};
      }
    }
  }

  uint32_t ReadCodePoint() {
    const Utf8Step step = ScanUtf8(text_, pos_);
    if (step.status != Utf8Status::kCharacter) Fail("is not UTF-8");
    pos_ += step.length;
    return step.code;
  }

  Part ReadGroup(int nesting) {
    if (nesting == kMaxNesting) Fail(fmt::format("nests groups deeper than {}", kMaxNesting));
    ++pos_;
    if (Takes("?") && !Takes(":")) {
      const bool is_name = Takes("<") && Here() != '=' && Here() != '!';
      const size_t end = text_.find('>', pos_);
      if (!is_name || end == std::string_view::npos) {
        Fail("has a (? that is neither (?: nor a name; looking around is not supported");
      }
      pos_ = end + 1;
    }
    const Part inner = ReadAlternatives(nesting + 1);
    if (!Takes(")")) Fail("does not close a (");
    return inner;
  }

  Part ReadCounts(Part part) {
    uint32_t min = 0;
    std::optional<uint32_t> max;
    switch (Here()) {
      case '*': break;
      case '+': min = 1; break;
      case '?': max = 1; break;
      case '{': break;
      default: return part;
    }
    if (part.num_begins + part.num_ends > 0 && max != 1u) Fail("repeats a ^ or a $");
    if (text_[pos_++] == '{') ReadBounds(&min, &max);
    Takes("?");  // the shortest match: the same texts
    if (Here() == '*' || Here() == '+' || Here() == '?' || Here() == '{') Fail("counts a count");
    part.expression = Repeat(part.expression, min, max);
    return part;
  }

  void ReadBounds(uint32_t* min, std::optional<uint32_t>* max) {
    *min = ReadNumber();
    *max = *min;
    if (Takes(",")) *max = Here() == '}' ? std::optional<uint32_t>() : ReadNumber();
    if (!Takes("}")) Fail("does not close a {");
    if (*max && **max < *min) Fail(fmt::format("counts from {} to {}", *min, **max));
  }

  uint32_t ReadNumber() {
    if (Here() < '0' || Here() > '9') Fail("has no number behind a {");
    uint32_t number = 0;
    while (Here() >= '0' && Here() <= '9') {
      number = 10 * number + uint32_t(text_[pos_++] - '0');
      if (number > kMaxRepeats) Fail(fmt::format("counts further than {}", kMaxRepeats));
    }
    return number;
  }

  Ranges ReadClass() {
    ++pos_;
    const bool is_negated = Takes("^");
    Ranges ranges;
    while (Here() != ']' || AtEnd()) {
      if (AtEnd()) Fail("does not close a [");
      const Ranges first = ReadClassPart();
      const bool is_range = Here() == '-' && pos_ + 1 < text_.size() && text_[pos_ + 1] != ']';
      if (!is_range) {
        ranges.insert(ranges.end(), first.begin(), first.end());
        continue;
      }
      ++pos_;
      const Ranges last = ReadClassPart();
      const bool is_two = first.size() == 1 && first[0].first == first[0].last &&
                          last.size() == 1 && last[0].first == last[0].last;
      if (!is_two || last[0].first < first[0].first) Fail("has a range without a first and a last");
      ranges.push_back({first[0].first, last[0].first});
    }
    ++pos_;
    // What is negated twice are the characters meant, without the surrogates.
    const Ranges others = Without(kCodePoints, Joined(std::move(ranges)));
    return is_negated ? others : Without(kCodePoints, others);
  }

  Ranges ReadClassPart() {
    if (Here() == '\\') return ReadEscape(true);
    const uint32_t code = ReadCodePoint();
    return {{code, code}};
  }

  Ranges ReadEscape(bool is_in_class) {
    const size_t begin = pos_;
    pos_ += 2;
    const char c = pos_ <= text_.size() ? text_[pos_ - 1] : '\0';
    const auto one = [](uint32_t code) { return Ranges{{code, code}}; };
    switch (c) {
      case 'd': return kDigits;
      case 'D': return Without(kCodePoints, kDigits);
      case 'w': return kWordCharacters;
      case 'W': return Without(kCodePoints, kWordCharacters);
      case 's': return kBlanks;
      case 'S': return Without(kCodePoints, kBlanks);
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'v': return one('\v');
      case 'f': return one('\f');
      case 'r': return one('\r');
      case 'x': return one(ReadHex(2));
      case 'u': return one(ReadUnicode());
      case 'b':
        if (is_in_class) return one('\b');
        break;
      case '0':
        if (Here() < '0' || Here() > '9') return one(0);
        break;
      case 'c': {
        const char letter = char(Here() | 0x20);
        if (letter < 'a' || letter > 'z') break;
        ++pos_;
        return one(uint32_t(letter - 'a' + 1));
      }
      default: {
        const bool is_mark = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') ||
                             (c >= '[' && c <= '`') || (c >= '{' && c <= '~') || c == ' ';
        if (is_mark) return one(uint32_t(static_cast<unsigned char>(c)));
      }
    }
    Fail(fmt::format("uses {}, which is not supported", Quoted(text_.substr(begin, 2))));
  }

  uint32_t ReadHex(int num_digits) {
    uint32_t code = 0;
    for (int i = 0; i < num_digits; ++i) {
      const char c = AtEnd() ? '\0' : text_[pos_++];
      const char lower = char(c | 0x20);
      if (c >= '0' && c <= '9') {
        code = code << 4 | uint32_t(c - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        code = code << 4 | uint32_t(lower - 'a' + 10);
      } else {
        Fail(fmt::format("has an escape with fewer than {} digits", num_digits));
      }
    }
    return code;
  }

  uint32_t ReadUnicode() {
    uint32_t code = 0;
    if (Takes("{")) {
      const size_t end = text_.find('}', pos_);
      if (end == std::string_view::npos || end == pos_ || end - pos_ > 6)
        Fail("has a malformed \\u{");
      code = ReadHex(int(end - pos_));
      ++pos_;
    } else {
      code = ReadHex(4);
      // Two surrogates are one character.
      if (code >= 0xD800 && code <= 0xDBFF && Takes("\\u")) {
        const uint32_t low = ReadHex(4);
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        if (low < 0xDC00 || low > 0xDFFF) Fail("has half of a surrogate pair");
      }
    }
    if (!Contains(kCodePoints, {code, code})) Fail("has an escape that is no character");
    return code;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

// What stands between the two ends of the text.
Dfa WithoutEnds(const Dfa& dfa, WorkBudget* budget) {
  Nfa nfa(budget);
  std::vector<uint32_t> nodes;
  for (size_t i = 0; i < dfa.nodes.size(); ++i) nodes.push_back(nfa.AddNode());
  const std::optional<uint32_t> start = dfa.Next(0, kTextBegin);
  if (start) nfa.AddEmptyEdge(Nfa::kStart, nodes[*start]);
  for (uint32_t i = 0; i < dfa.nodes.size(); ++i) {
    const std::optional<uint32_t> last = dfa.Next(i, kTextEnd);
    if (last && dfa.nodes[*last].accepts) nfa.AddEmptyEdge(nodes[i], Nfa::kEnd);
    for (const Dfa::Edge& edge : dfa.nodes[i].edges) {
      if (edge.symbols.first < kTextBegin) nfa.AddEdge(nodes[i], edge.symbols, nodes[edge.to]);
    }
  }
  return Determinise(nfa, budget);
}

Dfa TextsMatchingPlain(std::string_view pattern, WorkBudget* budget) {
  GrammarSource source;
  const uint32_t rule = source.AddRule("pattern");
  source.SetExpression(rule, PatternReader(pattern).Read());
  return WithoutEnds(RuleAutomata(source, rule, budget)[rule], budget);
}

// Where the group that `pattern` begins with is closed, and whether a | stands in the rest outside
// of groups. Malformed patterns are found out by their reader.
struct FirstGroup {
  size_t end = std::string_view::npos;
  bool is_one_way = true;
};

FirstGroup FindFirstGroup(std::string_view pattern) {
  FirstGroup found;
  int depth = 0;
  bool is_in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (is_in_class) {
      is_in_class = c != ']';
    } else if (c == '[') {
      is_in_class = true;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')') {
      --depth;
      if (depth == 0 && found.end == std::string_view::npos) found.end = i;
    } else if (c == '|' && depth == 0) {
      found.is_one_way = false;
    }
  }
  return found;
}

}  // namespace

Dfa TextsMatching(std::string_view pattern, WorkBudget* budget) {
  constexpr size_t kMaxLooks = 8;
  std::string rest(pattern);
  std::vector<Dfa> conditions;
  while (rest.starts_with("^(?=") || rest.starts_with("^(?!")) {
    const FirstGroup group = FindFirstGroup(std::string_view(rest).substr(1));
    if (group.end == std::string_view::npos || !group.is_one_way ||
        conditions.size() == kMaxLooks) {
      break;  // the reader says what is wrong
    }
    const std::string inner = "^(?:" + rest.substr(4, group.end - 3) + ")";
    Dfa texts = TextsMatchingPlain(inner, budget);
    const bool is_negated = rest[3] == '!';
    conditions.push_back(is_negated ? Complement(texts, kCodePoints, budget) : std::move(texts));
    rest.erase(1, group.end + 1);  // what is behind it begins where it did
  }
  Dfa texts = TextsMatchingPlain(rest, budget);
  for (const Dfa& condition : conditions) texts = Intersection(texts, condition, budget);
  return texts;
}

}  // namespace hillstar
