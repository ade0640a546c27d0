// What a conjunction of schemas says together, sorted by the type of value it is about.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/number_text.h"
#include "grammar/schema_document.h"
#include "grammar/work_budget.h"

namespace hillstar {

// Types of values: bits. A whole number is of either kind of number's types.
using ValueTypes = uint32_t;
inline constexpr ValueTypes kNullValue = 1, kBooleanValue = 2, kIntegerValue = 4,
                            kFractionValue = 8,  // a number that is not whole
    kStringValue = 16, kArrayValue = 32, kObjectValue = 64, kAnyValue = 127;

// Of schemas without $ref, allOf, anyOf and oneOf, or with those already followed.
struct Shape {
  Conjunction parts;  // objects
  ValueTypes types = kAnyValue;
  // The types that keywords are about, where nothing says which type is meant.
  ValueTypes hinted_types = 0;
  bool says_type = false;
  std::optional<std::vector<SchemaJson>> values;  // of enum and const
  NumberBounds numbers;
  bool is_multiple = false;  // has a multipleOf, so that numbers are whole
  int64_t multiple = 1;
  uint64_t min_characters = 0;
  std::optional<uint64_t> max_characters;
  std::vector<SchemaPart> patterns, formats;  // strings
  bool is_int32 = false, is_int64 = false;    // as formats of numbers say
  uint64_t min_items = 0;
  std::optional<uint64_t> max_items;
  uint64_t min_members = 0;
  std::optional<uint64_t> max_members;
  std::vector<std::string> required;

  // For messages; the root where nothing is said at all.
  SchemaPart place() const { return parts.empty() ? SchemaPart{nullptr, ""} : parts.front(); }
  // The types that are written: those hinted at where no type is said.
  ValueTypes written_types() const {
    return says_type || hinted_types == 0 ? types : types & hinted_types;
  }
};

// Errors: kBadRequest for values of keywords that make no sense.
Shape ShapeOf(const SchemaDocument& document, const Conjunction& parts, WorkBudget* budget);

ValueTypes TypeOf(const SchemaJson& value);
// Equal as JSON has it: whatever the order of members, 1 and 1.0 too.
bool IsSameValue(const SchemaJson& a, const SchemaJson& b);

// What a list asks of its entry `index`.
Conjunction ItemSchema(const SchemaDocument& document, const Shape& shape, size_t index);
// Entries that prefixItems describe, and whether `items` says something of those behind.
size_t NumPrefixItems(const Shape& shape);
bool HasItems(const Shape& shape);

}  // namespace hillstar
