#include "grammar/schema_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/json_scan.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// What restricts values and is enforced.
constexpr std::string_view kServed[] = {"$ref",
                                        "additionalProperties",
                                        "allOf",
                                        "anyOf",
                                        "const",
                                        "enum",
                                        "exclusiveMaximum",
                                        "exclusiveMinimum",
                                        "format",
                                        "items",
                                        "maxItems",
                                        "maxLength",
                                        "maxProperties",
                                        "maximum",
                                        "minItems",
                                        "minLength",
                                        "minProperties",
                                        "minimum",
                                        "multipleOf",
                                        "nullable",
                                        "oneOf",
                                        "pattern",
                                        "patternProperties",
                                        "prefixItems",
                                        "properties",
                                        "propertyNames",
                                        "required",
                                        "type"};
// What says something about a schema and restricts nothing.
constexpr std::string_view kAnnotations[] = {
    "$comment",      "$defs",       "$id",     "$schema",  "default",  "definitions", "deprecated",
    "discriminator", "description", "example", "examples", "readOnly", "title",       "writeOnly"};

bool IsAmong(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string Escaped(std::string_view key) {
  std::string escaped;
  for (const char c : key) {
    if (c == '~') {
      escaped += "~0";
    } else if (c == '/') {
      escaped += "~1";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

std::string WithoutStop(const std::exception& error) {
  std::string sentence = error.what();
  if (sentence.ends_with('.')) sentence.pop_back();
  return sentence;
}

SchemaDocument::SchemaDocument(std::string_view text, std::string what) : what_(std::move(what)) {
  try {
    json_ = ParseOrderedJson(text, what_, kMaxBytes);
  } catch (const Error& error) {
    throw Error(ErrorCode::kBadRequest, error.what());
  }
}

void SchemaDocument::Fail(const SchemaPart& schema, const std::string& sentence) const {
  throw Error(ErrorCode::kBadRequest,
              fmt::format("{}, at {}: {}.", what_, Quoted("#" + schema.pointer), sentence));
}

void SchemaDocument::Fail(const SchemaPart& schema, std::string_view keyword,
                          const std::string& what) const {
  Fail(schema, fmt::format("the keyword {} {}", Quoted(keyword), what));
}

const SchemaJson* SchemaDocument::Find(const SchemaPart& schema, const char* keyword) {
  const auto found = schema.json->find(keyword);
  return found != schema.json->end() ? &*found : nullptr;
}

SchemaPart SchemaDocument::Child(const SchemaPart& schema, std::string_view keyword) const {
  return Member(schema, std::string(keyword), (*schema.json)[std::string(keyword)]);
}

SchemaPart SchemaDocument::Element(const SchemaPart& list, size_t index) {
  return {&(*list.json)[index], list.pointer + "/" + std::to_string(index)};
}

SchemaPart SchemaDocument::Member(const SchemaPart& object, const std::string& key,
                                  const SchemaJson& value) {
  return {&value, object.pointer + "/" + Escaped(key)};
}

std::vector<SchemaPart> SchemaDocument::List(const SchemaPart& schema, const char* keyword) const {
  const SchemaPart list = Child(schema, keyword);
  if (!list.json->is_array() || list.json->empty()) {
    Fail(schema, keyword, "has to be a list of schemas that is not empty");
  }
  std::vector<SchemaPart> parts;
  for (size_t i = 0; i < list.json->size(); ++i) parts.push_back(Element(list, i));
  return parts;
}

std::optional<uint64_t> SchemaDocument::Count(const SchemaPart& schema, const char* keyword) const {
  const SchemaJson* value = Find(schema, keyword);
  if (value == nullptr) return {};
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number >= 0) || number != std::floor(number)) {
    Fail(schema, keyword, "has to be a whole number, 0 or more");
  }
  return number < 1e18 ? uint64_t(number) : uint64_t{1} << 60;
}

SchemaPart SchemaDocument::Referred(const SchemaPart& schema) const {
  const SchemaJson& reference = *Find(schema, "$ref");
  if (!reference.is_string()) Fail(schema, "$ref", "has to be a string");
  const std::string& text = reference.get_ref<const std::string&>();
  if (!text.starts_with("#") || (text.size() > 1 && text[1] != '/')) {
    Fail(schema, "$ref",
         fmt::format("leads to {}; references have to be JSON pointers within the schema, such as "
                     "#/$defs/name",
                     Quoted(text)));
  }
  try {
    const SchemaJson::json_pointer pointer(text.substr(1));
    return {&json_.at(pointer), text.substr(1)};
  } catch (const SchemaJson::exception&) {
    Fail(schema, "$ref", fmt::format("leads to {}, where there is nothing", Quoted(text)));
  }
}

void SchemaDocument::Check(const SchemaPart& schema) const {
  if (schema.json->is_boolean()) return;
  if (!schema.json->is_object()) {
    Fail(schema, "a schema has to be an object, true or false");
  }
  for (const auto& [keyword, value] : schema.json->items()) {
    if (!IsAmong(kServed, keyword) && !IsAmong(kAnnotations, keyword)) {
      const bool is_harmless = keyword == "uniqueItems" && value == false;
      if (!is_harmless) Fail(schema, keyword, "is not supported");
    }
  }
  if (!schema.pointer.empty() && Find(schema, "$id") != nullptr) {
    Fail(schema, "$id", "is supported at the root only, as it would change what $ref means");
  }
}

}  // namespace hillstar
