// JSON of requests and answers. Objects keep the order of their members. Requests are read through
// JsonFields, which knows what was asked for, so that a member that nobody reads is refused by
// name. Plain values; one thread each.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

using OrderedJson = nlohmann::ordered_json;

// Compact; bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const OrderedJson& json);

// A value's kind for people: "a text", "a number", ...
const char* JsonKindName(const OrderedJson& value);
// The same, but a number itself, which is short.
std::string ShownJson(const OrderedJson& value);

// The members of one object of a request. Members that are null count as absent. All errors are
// ApiErrors of status 400 whose param is the member's path. The object outlives its JsonFields.
class JsonFields {
 public:
  // `path` leads to the object: "" for the request itself. Errors: if it is no object.
  JsonFields(const OrderedJson& object, std::string path);

  // nullptr where it is absent.
  const OrderedJson* Find(std::string_view name);
  const OrderedJson& Required(std::string_view name);
  std::optional<std::string> Text(std::string_view name);
  std::string RequiredText(std::string_view name);
  // One of `choices`.
  std::optional<std::string> Choice(std::string_view name,
                                    std::initializer_list<std::string_view> choices);
  // Both ends included. A whole double counts as an integer.
  std::optional<int64_t> Integer(std::string_view name, int64_t min, int64_t max);
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<bool> Flag(std::string_view name);
  std::optional<JsonFields> Object(std::string_view name);
  // nullptr where it is absent.
  const OrderedJson* Array(std::string_view name, size_t max_items);
  // Texts, each of 1 to max_bytes bytes.
  std::vector<std::string> Texts(std::string_view name, size_t max_items, size_t max_bytes);

  // Read and of no effect here, whatever they are.
  void Ignore(std::initializer_list<std::string_view> names);
  // The same for members that are texts.
  void IgnoreTexts(std::initializer_list<std::string_view> names);
  // Refuses the member, where it is there with another value than null, false or nothing.
  void Refuse(std::string_view name, std::string_view why);
  // Refuses members that no call has named.
  void RefuseOthers() const;

  std::string PathOf(std::string_view name) const;
  [[noreturn]] void Fail(std::string_view name, const std::string& sentence) const;

 private:
  const OrderedJson* object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

// "tools[3]"
std::string ItemPath(const std::string& array_path, size_t index);

}  // namespace hillstar
