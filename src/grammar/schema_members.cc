// The members of objects: which there are, in which order, and how many. Part of SchemaWriter.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "formats/json_scan.h"
#include "grammar/schema_writer.h"

namespace hillstar {
namespace {

constexpr size_t kMaxNamed = 1024;
constexpr size_t kMaxPatterns = 4;
constexpr uint64_t kMaxCountedEntries = 20000;
// Entries that follow one another within one rule; more would nest expressions too deep.
constexpr size_t kEntriesPerRule = 64;

bool IsFalse(const SchemaPart& part) { return *part.json == false; }

}  // namespace

std::vector<std::string> SchemaWriter::NamesOf(const Shape& shape) {
  std::vector<std::string> names;
  std::unordered_set<std::string> known;
  for (const SchemaPart& part : shape.parts) {
    const SchemaJson* properties = SchemaDocument::Find(part, "properties");
    if (properties == nullptr) continue;
    for (const auto& [name, unused] : properties->items()) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  for (const std::string& name : shape.required) {
    if (known.insert(name).second) names.push_back(name);
  }
  if (names.size() > kMaxNamed) {
    logic_->document().Fail(
        shape.place(), "properties",
        fmt::format("has {} members; at most {} are supported", names.size(), kMaxNamed));
  }
  return names;
}

SchemaWriter::Members SchemaWriter::MembersOf(const Shape& shape, bool allows_unnamed) {
  Members members;
  const std::vector<std::string> names = NamesOf(shape);
  const std::unordered_set<std::string> required(shape.required.begin(), shape.required.end());
  for (const std::string& name : names) {
    Members::Named member{name, logic_->MemberSchema(shape, name), required.contains(name)};
    const bool is_allowed =
        std::ranges::none_of(member.schema, IsFalse) && logic_->AllowsName(shape, name);
    if (is_allowed) {
      members.named.push_back(std::move(member));
    } else if (member.is_required) {
      members.is_impossible = true;
      return members;
    }
  }
  // Names that may have no value count as taken all the same.
  AddClasses(shape, allows_unnamed, names, &members);
  return members;
}

// Every set of patterns that a name may match makes a class of names with a schema of its own.
void SchemaWriter::AddClasses(const Shape& shape, bool allows_unnamed,
                              const std::vector<std::string>& names, Members* members) {
  std::vector<SchemaPart> patterns;  // their schemas; the name is the pattern
  std::vector<std::string> texts;
  bool says_rest = false;
  for (const SchemaPart& part : shape.parts) {
    says_rest = says_rest || SchemaDocument::Find(part, "additionalProperties") != nullptr;
    const SchemaJson* found = SchemaDocument::Find(part, "patternProperties");
    if (found == nullptr) continue;
    for (const auto& [pattern, unused] : found->items()) {
      if (std::ranges::find(texts, pattern) != texts.end()) continue;
      texts.push_back(pattern);
      patterns.push_back(logic_->document().Child(part, "patternProperties"));
    }
  }
  if (texts.size() > kMaxPatterns) {
    logic_->document().Fail(
        shape.place(), "patternProperties",
        fmt::format("has {} patterns; at most {} are supported", texts.size(), kMaxPatterns));
  }
  const std::optional<Dfa> allowed = AllowedNames(shape);
  for (uint32_t which = 0; which < 1u << texts.size(); ++which) {
    // Where nothing is said of other members, there are some only where none are named at all.
    if (which == 0 && !says_rest && (!names.empty() || !texts.empty() || !allows_unnamed)) continue;
    Members::Class one;
    for (const SchemaPart& part : shape.parts) AddClassSchemas(part, texts, which, &one.schema);
    if (std::ranges::any_of(one.schema, IsFalse)) continue;
    if (!texts.empty() || !names.empty() || !forbidden_.empty() || allowed) {
      one.names = NamesOfClass(patterns, texts, which, names);
      if (allowed) one.names = Intersection(*one.names, *allowed, budget_);
      if (one.names->IsEmpty()) continue;
    }
    members->further.push_back(std::move(one));
  }
}

// What propertyNames leaves, or nothing where it leaves every name.
std::optional<Dfa> SchemaWriter::AllowedNames(const Shape& shape) {
  std::optional<Dfa> allowed;
  for (const SchemaPart& part : shape.parts) {
    if (SchemaDocument::Find(part, "propertyNames") == nullptr) continue;
    Dfa names{std::vector<Dfa::Node>(1)};  // none
    bool are_all = false;
    for (const Conjunction& parts :
         logic_->Alternatives({logic_->document().Child(part, "propertyNames")})) {
      const Shape texts = logic_->ShapeOfParts(parts);
      if ((texts.types & kStringValue) == 0) continue;
      are_all = are_all || (!texts.values && texts.patterns.empty() && texts.formats.empty() &&
                            texts.min_characters == 0 && !texts.max_characters);
      names = Union(names, TextsOfShape(texts), budget_);
    }
    if (are_all) continue;
    allowed = allowed ? Intersection(*allowed, names, budget_) : std::move(names);
  }
  return allowed;
}

Dfa SchemaWriter::TextsOfShape(const Shape& shape) {
  if (!shape.values) return Restricted(AllTexts(), shape);
  std::vector<std::string> texts;
  for (const SchemaJson& value : ValuesOf(shape)) {
    if (value.is_string()) texts.push_back(value.get<std::string>());
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  return TextsAmong(views, budget_);
}

void SchemaWriter::AddClassSchemas(const SchemaPart& part, const std::vector<std::string>& patterns,
                                   uint32_t which, Conjunction* schemas) {
  bool is_named = false;
  const SchemaJson* own = SchemaDocument::Find(part, "patternProperties");
  for (size_t i = 0; i < patterns.size() && own != nullptr; ++i) {
    const auto found = (which >> i & 1) != 0 ? own->find(patterns[i]) : own->end();
    if (found == own->end()) continue;
    is_named = true;
    schemas->push_back(SchemaDocument::Member(logic_->document().Child(part, "patternProperties"),
                                              patterns[i], *found));
  }
  if (!is_named && SchemaDocument::Find(part, "additionalProperties") != nullptr) {
    schemas->push_back(logic_->document().Child(part, "additionalProperties"));
  }
}

Dfa SchemaWriter::NamesOfClass(const std::vector<SchemaPart>& places,
                               const std::vector<std::string>& patterns, uint32_t which,
                               const std::vector<std::string>& taken) {
  Dfa names = WithoutForbidden(AllTexts());
  for (size_t i = 0; i < patterns.size(); ++i) {
    const auto matching = logic_->TextsOfPattern(places[i], patterns[i]);
    const bool matches = (which >> i & 1) != 0;
    names = Intersection(names, matches ? *matching : Complement(*matching, kCodePoints, budget_),
                         budget_);
  }
  if (taken.empty()) return names;
  const std::vector<std::string_view> views(taken.begin(), taken.end());
  const Dfa others = Complement(TextsAmong(views, budget_), kCodePoints, budget_);
  return Intersection(names, others, budget_);
}

// What comes behind the entries that are named, after `count` of them.
ExpressionPtr SchemaWriter::ChainEnd(const EntryChain& chain, uint64_t count) {
  if (chain.max && count > *chain.max) return Never();
  // Entries that nothing names may have the same name, so they count as one for the least number.
  const bool has_further = !IsNever(chain.further) && (!chain.max || count < *chain.max);
  const ExpressionPtr& before = count == 0 ? chain.before_first : chain.before_next;
  ExpressionPtr further = Never();
  if (has_further && count + 1 >= chain.min) {
    std::optional<uint32_t> more;
    if (chain.max) more = uint32_t(std::min<uint64_t>(*chain.max - count - 1, kMaxCountedEntries));
    further = Concatenation({before, chain.further,
                             Repeat(Concatenation({chain.before_next, chain.further}), 0, more),
                             chain.closing});
  }
  if (count < chain.min) return further;
  return IsNever(further) ? chain.closing : Alternative({chain.closing, further});
}

ExpressionPtr SchemaWriter::Chain(const EntryChain& given, const SchemaPart& place) {
  EntryChain chain = given;
  const size_t n = chain.entries.size();
  if (chain.max && IsNever(chain.further) && *chain.max >= n) chain.max.reset();
  if (chain.min > n + (IsNever(chain.further) ? 0 : 1)) {
    if (IsNever(chain.further)) return Never();
    logic_->document().Fail(place, "minProperties",
                            fmt::format("asks for {} members, of which the schema names {}; it "
                                        "cannot be made sure that others have different names",
                                        chain.min, n));
  }
  // Counted as far as it matters: whether there was one, and up to the bounds.
  const uint64_t first = chain.before_first == chain.before_next ? 0 : 1;
  const uint64_t last_count =
      std::min<uint64_t>(n, std::max<uint64_t>({first, chain.min, chain.max ? *chain.max + 1 : 0}));
  if (n * (last_count + 1) > kMaxCountedEntries) {
    logic_->document().Fail(place, fmt::format("{} members and bounds of their number make more "
                                               "than {} cases",
                                               n, kMaxCountedEntries));
  }
  if (!IsNever(chain.further)) {  // used several times
    chain.further = source_->AddAndCall("further member", chain.further, true);
  }
  std::vector<ExpressionPtr> rest;  // by count, of the entries from i on
  for (uint64_t count = 0; count <= last_count; ++count) rest.push_back(ChainEnd(chain, count));
  for (size_t i = n; i-- > 0;) {
    const EntryChain::Entry& entry = chain.entries[i];
    // What is used twice or nests deep becomes a rule.
    if (!entry.is_required || i % kEntriesPerRule == 0) {
      for (ExpressionPtr& tail : rest) {
        if (!IsNever(tail)) tail = source_->AddAndCall("members", tail, true);
      }
    }
    std::vector<ExpressionPtr> with;
    for (uint64_t count = 0; count <= last_count; ++count) {
      const ExpressionPtr& before = count == 0 ? chain.before_first : chain.before_next;
      const ExpressionPtr& tail = rest[std::min(count + 1, last_count)];
      const ExpressionPtr taken =
          IsNever(tail) ? Never() : Concatenation({before, entry.text, tail});
      with.push_back(entry.is_required ? taken : Alternative({taken, rest[count]}));
    }
    rest = std::move(with);
  }
  return rest[0];
}

}  // namespace hillstar
