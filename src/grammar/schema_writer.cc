#include "grammar/schema_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/json_scan.h"
#include "grammar/number_text.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// Lists and texts are never longer than this, whatever a schema allows.
constexpr uint64_t kMaxItems = 4096;
constexpr uint64_t kMaxPrefixItems = 256;
// Indentation of a new line.
constexpr uint32_t kMaxBlanks = 32, kMaxTabs = 8;

ExpressionPtr BlanksText() {
  const ExpressionPtr indentation =
      Alternative({Repeat(Bytes(" "), 0, kMaxBlanks), Repeat(Bytes("\t"), 1, kMaxTabs)});
  return Optional(Alternative({Bytes(" "), Concatenation({Bytes("\n"), indentation})}));
}

// What follows the backslash of an escape. Surrogates come in pairs.
ExpressionPtr EscapeText() {
  const ExpressionPtr hex = Symbols({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const ExpressionPtr no_d = Symbols({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
  const ExpressionPtr d = Symbols({{'D', 'D'}, {'d', 'd'}});
  const ExpressionPtr high = Symbols({{'8', '9'}, {'A', 'B'}, {'a', 'b'}});
  const ExpressionPtr low = Symbols({{'C', 'F'}, {'c', 'f'}});
  const ExpressionPtr code = Alternative(
      {Concatenation({no_d, hex, hex, hex}), Concatenation({d, Symbols({{'0', '7'}}), hex, hex}),
       Concatenation({d, high, hex, hex, Bytes("\\u"), d, low, hex, hex})});
  std::vector<SymbolRange> marks;
  for (const char c : std::string_view("\"\\/bfnrt")) marks.push_back({uint32_t(c), uint32_t(c)});
  return Alternative({Symbols(Joined(std::move(marks))), Concatenation({Bytes("u"), code})});
}

bool HasFalse(const Conjunction& schemas) {
  return std::ranges::any_of(schemas, [](const SchemaPart& part) { return *part.json == false; });
}

}  // namespace

SchemaWriter::SchemaWriter(SchemaLogic* logic, TextLanguages* languages, GrammarSource* source,
                           WorkBudget* budget, std::string forbidden)
    : logic_(logic),
      languages_(languages),
      source_(source),
      budget_(budget),
      forbidden_(std::move(forbidden)),
      blanks_(source->AddAndCall("blanks", BlanksText(), true)),
      colon_(Concatenation({Bytes(":"), Optional(Bytes(" "))})) {}

// A rule that schemas share, made where one needs it first.
ExpressionPtr SchemaWriter::Named(const char* name, const std::function<ExpressionPtr()>& make) {
  ExpressionPtr& known = named_[name];
  if (known == nullptr) {
    const uint32_t rule = source_->AddRule(name, true);
    known = source_->Call(rule);  // before it is made: it may hold itself
    source_->SetExpression(rule, make());
  }
  return named_[name];
}

ExpressionPtr SchemaWriter::Value(const Conjunction& schemas) {
  std::vector<const SchemaJson*> key;
  for (const SchemaPart& schema : schemas) {
    if (*schema.json != true) key.push_back(schema.json);
  }
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  if (key.empty()) return AnyValue();
  const auto [found, is_new] = rules_.try_emplace(key, 0);
  if (is_new) {
    found->second = source_->AddRule("#" + schemas.front().pointer);
    unfinished_.emplace_back(found->second, schemas);
  }
  return source_->Call(found->second);
}

void SchemaWriter::Finish() {
  while (!unfinished_.empty()) {
    const auto [rule, schemas] = std::move(unfinished_.back());
    unfinished_.pop_back();
    std::vector<ExpressionPtr> ways;
    for (const Conjunction& parts : logic_->Alternatives(schemas)) {
      if (parts.empty()) {
        ways.push_back(AnyValue());
        continue;
      }
      const Shape shape = logic_->ShapeOfParts(parts);
      ways.push_back(ShapeText(shape, shape.written_types()));
    }
    source_->SetExpression(rule, Alternative(std::move(ways)));
  }
}

ExpressionPtr SchemaWriter::ShapeText(const Shape& shape, ValueTypes types) {
  std::vector<ExpressionPtr> ways;
  if (shape.values) {
    for (const SchemaJson& value : ValuesOf(shape)) {
      if ((TypeOf(value) & types) != 0) ways.push_back(Literal(value));
    }
    return Alternative(std::move(ways));
  }
  // A schema without any keyword that restricts values.
  if (types == kAnyValue && shape.hinted_types == 0) return AnyValue();
  if ((types & kNullValue) != 0) ways.push_back(Bytes("null"));
  if ((types & kBooleanValue) != 0) {
    ways.push_back(Bytes("true"));
    ways.push_back(Bytes("false"));
  }
  if ((types & (kIntegerValue | kFractionValue)) != 0) ways.push_back(Number(shape, types));
  if ((types & kStringValue) != 0) ways.push_back(StringText(shape));
  if ((types & kArrayValue) != 0) ways.push_back(ArrayText(shape));
  if ((types & kObjectValue) != 0) ways.push_back(ObjectText(shape));
  return Alternative(std::move(ways));
}

// Those of enum and const that satisfy all else.
std::vector<SchemaJson> SchemaWriter::ValuesOf(const Shape& shape) {
  Shape others = shape;
  others.values.reset();
  std::vector<SchemaJson> values = *shape.values;
  std::erase_if(values, [&](const SchemaJson& value) { return !logic_->Satisfies(value, others); });
  return values;
}

ExpressionPtr SchemaWriter::Literal(const SchemaJson& value) {
  budget_->Spend(1);
  if (!value.is_structured()) {
    const std::string text = value.dump();
    if (!forbidden_.empty() && text.find(forbidden_) != std::string::npos) return Never();
    return Bytes(text);
  }
  const bool is_object = value.is_object();
  std::vector<ExpressionPtr> parts = {Bytes(is_object ? "{" : "["), blanks_};
  bool is_first = true;
  for (const auto& [name, member] : value.items()) {
    if (!is_first) {
      parts.push_back(Bytes(","));
      parts.push_back(blanks_);
    }
    is_first = false;
    if (is_object) {
      parts.push_back(Literal(SchemaJson(name)));
      parts.push_back(colon_);
    }
    parts.push_back(Literal(member));
  }
  if (!value.empty()) parts.push_back(blanks_);
  parts.push_back(Bytes(is_object ? "}" : "]"));
  return Concatenation(std::move(parts));
}

ExpressionPtr SchemaWriter::Number(const Shape& shape, ValueTypes types) {
  NumberBounds bounds = shape.numbers;
  if (shape.is_int32) {
    Tighten({*Decimal::Of("-2147483648"), false}, 1, &bounds.min);
    Tighten({*Decimal::Of("2147483647"), false}, -1, &bounds.max);
  }
  const bool is_whole =
      shape.is_multiple || shape.is_int32 || shape.is_int64 || (types & kFractionValue) == 0;
  const bool is_free = !bounds.min && !bounds.max && shape.multiple == 1;
  const auto make = [&] {
    return is_whole ? IntegerText(bounds, shape.multiple, budget_) : NumberText(bounds);
  };
  if (is_free) return Named(is_whole ? "integer" : "number", make);
  try {
    // By itself an automaton is taken as it is, which matters where it is large.
    return shape.multiple > 1 ? source_->AddAndCall("multiple", make(), true) : make();
  } catch (const Error& error) {
    logic_->document().Fail(shape.place(), WithoutStop(error));
  }
}

uint32_t SchemaWriter::CheckedMin(const Shape& shape, uint64_t min, uint64_t limit,
                                  const char* keyword) {
  if (min > limit) {
    logic_->document().Fail(shape.place(), keyword,
                            fmt::format("asks for {}; at most {} are written here", min, limit));
  }
  return uint32_t(min);
}

ExpressionPtr SchemaWriter::AnyString(uint32_t min, std::optional<uint32_t> max) {
  const std::string name = fmt::format("string of {} to {}", min, max ? int64_t{*max} : -1);
  return Named(name.c_str(), [&]() -> ExpressionPtr {
    if (!forbidden_.empty()) {
      const Dfa texts =
          Intersection(WithoutForbidden(AllTexts()), TextsOfLength(min, max, budget_), budget_);
      return Concatenation({Bytes("\""), Written(texts, TextForm::kJson, budget_), Bytes("\"")});
    }
    const ExpressionPtr escape = Named("escape", [] {
      return Concatenation({Bytes("\\"), EscapeText()});
    });
    const ExpressionPtr character = Alternative(
        {Symbols({{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x7F}}), source_->CallNonAscii(), escape});
    return Concatenation({Bytes("\""), Repeat(character, min, max), Bytes("\"")});
  });
}

Dfa SchemaWriter::WithoutForbidden(Dfa texts) {
  if (forbidden_.empty()) return texts;
  return Intersection(texts, TextsWithout(forbidden_, budget_), budget_);
}

Dfa SchemaWriter::Restricted(Dfa texts, const Shape& shape) {
  for (const SchemaPart& pattern : shape.patterns) {
    const auto matching = logic_->TextsOfPattern(pattern, pattern.json->get<std::string>());
    texts = Intersection(texts, *matching, budget_);
  }
  for (const SchemaPart& format : shape.formats) {
    const auto matching = languages_->OfFormat(format.json->get_ref<const std::string&>());
    texts = Intersection(texts, *matching, budget_);
  }
  if (shape.min_characters == 0 && !shape.max_characters) return texts;
  // Counting multiplies the automaton; a large one has to do with shorter texts.
  const uint64_t limit =
      std::clamp<uint64_t>(100'000 / texts.nodes.size(), 64, kMaxBoundedCharacters);
  const uint32_t min = CheckedMin(shape, shape.min_characters, limit, "minLength");
  std::optional<uint32_t> max;
  if (shape.max_characters) max = uint32_t(std::min(*shape.max_characters, limit));
  if (max && *max < min) return Dfa{std::vector<Dfa::Node>(1)};
  return Intersection(texts, TextsOfLength(min, max, budget_), budget_);
}

ExpressionPtr SchemaWriter::StringText(const Shape& shape) {
  if (!shape.patterns.empty() || !shape.formats.empty()) {
    // One rule for all strings of the same kind.
    std::string name = fmt::format("text of {} to {}", shape.min_characters,
                                   shape.max_characters ? int64_t(*shape.max_characters) : -1);
    for (const SchemaPart& part : shape.patterns) name += " pattern " + part.json->dump();
    for (const SchemaPart& part : shape.formats) name += " format " + part.json->dump();
    return Named(name.c_str(), [&] {
      const Dfa texts = Restricted(WithoutForbidden(AllTexts()), shape);
      return Concatenation({Bytes("\""), Written(texts, TextForm::kJson, budget_), Bytes("\"")});
    });
  }
  const uint64_t limit = forbidden_.empty() ? kMaxBoundedCharacters : kMaxBoundedCharacters / 16;
  const uint32_t min = CheckedMin(shape, shape.min_characters, limit, "minLength");
  std::optional<uint32_t> max;
  if (shape.max_characters) max = uint32_t(std::min(*shape.max_characters, limit));
  if (max && *max < min) return Never();
  return AnyString(min, max);
}

// Texts that a reader takes for what they are, where a value may be of other types too.
const Dfa& SchemaWriter::RawTexts(ValueTypes other_types) {
  const auto [found, is_new] = raw_texts_.try_emplace(other_types);
  if (!is_new) return found->second;
  constexpr SymbolRange kRawCharacters[] = {
      {'\t', '\n'}, {'\r', '\r'}, {0x20, 0xD7FF}, {0xE000, 0x10FFFF}};
  Dfa texts = WithoutForbidden(TextsOf(kRawCharacters));
  const auto exclude = [&](ValueTypes types, const char* pattern) {
    if ((other_types & types) == 0) return;
    const auto excluded = languages_->OfPattern(pattern);
    texts = Intersection(texts, Complement(*excluded, kCodePoints, budget_), budget_);
  };
  exclude(kNullValue, "^[ \\t\\r\\n]*null[ \\t\\r\\n]*$");
  exclude(kBooleanValue, "^[ \\t\\r\\n]*(?:true|false)[ \\t\\r\\n]*$");
  exclude(kIntegerValue | kFractionValue,
          "^[ \\t\\r\\n]*-?[0-9]+(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[ \\t\\r\\n]*$");
  exclude(kArrayValue, "^[ \\t\\r\\n]*\\[");
  exclude(kObjectValue, "^[ \\t\\r\\n]*\\{");
  found->second = std::move(texts);
  return found->second;
}

ExpressionPtr SchemaWriter::Argument(const Conjunction& schemas, ValueTypes other_types) {
  const Dfa& allowed = RawTexts(other_types);
  std::vector<ExpressionPtr> ways;
  for (const Conjunction& parts : logic_->Alternatives(schemas)) {
    const Shape shape = logic_->ShapeOfParts(parts);
    const ValueTypes types = shape.written_types();
    if (!shape.values) {
      ways.push_back(ShapeText(shape, types & ~kStringValue));
      if ((types & kStringValue) == 0) continue;
      ways.push_back(Written(Restricted(allowed, shape), TextForm::kRaw, budget_));
      continue;
    }
    for (const SchemaJson& value : ValuesOf(shape)) {
      if (!value.is_string()) {
        ways.push_back(Literal(value));
      } else if (Accepts(allowed, value.get_ref<const std::string&>())) {
        ways.push_back(Bytes(value.get_ref<const std::string&>()));
      }
    }
  }
  return Alternative(std::move(ways));
}

ExpressionPtr SchemaWriter::ArrayText(const Shape& shape) {
  const uint64_t num_prefix = NumPrefixItems(shape);
  if (num_prefix > kMaxPrefixItems) {
    logic_->document().Fail(
        shape.place(), "prefixItems",
        fmt::format("has {} schemas; at most {} are supported", num_prefix, kMaxPrefixItems));
  }
  const uint32_t min = CheckedMin(shape, shape.min_items, kMaxItems, "minItems");
  std::optional<uint64_t> max = shape.max_items;
  // Nothing is said of entries behind the described ones: there are no more than there have to be.
  if (num_prefix > 0 && !HasItems(shape)) {
    const uint64_t most = std::max<uint64_t>(num_prefix, min);
    max = std::min(max.value_or(most), most);
  }
  const Conjunction rest_schema = ItemSchema(logic_->document(), shape, num_prefix);
  if (HasFalse(rest_schema)) max = std::min(max.value_or(num_prefix), num_prefix);
  if (max && *max < min) return Never();
  if (max) max = std::min(*max, kMaxItems);
  const ExpressionPtr separator = Concatenation({Bytes(","), blanks_});
  // From the last described entry to the first, each with all that may follow it.
  ExpressionPtr tail = Nothing();
  if (!max || *max > num_prefix) {
    const ExpressionPtr item = Value(rest_schema);
    const uint64_t done = std::max<uint64_t>(num_prefix, 1);
    const auto left = [&](uint64_t count) { return uint32_t(count > done ? count - done : 0); };
    tail = Repeat(Concatenation({separator, item}), left(min),
                  max ? std::optional<uint32_t>(left(*max)) : std::nullopt);
    if (num_prefix == 0) {
      tail = Concatenation({blanks_, item, tail});
      if (min == 0) tail = Optional(tail);
    }
  }
  for (uint64_t i = num_prefix; i-- > 0;) {
    if (max && i >= *max) continue;
    const Conjunction schema = ItemSchema(logic_->document(), shape, i);
    tail = Concatenation({i == 0 ? blanks_ : separator, Value(schema), tail});
    if (i >= min) tail = Optional(tail);
  }
  return Concatenation({Bytes("["), tail, blanks_, Bytes("]")});
}

ExpressionPtr SchemaWriter::ObjectText(const Shape& shape) {
  const Members members = MembersOf(shape, true);
  if (members.is_impossible) return Never();
  EntryChain chain;
  for (const Members::Named& member : members.named) {
    const ExpressionPtr name = Literal(SchemaJson(member.name));
    chain.entries.push_back(
        {Concatenation({name, colon_, Value(member.schema)}), member.is_required});
  }
  chain.further = FurtherMembers(members);
  chain.before_first = blanks_;
  chain.before_next = Concatenation({Bytes(","), blanks_});
  chain.closing = Concatenation({blanks_, Bytes("}")});
  chain.min = shape.min_members;
  chain.max = shape.max_members;
  return Concatenation({Bytes("{"), Chain(chain, shape.place())});
}

ExpressionPtr SchemaWriter::FurtherMembers(const Members& members) {
  std::vector<ExpressionPtr> ways;
  for (const Members::Class& one : members.further) {
    const ExpressionPtr name =
        one.names ? Concatenation(
                        {Bytes("\""), Written(*one.names, TextForm::kJson, budget_), Bytes("\"")})
                  : AnyString(0, {});
    ways.push_back(Concatenation({name, colon_, Value(one.schema)}));
  }
  return Alternative(std::move(ways));
}

ExpressionPtr SchemaWriter::AnyObject() {
  return Named("object", [&] {
    EntryChain chain;
    chain.further = Concatenation({AnyString(0, {}), colon_, AnyValue()});
    chain.before_first = blanks_;
    chain.before_next = Concatenation({Bytes(","), blanks_});
    chain.closing = Concatenation({blanks_, Bytes("}")});
    return Concatenation({Bytes("{"), Chain(chain, {})});
  });
}

ExpressionPtr SchemaWriter::AnyValue() {
  return Named("value", [&] {
    const ExpressionPtr item = AnyValue();  // known by now
    const ExpressionPtr items =
        Concatenation({blanks_, item, Repeat(Concatenation({Bytes(","), blanks_, item}), 0, {})});
    const ExpressionPtr array = Concatenation({Bytes("["), Optional(items), blanks_, Bytes("]")});
    return Alternative({Bytes("null"), Bytes("true"), Bytes("false"), AnyString(0, {}),
                        Named("number", [] { return NumberText({}); }), array, AnyObject()});
  });
}

}  // namespace hillstar
