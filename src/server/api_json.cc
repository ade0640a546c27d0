#include "server/api_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "formats/json_scan.h"
#include "server/api_error.h"

namespace hillstar {

std::string JsonText(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

const char* JsonKindName(const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::null: return "null";
    case OrderedJson::value_t::object: return "an object";
    case OrderedJson::value_t::array: return "an array";
    case OrderedJson::value_t::string: return "a text";
    case OrderedJson::value_t::boolean: return "true or false";
    default: return "a number";
  }
}

std::string ShownJson(const OrderedJson& value) {
  return value.is_number() ? value.dump() : JsonKindName(value);
}

std::string ItemPath(const std::string& array_path, size_t index) {
  return fmt::format("{}[{}]", array_path, index);
}

JsonFields::JsonFields(const OrderedJson& object, std::string path)
    : object_(&object), path_(std::move(path)) {
  if (object.is_object()) return;
  throw BadRequest(fmt::format("{} is {}; it has to be an object",
                               path_.empty() ? "the request's body" : path_, JsonKindName(object)),
                   path_);
}

std::string JsonFields::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void JsonFields::Fail(std::string_view name, const std::string& sentence) const {
  const std::string path = PathOf(name);
  throw BadRequest(fmt::format("{} {}", path, sentence), path);
}

const OrderedJson* JsonFields::Find(std::string_view name) {
  known_.emplace(name);
  const auto it = object_->find(name);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

const OrderedJson& JsonFields::Required(std::string_view name) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) Fail(name, "is missing");
  return *value;
}

std::optional<std::string> JsonFields::Text(std::string_view name) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Fail(name, fmt::format("is {}; it has to be a text", JsonKindName(*value)));
  }
  return value->get<std::string>();
}

std::string JsonFields::RequiredText(std::string_view name) {
  Required(name);
  return *Text(name);
}

std::optional<std::string> JsonFields::Choice(std::string_view name,
                                              std::initializer_list<std::string_view> choices) {
  std::optional<std::string> text = Text(name);
  if (!text) return text;
  for (std::string_view choice : choices) {
    if (*text == choice) return text;
  }
  Fail(name, fmt::format("is {}; it has to be one of {}", Quoted(*text), fmt::join(choices, ", ")));
}

std::optional<int64_t> JsonFields::Integer(std::string_view name, int64_t min, int64_t max) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  constexpr double kExact = 9007199254740992.0;  // up to 2^53 every whole number is a double
  const bool is_unsigned = value->is_number_unsigned();
  const bool is_large = is_unsigned && value->get<uint64_t>() > uint64_t(INT64_MAX);
  const bool is_whole = value->is_number_integer() ||
                        (value->is_number_float() && std::abs(value->get<double>()) <= kExact &&
                         value->get<double>() == std::floor(value->get<double>()));
  if (!is_whole) {
    Fail(name, fmt::format("is {}; it has to be a whole number", ShownJson(*value)));
  }
  const int64_t number =
      value->is_number_float() ? int64_t(value->get<double>()) : value->get<int64_t>();
  if (is_large || number < min || number > max) {
    Fail(name, fmt::format("is {}; it has to be from {} to {}", value->dump(), min, max));
  }
  return number;
}

std::optional<double> JsonFields::Number(std::string_view name, double min, double max) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Fail(name, fmt::format("is {}; it has to be a number", JsonKindName(*value)));
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    Fail(name, fmt::format("is {}; it has to be from {} to {}", value->dump(), min, max));
  }
  return number;
}

std::optional<bool> JsonFields::Flag(std::string_view name) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Fail(name, fmt::format("is {}; it has to be true or false", JsonKindName(*value)));
  }
  return value->get<bool>();
}

std::optional<JsonFields> JsonFields::Object(std::string_view name) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return JsonFields(*value, PathOf(name));
}

const OrderedJson* JsonFields::Array(std::string_view name, size_t max_items) {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    Fail(name, fmt::format("is {}; it has to be an array", JsonKindName(*value)));
  }
  if (value->size() > max_items) {
    Fail(name, fmt::format("has {} items; {} are the most", value->size(), max_items));
  }
  return value;
}

std::vector<std::string> JsonFields::Texts(std::string_view name, size_t max_items,
                                           size_t max_bytes) {
  std::vector<std::string> texts;
  const OrderedJson* array = Array(name, max_items);
  for (size_t i = 0; array != nullptr && i < array->size(); ++i) {
    const std::string item = ItemPath(std::string(name), i);
    const OrderedJson& value = (*array)[i];
    if (!value.is_string()) {
      Fail(item, fmt::format("is {}; it has to be a text", JsonKindName(value)));
    }
    texts.push_back(value.get<std::string>());
    if (texts.back().empty()) Fail(item, "is empty");
    if (texts.back().size() > max_bytes) {
      Fail(item, fmt::format("has {} bytes; {} are the most", texts.back().size(), max_bytes));
    }
  }
  return texts;
}

void JsonFields::Ignore(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) known_.emplace(name);
}

void JsonFields::IgnoreTexts(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) Text(name);
}

void JsonFields::Refuse(std::string_view name, std::string_view why) {
  const OrderedJson* value = Find(name);
  if (value == nullptr || (value->is_boolean() && !value->get<bool>()) ||
      (value->is_structured() && value->empty())) {
    return;
  }
  Fail(name, fmt::format("is not supported: {}", why));
}

void JsonFields::RefuseOthers() const {
  for (const auto& [name, value] : object_->items()) {
    if (!known_.contains(name)) {
      Fail(Quoted(name).substr(1, Quoted(name).size() - 2), "is not known here");
    }
  }
}

}  // namespace hillstar
