// The JSON of a tool call's arguments. Models of the GLM family write each value as text without
// quotes, so the tool's schema has to say whether 12 is a number or a text. Functions are pure; any
// thread may call them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/answer_delta.h"

namespace hillstar {

// Which of JSON's types a value may have: bits.
using JsonTypes = uint32_t;
inline constexpr JsonTypes kJsonString = 1, kJsonInteger = 2, kJsonNumber = 4, kJsonBoolean = 8,
                           kJsonNull = 16, kJsonObject = 32, kJsonArray = 64, kAnyJsonType = 127;

// The types of a tool's arguments as its schema has them.
class ArgumentSchema {
 public:
  ArgumentSchema() = default;  // says nothing: every argument may have any type
  // A text that is no JSON schema of an object says nothing either.
  explicit ArgumentSchema(std::string_view parameters_json);
  JsonTypes TypesOf(const std::string& argument) const;

 private:
  std::map<std::string, JsonTypes> types_;
  JsonTypes other_types_ = kAnyJsonType;  // of arguments that the schema does not name
};

// The schemas of an answer's tools, each read when the tool is first called. One thread at a time.
class ToolSchemas {
 public:
  explicit ToolSchemas(const std::vector<ToolDefinition>& tools);
  // Of an unknown tool: one that says nothing. Valid as long as this object.
  const ArgumentSchema& Of(const std::string& tool);

 private:
  std::map<std::string, std::string> unread_;  // JSON by the tools' names
  std::map<std::string, ArgumentSchema> read_;
  ArgumentSchema unknown_;
};

// Whether a value whose first character other than white space is `first` may be something else
// than a text.
bool MayBeginOtherThanText(char first, JsonTypes types);

// The JSON of a whole value, without white space. A text is taken for another type where it is
// valid JSON of a type in `types`; numbers keep their digits. Where `types` has no string, True,
// False and None count as well. All else is a JSON string of the text as it stands.
std::string ArgumentJson(std::string_view text, JsonTypes types);

// The text as it stands between the quotes of a JSON string. REQUIRES: valid UTF-8.
std::string EscapeJson(std::string_view text);
// With the quotes.
std::string QuoteJson(std::string_view text);

}  // namespace hillstar
