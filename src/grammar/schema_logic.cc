#include "grammar/schema_logic.h"

#include <fmt/format.h>

#include <algorithm>

#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr size_t kMaxAlternatives = 1024;
constexpr size_t kMaxOneOf = 64;
constexpr int kMaxDisjointDepth = 4;
constexpr size_t kMaxChain = 128;

size_t NumCharacters(std::string_view text) {
  return size_t(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::vector<Conjunction> SchemaLogic::Alternatives(const Conjunction& schemas) {
  Search search;
  for (const SchemaPart& schema : schemas) search.pending.push_back({schema, {}});
  std::vector<Conjunction> alternatives;
  Follow(std::move(search), &alternatives);
  return alternatives;
}

void SchemaLogic::Follow(Search search, std::vector<Conjunction>* alternatives) {
  while (!search.pending.empty()) {
    if (!FollowOne(&search)) return;
  }
  if (search.groups.empty()) {
    if (alternatives->size() == kMaxAlternatives) {
      document_->Fail(search.done.front(),
                      fmt::format("anyOf, oneOf and allOf make more than {} alternatives together",
                                  kMaxAlternatives));
    }
    alternatives->push_back(std::move(search.done));
    return;
  }
  const Branches group = search.groups.front();
  search.groups.erase(search.groups.begin());
  if (group.is_one_of && checks_one_of_) {
    RefuseOverlaps(group, search.done, search.groups.empty());
  }
  for (const Pending& branch : group.branches) {
    Search rest = search;
    rest.pending.push_back(branch);
    Follow(std::move(rest), alternatives);
  }
}

bool SchemaLogic::FollowOne(Search* search) {
  const Pending pending = std::move(search->pending.front());
  search->pending.erase(search->pending.begin());
  const SchemaPart& part = pending.part;
  budget_->Spend(10 + int64_t(search->done.size() + pending.path.size()));
  document_->Check(part);
  if (part.json->is_boolean()) return part.json->get<bool>();
  if (pending.path.size() >= kMaxChain) {
    document_->Fail(part, fmt::format("more than {} schemas lead to each other by $ref, allOf, "
                                      "anyOf and oneOf",
                                      kMaxChain));
  }
  if (std::ranges::find(pending.path, part.json) != pending.path.end()) {
    document_->Fail(part, "the schema refers to itself without anything in between");
  }
  const auto is_part = [&](const SchemaPart& known) { return known.json == part.json; };
  if (std::ranges::any_of(search->done, is_part)) return true;  // said before
  search->done.push_back(part);
  std::vector<const SchemaJson*> path = pending.path;
  path.push_back(part.json);
  std::vector<Pending> next;
  if (SchemaDocument::Find(part, "$ref") != nullptr) {
    next.push_back({document_->Referred(part), path});
  }
  if (SchemaDocument::Find(part, "allOf") != nullptr) {
    for (SchemaPart& all : document_->List(part, "allOf")) next.push_back({std::move(all), path});
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (SchemaDocument::Find(part, keyword) == nullptr) continue;
    Branches group{{}, part, std::string_view(keyword) == "oneOf"};
    for (SchemaPart& any : document_->List(part, keyword)) {
      group.branches.push_back({std::move(any), path});
    }
    search->groups.push_back(std::move(group));
  }
  search->pending.insert(search->pending.begin(), next.begin(), next.end());
  return true;
}

void SchemaLogic::RefuseOverlaps(const Branches& group, const Conjunction& others, bool are_all) {
  const size_t n = group.branches.size();
  if (n > kMaxOneOf) {
    document_->Fail(group.schema, "oneOf",
                    fmt::format("has {} schemas; at most {} can be compared", n, kMaxOneOf));
  }
  checks_one_of_ = false;
  const Comparison how = {others, are_all, 0};
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      // What stands beside the oneOf may be what tells them apart.
      if (AreDisjoint({group.branches[i].part}, {group.branches[j].part}, how)) continue;
      checks_one_of_ = true;
      document_->Fail(
          group.schema, "oneOf",
          fmt::format("has schemas {} and {}, and it cannot be made sure that a value satisfies "
                      "only one of them; they may differ in type, in disjoint const or enum "
                      "values, or in those of a member that is required. anyOf has no such rule",
                      i, j));
    }
  }
  checks_one_of_ = true;
}

Conjunction SchemaLogic::MemberSchema(const Shape& shape, const std::string& name,
                                      bool* is_declared) {
  Conjunction schemas;
  for (const SchemaPart& part : shape.parts) {
    bool is_named = false;
    if (const SchemaJson* properties = SchemaDocument::Find(part, "properties")) {
      budget_->Spend(1 + int64_t(properties->size()) / 16);
      const auto found = properties->find(name);
      if (found != properties->end()) {
        is_named = true;
        schemas.push_back(
            SchemaDocument::Member(document_->Child(part, "properties"), name, *found));
      }
    }
    if (const SchemaJson* patterns = SchemaDocument::Find(part, "patternProperties")) {
      for (const auto& [pattern, schema] : patterns->items()) {
        const SchemaPart place = document_->Child(part, "patternProperties");
        if (!Accepts(*TextsOfPattern(place, pattern), name)) continue;
        is_named = true;
        schemas.push_back(SchemaDocument::Member(place, pattern, schema));
      }
    }
    if (is_named && is_declared != nullptr) *is_declared = true;
    if (!is_named && SchemaDocument::Find(part, "additionalProperties") != nullptr) {
      schemas.push_back(document_->Child(part, "additionalProperties"));
    }
  }
  return schemas;
}

bool SchemaLogic::AllowsName(const Shape& shape, const std::string& name, bool tolerates_formats) {
  return std::ranges::all_of(shape.parts, [&](const SchemaPart& part) {
    return SchemaDocument::Find(part, "propertyNames") == nullptr ||
           SatisfiesAll(SchemaJson(name), {document_->Child(part, "propertyNames")},
                        tolerates_formats);
  });
}

std::shared_ptr<const Dfa> SchemaLogic::TextsOfPattern(const SchemaPart& place,
                                                       const std::string& pattern) {
  try {
    return languages_->OfPattern(pattern);
  } catch (const Error& error) {
    document_->Fail(place, WithoutStop(error));
  }
}

bool SchemaLogic::SatisfiesAll(const SchemaJson& value, const Conjunction& schemas,
                               bool tolerates_formats) {
  for (const Conjunction& parts : Alternatives(schemas)) {
    if (SatisfiesShape(value, ShapeOfParts(parts), tolerates_formats)) return true;
  }
  return false;
}

bool SchemaLogic::SatisfiesText(const std::string& text, const Shape& shape,
                                bool tolerates_formats) {
  const size_t length = NumCharacters(text);
  if (length < shape.min_characters || length > shape.max_characters.value_or(length)) return false;
  for (const SchemaPart& pattern : shape.patterns) {
    if (!Accepts(*TextsOfPattern(pattern, pattern.json->get<std::string>()), text)) return false;
  }
  if (tolerates_formats) return true;
  return std::ranges::all_of(shape.formats, [&](const SchemaPart& format) {
    return Accepts(*languages_->OfFormat(format.json->get_ref<const std::string&>()), text);
  });
}

bool SchemaLogic::SatisfiesNumber(const SchemaJson& value, const Shape& shape,
                                  bool tolerates_formats) {
  const std::optional<Decimal> number = Decimal::Of(value.dump());
  if (!number) return false;
  const auto fits = [&](const std::optional<NumberBound>& bound, int towards) {
    if (!bound) return true;
    const int order = towards * Compare(*number, bound->value);
    return order > 0 || (order == 0 && !bound->is_excluded);
  };
  if (!fits(shape.numbers.min, 1) || !fits(shape.numbers.max, -1)) return false;
  if (!tolerates_formats && (shape.is_int32 || shape.is_int64)) {
    const Decimal largest = *Decimal::Of("2147483647");
    const bool is_small = Compare(number->Magnitude(), largest) <= 0;
    if (!number->fraction.empty() || (shape.is_int32 && !is_small)) return false;
  }
  if (!shape.is_multiple) return true;
  // The remainder, digit by digit.
  if (!number->fraction.empty()) return false;
  int64_t remainder = 0;
  for (const char digit : number->whole) {
    remainder = (10 * remainder + (digit - '0')) % shape.multiple;
  }
  return remainder == 0;
}

bool SchemaLogic::SatisfiesShape(const SchemaJson& value, const Shape& shape,
                                 bool tolerates_formats) {
  budget_->Spend(5);
  if ((TypeOf(value) & shape.types) == 0) return false;
  if (shape.values && std::ranges::none_of(*shape.values, [&](const SchemaJson& known) {
        budget_->Spend(1);
        return IsSameValue(known, value);
      })) {
    return false;
  }
  if (value.is_number()) return SatisfiesNumber(value, shape, tolerates_formats);
  if (value.is_string()) {
    return SatisfiesText(value.get_ref<const std::string&>(), shape, tolerates_formats);
  }
  if (value.is_array()) {
    const size_t n = value.size();
    if (n < shape.min_items || n > shape.max_items.value_or(n)) return false;
    for (size_t i = 0; i < n; ++i) {
      if (!SatisfiesAll(value[i], ItemSchema(*document_, shape, i), tolerates_formats)) {
        return false;
      }
    }
  }
  if (value.is_object()) {
    const size_t n = value.size();
    if (n < shape.min_members || n > shape.max_members.value_or(n)) return false;
    for (const std::string& name : shape.required) {
      if (value.find(name) == value.end()) return false;
    }
    for (const auto& [name, member] : value.items()) {
      if (!AllowsName(shape, name, tolerates_formats)) return false;
      if (!SatisfiesAll(member, MemberSchema(shape, name), tolerates_formats)) return false;
    }
  }
  return true;
}

bool SchemaLogic::AreDisjoint(const Conjunction& a, const Conjunction& b, const Comparison& how) {
  if (how.depth > kMaxDisjointDepth) return false;
  const auto shapes_of = [&](const Conjunction& schemas) {
    std::vector<Shape> shapes;
    for (Conjunction parts : Alternatives(schemas)) {
      parts.insert(parts.end(), how.others.begin(), how.others.end());
      shapes.push_back(ShapeOfParts(parts));
    }
    return shapes;
  };
  const std::vector<Shape> ours = shapes_of(a), theirs = shapes_of(b);
  return std::ranges::all_of(ours, [&](const Shape& one) {
    return std::ranges::all_of(theirs,
                               [&](const Shape& other) { return AreDisjoint(one, other, how); });
  });
}

bool SchemaLogic::AreValuesOutside(const Shape& values, const Shape& other) {
  return values.values && std::ranges::none_of(*values.values, [&](const SchemaJson& value) {
           return SatisfiesShape(value, values, true) && SatisfiesShape(value, other, true);
         });
}

bool SchemaLogic::AreDisjoint(const Shape& a, const Shape& b, const Comparison& how) {
  budget_->Spend(20);
  ValueTypes types = a.types & b.types;
  if (how.written_only) types &= a.written_types() | b.written_types();
  if (types == 0 || AreValuesOutside(a, b) || AreValuesOutside(b, a)) return true;
  if ((types & (kNullValue | kBooleanValue)) != 0) return false;
  const auto has = [&](ValueTypes some) { return (types & some) != 0; };
  if (has(kIntegerValue | kFractionValue)) {
    const auto is_below = [](const NumberBounds& low, const NumberBounds& high) {
      if (!low.max || !high.min) return false;
      const int order = Compare(low.max->value, high.min->value);
      return order < 0 || (order == 0 && (low.max->is_excluded || high.min->is_excluded));
    };
    if (!is_below(a.numbers, b.numbers) && !is_below(b.numbers, a.numbers)) return false;
  }
  if (has(kStringValue)) {
    const bool is_apart = (a.max_characters && *a.max_characters < b.min_characters) ||
                          (b.max_characters && *b.max_characters < a.min_characters);
    if (!is_apart) return false;
  }
  if (has(kArrayValue) && !AreArraysDisjoint(a, b, how.depth)) return false;
  return !has(kObjectValue) || AreObjectsDisjoint(a, b, how.depth);
}

bool SchemaLogic::AreArraysDisjoint(const Shape& a, const Shape& b, int depth) {
  if (a.max_items && *a.max_items < b.min_items) return true;
  if (b.max_items && *b.max_items < a.min_items) return true;
  // An entry that both have for certain.
  const uint64_t num_common = std::min<uint64_t>(std::max(a.min_items, b.min_items), 8);
  for (size_t i = 0; i < num_common; ++i) {
    if (AreDisjoint(ItemSchema(*document_, a, i), ItemSchema(*document_, b, i),
                    {{}, false, depth + 1})) {
      return true;
    }
  }
  return false;
}

bool SchemaLogic::AreObjectsDisjoint(const Shape& a, const Shape& b, int depth) {
  if (a.max_members && *a.max_members < b.min_members) return true;
  if (b.max_members && *b.max_members < a.min_members) return true;
  for (const Shape* shape : {&a, &b}) {
    for (const std::string& name : shape->required) {
      if (AreDisjoint(MemberSchema(a, name), MemberSchema(b, name), {{}, false, depth + 1}))
        return true;
    }
  }
  return false;
}

}  // namespace hillstar
