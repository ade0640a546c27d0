#include "grammar/schema_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/json_scan.h"
#include "grammar/text_language.h"

namespace hillstar {
namespace {

struct TypeName {
  std::string_view name;
  ValueTypes types;
};
constexpr TypeName kTypeNames[] = {
    {"null", kNullValue},       {"boolean", kBooleanValue},
    {"integer", kIntegerValue}, {"number", kIntegerValue | kFractionValue},
    {"string", kStringValue},   {"array", kArrayValue},
    {"object", kObjectValue}};

class ShapeReader {
 public:
  ShapeReader(const SchemaDocument& document, WorkBudget* budget)
      : document_(document), budget_(budget) {}

  Shape Read(const Conjunction& parts) {
    shape_.parts = parts;
    for (const SchemaPart& part : parts) {
      budget_->Spend(20);
      ReadTypes(part);
      ReadValues(part);
      ReadNumbers(part);
      ReadStrings(part);
      ReadArrays(part);
      ReadObjects(part);
    }
    return std::move(shape_);
  }

 private:
  const SchemaJson* Find(const SchemaPart& part, const char* keyword) {
    return SchemaDocument::Find(part, keyword);
  }

  ValueTypes TypesOfName(const SchemaPart& part, const SchemaJson& name) {
    for (const TypeName& known : kTypeNames) {
      if (name.is_string() && name.get_ref<const std::string&>() == known.name) return known.types;
    }
    document_.Fail(part, "type", "has to be the name of a type or a list of such names");
  }

  void ReadTypes(const SchemaPart& part) {
    const SchemaJson* type = Find(part, "type");
    const SchemaJson* nullable = Find(part, "nullable");
    if (nullable != nullptr && !nullable->is_boolean()) {
      document_.Fail(part, "nullable", "has to be true or false");
    }
    if (type == nullptr) {
      if (nullable != nullptr && *nullable == true) {
        document_.Fail(part, "nullable", "needs the keyword \"type\" beside it");
      }
      return;
    }
    ValueTypes types = 0;
    if (type->is_array() && !type->empty()) {
      for (const SchemaJson& name : *type) types |= TypesOfName(part, name);
    } else {
      types = TypesOfName(part, *type);
    }
    if (nullable != nullptr && *nullable == true) types |= kNullValue;
    shape_.types &= types;
    shape_.says_type = true;
  }

  void ReadValues(const SchemaPart& part) {
    if (const SchemaJson* value = Find(part, "const")) Restrict({*value});
    const SchemaJson* values = Find(part, "enum");
    if (values == nullptr) return;
    if (!values->is_array()) document_.Fail(part, "enum", "has to be a list");
    Restrict(std::vector<SchemaJson>(values->begin(), values->end()));
  }

  void Restrict(std::vector<SchemaJson> values) {
    budget_->Spend(int64_t(values.size()));
    shape_.says_type = true;
    if (!shape_.values) {
      shape_.values = std::move(values);
      return;
    }
    std::erase_if(*shape_.values, [&](const SchemaJson& known) {
      budget_->Spend(int64_t(values.size()));
      return std::ranges::none_of(
          values, [&](const SchemaJson& value) { return IsSameValue(known, value); });
    });
  }

  std::optional<NumberBound> Bound(const SchemaPart& part, const char* keyword, bool is_excluded) {
    const SchemaJson* value = Find(part, keyword);
    if (value == nullptr) return {};
    if (!value->is_number()) document_.Fail(part, keyword, "has to be a number");
    const std::optional<Decimal> decimal = Decimal::Of(value->dump());
    if (!decimal) document_.Fail(part, keyword, "has an exponent that is out of range");
    shape_.hinted_types |= kIntegerValue | kFractionValue;
    return NumberBound{*decimal, is_excluded};
  }

  void ReadNumbers(const SchemaPart& part) {
    const auto min = {Bound(part, "minimum", false), Bound(part, "exclusiveMinimum", true)};
    for (const auto& bound : min) {
      if (bound) Tighten(*bound, 1, &shape_.numbers.min);
    }
    const auto max = {Bound(part, "maximum", false), Bound(part, "exclusiveMaximum", true)};
    for (const auto& bound : max) {
      if (bound) Tighten(*bound, -1, &shape_.numbers.max);
    }
    const SchemaJson* multiple = Find(part, "multipleOf");
    if (multiple == nullptr) return;
    shape_.hinted_types |= kIntegerValue | kFractionValue;
    const double number = multiple->is_number() ? multiple->get<double>() : 0;
    if (!(number > 0)) document_.Fail(part, "multipleOf", "has to be a number above 0");
    if (number != std::floor(number) || number > double(kMaxMultiple)) {
      document_.Fail(part, "multipleOf",
                     fmt::format("is supported for whole numbers up to {} only", kMaxMultiple));
    }
    shape_.is_multiple = true;
    shape_.multiple = Common(part, shape_.multiple, int64_t(number));
  }

  // The least number that both divide.
  int64_t Common(const SchemaPart& part, int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y != 0) x = std::exchange(y, x % y);
    if (a / x * b > kMaxMultiple) {
      document_.Fail(part, "multipleOf",
                     fmt::format("asks together with another one for multiples of {}; those of "
                                 "up to {} are supported",
                                 a / x * b, kMaxMultiple));
    }
    return a / x * b;
  }

  void ReadCounts(const SchemaPart& part, const char* min_keyword, const char* max_keyword,
                  ValueTypes types, uint64_t* min, std::optional<uint64_t>* max) {
    const std::optional<uint64_t> least = document_.Count(part, min_keyword);
    const std::optional<uint64_t> most = document_.Count(part, max_keyword);
    if (least) *min = std::max(*min, *least);
    if (most) *max = std::min(max->value_or(*most), *most);
    if (least || most) shape_.hinted_types |= types;
  }

  void ReadStrings(const SchemaPart& part) {
    ReadCounts(part, "minLength", "maxLength", kStringValue, &shape_.min_characters,
               &shape_.max_characters);
    for (const char* keyword : {"pattern", "format"}) {
      const SchemaJson* value = Find(part, keyword);
      if (value == nullptr) continue;
      if (!value->is_string()) document_.Fail(part, keyword, "has to be a string");
      if (std::string_view(keyword) == "format") {
        ReadFormat(part, value);
        continue;
      }
      shape_.patterns.push_back({value, part.pointer});
      shape_.hinted_types |= kStringValue;
    }
  }

  void ReadFormat(const SchemaPart& part, const SchemaJson* format) {
    const auto& name = format->get_ref<const std::string&>();
    constexpr ValueTypes kNumbers = kIntegerValue | kFractionValue;
    if (IsTextFormat(name)) {
      shape_.formats.push_back({format, part.pointer});
      shape_.hinted_types |= kStringValue;
    } else if (name == "password" || name == "binary") {  // any text
      shape_.hinted_types |= kStringValue;
    } else if (name == "int32" || name == "int64" || name == "float" || name == "double") {
      shape_.hinted_types |= kNumbers;
      shape_.is_int32 = shape_.is_int32 || name == "int32";
      shape_.is_int64 = shape_.is_int64 || name == "int64";
    } else {
      document_.Fail(part, "format",
                     fmt::format("is supported for {}, password, binary, int32, int64, float and "
                                 "double only, not for {}",
                                 TextFormats(), Quoted(name)));
    }
  }

  void ReadArrays(const SchemaPart& part) {
    ReadCounts(part, "minItems", "maxItems", kArrayValue, &shape_.min_items, &shape_.max_items);
    if (const SchemaJson* items = Find(part, "items")) {
      shape_.hinted_types |= kArrayValue;
      if (items->is_array()) {
        document_.Fail(part, "items", "has to be one schema; a list of them is prefixItems");
      }
    }
    if (Find(part, "prefixItems") != nullptr) {
      shape_.hinted_types |= kArrayValue;
      document_.List(part, "prefixItems");
    }
  }

  void ReadObjects(const SchemaPart& part) {
    ReadCounts(part, "minProperties", "maxProperties", kObjectValue, &shape_.min_members,
               &shape_.max_members);
    for (const char* keyword : {"properties", "patternProperties"}) {
      const SchemaJson* value = Find(part, keyword);
      if (value == nullptr) continue;
      if (!value->is_object()) document_.Fail(part, keyword, "has to be an object of schemas");
      shape_.hinted_types |= kObjectValue;
    }
    for (const char* keyword : {"additionalProperties", "propertyNames"}) {
      if (Find(part, keyword) != nullptr) shape_.hinted_types |= kObjectValue;
    }
    const SchemaJson* required = Find(part, "required");
    if (required == nullptr) return;
    shape_.hinted_types |= kObjectValue;
    if (!required->is_array()) document_.Fail(part, "required", "has to be a list of names");
    for (const SchemaJson& name : *required) {
      if (!name.is_string()) document_.Fail(part, "required", "has to be a list of names");
      budget_->Spend(int64_t(shape_.required.size()));
      const auto& text = name.get_ref<const std::string&>();
      if (std::ranges::find(shape_.required, text) == shape_.required.end()) {
        shape_.required.push_back(text);
      }
    }
  }

  const SchemaDocument& document_;
  WorkBudget* budget_;
  Shape shape_;
};

}  // namespace

Shape ShapeOf(const SchemaDocument& document, const Conjunction& parts, WorkBudget* budget) {
  return ShapeReader(document, budget).Read(parts);
}

ValueTypes TypeOf(const SchemaJson& value) {
  switch (value.type()) {
    case SchemaJson::value_t::null: return kNullValue;
    case SchemaJson::value_t::boolean: return kBooleanValue;
    case SchemaJson::value_t::string: return kStringValue;
    case SchemaJson::value_t::array: return kArrayValue;
    case SchemaJson::value_t::object: return kObjectValue;
    case SchemaJson::value_t::number_float: {
      const double number = value.get<double>();
      return number == std::floor(number) ? kIntegerValue : kFractionValue;
    }
    default: return kIntegerValue;
  }
}

bool IsSameValue(const SchemaJson& a, const SchemaJson& b) {
  if (a == b) return true;
  if (a.is_structured() != b.is_structured() || !a.is_structured()) return false;
  return nlohmann::json::parse(a.dump()) == nlohmann::json::parse(b.dump());
}

size_t NumPrefixItems(const Shape& shape) {
  size_t most = 0;
  for (const SchemaPart& part : shape.parts) {
    if (const SchemaJson* prefix = SchemaDocument::Find(part, "prefixItems")) {
      most = std::max(most, prefix->size());
    }
  }
  return most;
}

bool HasItems(const Shape& shape) {
  return std::ranges::any_of(shape.parts, [](const SchemaPart& part) {
    return SchemaDocument::Find(part, "items") != nullptr;
  });
}

Conjunction ItemSchema(const SchemaDocument& document, const Shape& shape, size_t index) {
  Conjunction schemas;
  for (const SchemaPart& part : shape.parts) {
    const SchemaJson* prefix = SchemaDocument::Find(part, "prefixItems");
    if (prefix != nullptr && index < prefix->size()) {
      schemas.push_back(SchemaDocument::Element(document.Child(part, "prefixItems"), index));
    } else if (SchemaDocument::Find(part, "items") != nullptr) {
      schemas.push_back(document.Child(part, "items"));
    }
  }
  return schemas;
}

}  // namespace hillstar
