#include "tokenizer/argument_json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/json_scan.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kBlanks = " \t\r\n";

std::optional<Json> Parse(std::string_view text) {
  try {
    return ParseJson(text, "argument", text.size());
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Of a value; of a whole number both bits.
JsonTypes TypesOfValue(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string: return kJsonString;
    case Json::value_t::boolean: return kJsonBoolean;
    case Json::value_t::null: return kJsonNull;
    case Json::value_t::object: return kJsonObject;
    case Json::value_t::array: return kJsonArray;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned: return kJsonInteger | kJsonNumber;
    case Json::value_t::number_float: {
      const double number = value.get<double>();
      return std::floor(number) == number ? kJsonInteger | kJsonNumber : kJsonNumber;
    }
    default: return 0;
  }
}

JsonTypes TypeOfName(const Json& name) {
  constexpr std::pair<std::string_view, JsonTypes> kNames[] = {
      {"string", kJsonString},   {"integer", kJsonInteger}, {"number", kJsonNumber},
      {"boolean", kJsonBoolean}, {"null", kJsonNull},       {"object", kJsonObject},
      {"array", kJsonArray}};
  for (const auto& [known, type] : kNames) {
    if (name == known) return type;
  }
  return 0;
}

// Reads types off a schema. What it does not know counts as no restriction.
class TypeFinder {
 public:
  explicit TypeFinder(const Json& root) : root_(root) {}

  JsonTypes Find(const Json& schema) {
    if (!schema.is_object() || depth_ >= kMaxDepth) return kAnyJsonType;
    ++depth_;
    const JsonTypes types = OfObject(schema);
    --depth_;
    return types != 0 ? types : kAnyJsonType;
  }
  // Where $ref leads, or the schema itself.
  const Json& Resolve(const Json& schema) const {
    const Json* at = &schema;
    for (int i = 0; i < kMaxDepth && at->is_object() && at->contains("$ref"); ++i) {
      const Json* next = Follow((*at)["$ref"]);
      if (next == nullptr) break;
      at = next;
    }
    return *at;
  }

 private:
  static constexpr int kMaxDepth = 64;

  const Json* Follow(const Json& ref) const {
    if (!ref.is_string() || !ref.get_ref<const std::string&>().starts_with('#')) return nullptr;
    try {
      return &root_.at(Json::json_pointer(ref.get_ref<const std::string&>().substr(1)));
    } catch (const Json::exception&) {
      return nullptr;
    }
  }
  // Each is looked at once; one that refers to itself says nothing about itself.
  JsonTypes OfReference(const Json& ref) {
    const Json* schema = Follow(ref);
    if (schema == nullptr) return kAnyJsonType;
    const auto [found, is_new] = references_.try_emplace(schema, kAnyJsonType);
    if (is_new) {
      const JsonTypes types = Find(*schema);
      references_[schema] = types;
      return types;
    }
    return found->second;
  }
  JsonTypes OfObject(const Json& schema) {
    JsonTypes types = kAnyJsonType;
    if (const auto ref = schema.find("$ref"); ref != schema.end()) types &= OfReference(*ref);
    if (const auto type = schema.find("type"); type != schema.end()) types &= OfTypeMember(*type);
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const auto parts = schema.find(name);
      if (parts != schema.end()) types &= OfParts(*parts, std::string_view(name) == "allOf");
    }
    if (const auto values = schema.find("enum"); values != schema.end()) types &= OfEnum(*values);
    if (const auto value = schema.find("const"); value != schema.end()) {
      types &= TypesOfValue(*value);
    }
    if (schema.value("nullable", Json()) == true) types |= kJsonNull;
    return types;
  }
  // A number may be a whole one.
  static JsonTypes OfTypeMember(const Json& type) {
    JsonTypes types = 0;
    if (type.is_string()) types = TypeOfName(type);
    if (type.is_array()) {
      for (const Json& one : type) types |= TypeOfName(one);
    }
    if ((types & kJsonNumber) != 0) types |= kJsonInteger;
    return types != 0 ? types : kAnyJsonType;
  }
  JsonTypes OfParts(const Json& parts, bool all) {
    if (!parts.is_array() || parts.empty()) return kAnyJsonType;
    JsonTypes types = all ? kAnyJsonType : 0;
    for (const Json& part : parts) {
      const JsonTypes found = Find(part);
      types = all ? types & found : types | found;
    }
    return types;
  }
  static JsonTypes OfEnum(const Json& values) {
    if (!values.is_array() || values.empty()) return kAnyJsonType;
    JsonTypes types = 0;
    for (const Json& value : values) types |= TypesOfValue(value);
    return types;
  }

  const Json& root_;
  int depth_ = 0;
  std::map<const Json*, JsonTypes> references_;
};

std::string_view Strip(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// REQUIRES: valid JSON.
std::string WithoutBlanks(std::string_view json) {
  std::string out;
  bool is_in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (!is_in_string && kBlanks.find(json[i]) != std::string_view::npos) continue;
    out += json[i];
    if (is_in_string && json[i] == '\\')
      out += json[++i];
    else if (json[i] == '"')
      is_in_string = !is_in_string;
  }
  return out;
}

// A word of Python's, which models write where they mean JSON's.
std::string_view PythonWord(std::string_view text, JsonTypes types) {
  if (text == "True" && (types & kJsonBoolean) != 0) return "true";
  if (text == "False" && (types & kJsonBoolean) != 0) return "false";
  if (text == "None" && (types & kJsonNull) != 0) return "null";
  return {};
}

}  // namespace

ArgumentSchema::ArgumentSchema(std::string_view parameters_json) {
  if (parameters_json.empty()) return;
  const std::optional<Json> root = Parse(parameters_json);
  if (!root) return;
  TypeFinder finder(*root);
  const Json& schema = finder.Resolve(*root);
  if (!schema.is_object()) return;
  const Json properties = schema.value("properties", Json());
  if (properties.is_object()) {
    for (const auto& [name, property] : properties.items()) types_[name] = finder.Find(property);
  }
  const auto other = schema.find("additionalProperties");
  if (other != schema.end()) other_types_ = finder.Find(*other);
}

JsonTypes ArgumentSchema::TypesOf(const std::string& argument) const {
  const auto found = types_.find(argument);
  return found != types_.end() ? found->second : other_types_;
}

ToolSchemas::ToolSchemas(const std::vector<ToolDefinition>& tools) {
  for (const ToolDefinition& tool : tools) unread_.emplace(tool.name, tool.parameters_json);
}

const ArgumentSchema& ToolSchemas::Of(const std::string& tool) {
  if (const auto unread = unread_.find(tool); unread != unread_.end()) {
    read_.emplace(tool, ArgumentSchema(unread->second));
    unread_.erase(unread);
  }
  const auto found = read_.find(tool);
  return found != read_.end() ? found->second : unknown_;
}

bool MayBeginOtherThanText(char first, JsonTypes types) {
  if ((types & kJsonString) == 0) return true;
  switch (first) {
    case '{': return (types & kJsonObject) != 0;
    case '[': return (types & kJsonArray) != 0;
    case 't':
    case 'f': return (types & kJsonBoolean) != 0;
    case 'n': return (types & kJsonNull) != 0;
    default: break;
  }
  const bool is_number = first == '-' || (first >= '0' && first <= '9');
  return is_number && (types & (kJsonInteger | kJsonNumber)) != 0;
}

std::string ArgumentJson(std::string_view text, JsonTypes types) {
  const std::string_view stripped = Strip(text);
  const JsonTypes other_types = types & ~kJsonString;
  if (!stripped.empty() && MayBeginOtherThanText(stripped[0], types)) {
    const std::optional<Json> json = Parse(stripped);
    if (json && (TypesOfValue(*json) & other_types) != 0) return WithoutBlanks(stripped);
    const std::string_view word = PythonWord(stripped, types);
    if (!word.empty() && (types & kJsonString) == 0) return std::string(word);
  }
  return QuoteJson(text);
}

std::string EscapeJson(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", c);
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string QuoteJson(std::string_view text) { return fmt::format("\"{}\"", EscapeJson(text)); }

}  // namespace hillstar
