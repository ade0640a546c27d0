#include "grammar/expression.h"

#include <algorithm>

#include "core/check.h"

namespace hillstar {
namespace {

constexpr SymbolRange kNonAscii[] = {{0x80, 0xD7FF}, {0xE000, 0x10FFFF}};

ExpressionPtr Make(Expression expression) {
  return std::make_shared<const Expression>(std::move(expression));
}

uint32_t LeadByte(int num_bytes, uint32_t code) {
  switch (num_bytes) {
    case 1: return code;
    case 2: return 0xC0 | code >> 6;
    case 3: return 0xE0 | code >> 12;
    default: return 0xF0 | code >> 18;
  }
}

// Bytes `num_bytes` - 1 continue. REQUIRES: all codes of the range have that many bytes.
void AddSequences(SymbolRange codes, int num_bytes, std::vector<SymbolRange> head,
                  std::vector<std::vector<SymbolRange>>* out) {
  if (num_bytes == 0) {
    out->push_back(std::move(head));
    return;
  }
  // Cut where the first byte changes, unless all that follows is free.
  const uint32_t shift = 6 * uint32_t(num_bytes - 1);
  const bool is_lead = head.empty();
  const auto byte_of = [&](uint32_t code) {
    return is_lead ? LeadByte(num_bytes, code) : 0x80 | ((code >> shift) & 0x3F);
  };
  const uint32_t low = (1u << shift) - 1;
  for (uint32_t first = codes.first;;) {
    uint32_t last = std::min(codes.last, first | low);
    if ((first & low) == 0) {  // whole first bytes together
      const uint32_t end = (codes.last + 1) & ~low;
      if (end > first) last = std::max(last, end - 1);
    }
    std::vector<SymbolRange> longer = head;
    longer.push_back({byte_of(first), byte_of(last)});
    if (last - first > low) {
      AddSequences({0, low}, num_bytes - 1, longer, out);
    } else {
      AddSequences({first & low, last & low}, num_bytes - 1, longer, out);
    }
    if (last == codes.last) return;
    first = last + 1;
  }
}

void AddUtf8(Nfa* nfa, uint32_t from, uint32_t to, SymbolRange codes) {
  for (const auto& sequence : Utf8Sequences(codes)) {
    uint32_t at = from;
    for (size_t i = 0; i < sequence.size(); ++i) {
      const uint32_t next = i + 1 == sequence.size() ? to : nfa->AddNode();
      nfa->AddEdge(at, sequence[i], next);
      at = next;
    }
  }
}

void AddText(Nfa* nfa, uint32_t from, uint32_t to, std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto symbol = uint32_t(static_cast<unsigned char>(text[i]));
    const uint32_t next = i + 1 == text.size() ? to : nfa->AddNode();
    nfa->AddEdge(from, {symbol, symbol}, next);
    from = next;
  }
}

// The escapes of characters that may not stand in a JSON string.
void AddEscapes(Nfa* nfa, uint32_t from, uint32_t to, std::span<const SymbolRange> codes) {
  constexpr std::string_view kShort[][2] = {{"\"", "\\\""}, {"\\", "\\\\"}, {"\b", "\\b"},
                                            {"\f", "\\f"},  {"\n", "\\n"},  {"\r", "\\r"},
                                            {"\t", "\\t"}};
  for (const auto& [character, escape] : kShort) {
    const auto code = uint32_t(static_cast<unsigned char>(character[0]));
    if (Contains(codes, {code, code})) AddText(nfa, from, to, escape);
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (uint32_t code = 0; code < 0x20; ++code) {
    if (!Contains(codes, {code, code})) continue;
    const std::string escape = {'\\', 'u', '0', '0', kDigits[code >> 4], kDigits[code & 15]};
    AddText(nfa, from, to, escape);
  }
}

}  // namespace

ExpressionPtr Symbols(std::vector<SymbolRange> symbols) {
  return Make({.kind = Expression::Kind::kSymbols, .symbols = std::move(symbols)});
}

ExpressionPtr Bytes(std::string_view text) {
  std::vector<ExpressionPtr> parts;
  for (const char c : text) {
    const auto byte = uint32_t(static_cast<unsigned char>(c));
    parts.push_back(Symbols({{byte, byte}}));
  }
  return Concatenation(std::move(parts));
}

ExpressionPtr Token(int32_t id) {
  CHECK(id >= 0 && uint32_t(id) <= kMaxTokenId);
  const uint32_t symbol = kTokenSymbols + uint32_t(id);
  return Symbols({{symbol, symbol}});
}

ExpressionPtr TokensExcept(int32_t id) {
  CHECK(id >= 0 && uint32_t(id) <= kMaxTokenId);
  constexpr SymbolRange kAll[] = {{kTokenSymbols, kTokenSymbols + kMaxTokenId}};
  const uint32_t symbol = kTokenSymbols + uint32_t(id);
  const SymbolRange excluded[] = {{symbol, symbol}};
  return Symbols(Without(kAll, excluded));
}

ExpressionPtr Concatenation(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return parts[0];
  return Make({.kind = Expression::Kind::kSequence, .parts = std::move(parts)});
}

ExpressionPtr Alternative(std::vector<ExpressionPtr> parts) {
  if (parts.size() == 1) return parts[0];
  return Make({.kind = Expression::Kind::kAlternative, .parts = std::move(parts)});
}

ExpressionPtr Repeat(ExpressionPtr part, uint32_t min, std::optional<uint32_t> max) {
  return Make(
      {.kind = Expression::Kind::kRepeat, .parts = {std::move(part)}, .min = min, .max = max});
}

ExpressionPtr Optional(ExpressionPtr part) { return Repeat(std::move(part), 0, 1); }

ExpressionPtr AutomatonOf(Dfa automaton) {
  return Make({.kind = Expression::Kind::kAutomaton,
               .automaton = std::make_shared<const Dfa>(std::move(automaton))});
}

ExpressionPtr Nothing() { return Concatenation({}); }
ExpressionPtr Never() { return Alternative({}); }

bool IsNever(const ExpressionPtr& expression) {
  return expression->kind == Expression::Kind::kAlternative && expression->parts.empty();
}

std::vector<std::vector<SymbolRange>> Utf8Sequences(SymbolRange code_points) {
  constexpr SymbolRange kBySize[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, 0x10FFFF}};
  std::vector<std::vector<SymbolRange>> sequences;
  for (int i = 0; i < 4; ++i) {
    const SymbolRange part = {std::max(code_points.first, kBySize[i].first),
                              std::min(code_points.last, kBySize[i].last)};
    if (part.first <= part.last) AddSequences(part, i + 1, {}, &sequences);
  }
  return sequences;
}

GrammarSource::GrammarSource() {
  AddRule("a character outside of ASCII", true);
  std::vector<ExpressionPtr> ways;
  for (const SymbolRange range : kNonAscii) {
    for (const auto& sequence : Utf8Sequences(range)) {
      std::vector<ExpressionPtr> bytes;
      for (const SymbolRange byte : sequence) bytes.push_back(Symbols({byte}));
      ways.push_back(Concatenation(std::move(bytes)));
    }
  }
  SetExpression(kNonAsciiRule, Alternative(std::move(ways)));
}

uint32_t GrammarSource::AddRule(std::string name, bool stays_apart) {
  rules_.push_back({std::move(name), Never(), stays_apart});
  return uint32_t(rules_.size() - 1);
}

ExpressionPtr GrammarSource::Call(uint32_t rule) const {
  return Symbols({{kRuleSymbols + rule, kRuleSymbols + rule}});
}

ExpressionPtr GrammarSource::AddAndCall(std::string name, ExpressionPtr expression,
                                        bool stays_apart) {
  const uint32_t rule = AddRule(std::move(name), stays_apart);
  SetExpression(rule, std::move(expression));
  return Call(rule);
}

ExpressionPtr GrammarSource::Character(std::span<const SymbolRange> characters) const {
  std::vector<ExpressionPtr> ways;
  std::vector<SymbolRange> ascii;
  const bool has_all = Contains(characters, kNonAscii[0]) && Contains(characters, kNonAscii[1]);
  for (const SymbolRange range : characters) {
    if (range.first < 0x80) ascii.push_back({range.first, std::min(range.last, 0x7Fu)});
    if (has_all) continue;
    for (const SymbolRange known : kNonAscii) {
      const SymbolRange part = {std::max(range.first, known.first),
                                std::min(range.last, known.last)};
      if (part.first > part.last) continue;
      for (const auto& sequence : Utf8Sequences(part)) {
        std::vector<ExpressionPtr> bytes;
        for (const SymbolRange byte : sequence) bytes.push_back(Symbols({byte}));
        ways.push_back(Concatenation(std::move(bytes)));
      }
    }
  }
  if (!ascii.empty()) ways.push_back(Symbols(std::move(ascii)));
  if (has_all) ways.push_back(CallNonAscii());
  return Alternative(std::move(ways));
}

ExpressionPtr Written(const Dfa& texts, TextForm form, WorkBudget* budget) {
  if (texts.IsEmpty()) return Never();
  Nfa nfa(budget);
  std::vector<uint32_t> nodes;
  for (size_t i = 0; i < texts.nodes.size(); ++i) nodes.push_back(nfa.AddNode());
  nfa.AddEmptyEdge(Nfa::kStart, nodes[0]);
  // JSON's strings may hold anything from the blank on but the quote and the backslash.
  constexpr SymbolRange kPlain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7F}};
  constexpr SymbolRange kAscii[] = {{0, 0x7F}};
  const std::span<const SymbolRange> plain =
      form == TextForm::kJson ? std::span<const SymbolRange>(kPlain) : kAscii;
  for (size_t i = 0; i < texts.nodes.size(); ++i) {
    const Dfa::Node& node = texts.nodes[i];
    if (node.accepts) nfa.AddEmptyEdge(nodes[i], Nfa::kEnd);
    // Edges to one node together, so that "any character" is known again.
    std::vector<std::pair<uint32_t, std::vector<SymbolRange>>> by_target;
    for (const Dfa::Edge& edge : node.edges) {
      auto found = std::ranges::find(by_target, edge.to, [](const auto& x) { return x.first; });
      if (found == by_target.end()) found = by_target.insert(by_target.end(), {edge.to, {}});
      found->second.push_back(edge.symbols);
    }
    for (const auto& [target, ranges] : by_target) {
      const uint32_t to = nodes[target];
      const std::vector<SymbolRange> codes = Joined(ranges);
      const bool has_all = Contains(codes, kNonAscii[0]) && Contains(codes, kNonAscii[1]);
      constexpr uint32_t kCall = kRuleSymbols + GrammarSource::kNonAsciiRule;
      if (has_all) nfa.AddEdge(nodes[i], {kCall, kCall}, to);
      for (const SymbolRange range : codes) {
        for (const SymbolRange ascii : plain) {
          const SymbolRange part = {std::max(range.first, ascii.first),
                                    std::min(range.last, ascii.last)};
          if (part.first <= part.last) nfa.AddEdge(nodes[i], part, to);
        }
        const SymbolRange rest = {std::max(range.first, 0x80u), range.last};
        if (!has_all && rest.first <= rest.last) AddUtf8(&nfa, nodes[i], to, rest);
      }
      if (form == TextForm::kJson) AddEscapes(&nfa, nodes[i], to, codes);
    }
  }
  return AutomatonOf(Determinise(nfa, budget));
}

}  // namespace hillstar
