#include "tokenizer/argument_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace hillstar {
namespace {

constexpr JsonTypes kWholeNumber = kJsonInteger, kAnyNumber = kJsonInteger | kJsonNumber;

JsonTypes TypesOf(const std::string& property) {
  return ArgumentSchema(R"({"type":"object","properties":{"a":)" + property + "}}").TypesOf("a");
}

TEST(ArgumentSchemaTest, ReadsTypesOffTheWaysToSayThem) {
  const std::pair<const char*, JsonTypes> cases[] = {
      {R"({"type":"string"})", kJsonString},
      {R"({"type":"integer"})", kWholeNumber},
      {R"({"type":"number"})", kAnyNumber},
      {R"({"type":"boolean"})", kJsonBoolean},
      {R"({"type":"null"})", kJsonNull},
      {R"({"type":"object"})", kJsonObject},
      {R"({"type":"array","items":{"type":"string"}})", kJsonArray},
      {R"({"type":["string","null"]})", kJsonString | kJsonNull},
      {R"({"type":"string","nullable":true})", kJsonString | kJsonNull},
      {R"({"type":"string","enum":["x","y"],"description":"d"})", kJsonString},
      {R"({"enum":["x","y"]})", kJsonString},
      {R"({"enum":["x",1,null]})", kJsonString | kAnyNumber | kJsonNull},
      {R"({"enum":[1.5]})", kJsonNumber},
      {R"({"const":true})", kJsonBoolean},
      {R"({"anyOf":[{"type":"string"},{"type":"null"}]})", kJsonString | kJsonNull},
      {R"({"oneOf":[{"type":"integer"},{"$ref":"#/$defs/none"}]})", kAnyJsonType},
      {R"({"allOf":[{"type":["string","integer"]},{"enum":["x"]}]})", kJsonString},
      {R"({"type":"string","enum":[1]})", kAnyJsonType},
      {R"({"description":"whatever"})", kAnyJsonType},
      {R"({"type":"any"})", kAnyJsonType},
      {R"({"type":7,"enum":[],"anyOf":{}})", kAnyJsonType},
      {"true", kAnyJsonType},
      {"[]", kAnyJsonType}};
  for (const auto& [property, types] : cases) EXPECT_EQ(TypesOf(property), types) << property;
}

TEST(ArgumentSchemaTest, FollowsReferences) {
  const ArgumentSchema schema(R"({
    "properties": {"a": {"$ref": "#/$defs/text"}, "b": {"$ref": "#/$defs/loop"},
                   "c": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
                   "d": {"$ref": "#/$defs/twice"}, "e": {"$ref": "other.json"},
                   "f": {"$ref": "#no pointer"}, "g": {"$ref": "#/$defs/more"}},
    "$defs": {"text": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"},
              "more": {"$ref": "#/$defs/text"},
              "twice": {"anyOf": [{"$ref": "#/$defs/twice"}, {"$ref": "#/$defs/twice"}]}},
    "additionalProperties": {"type": "integer"}})");
  EXPECT_EQ(schema.TypesOf("a"), kJsonString);
  EXPECT_EQ(schema.TypesOf("b"), kAnyJsonType) << "it has no end";
  EXPECT_EQ(schema.TypesOf("c"), kJsonString | kJsonNull);
  EXPECT_EQ(schema.TypesOf("d"), kAnyJsonType) << "it has no end";
  EXPECT_EQ(schema.TypesOf("e"), kAnyJsonType);
  EXPECT_EQ(schema.TypesOf("f"), kAnyJsonType);
  EXPECT_EQ(schema.TypesOf("g"), kJsonString);
  EXPECT_EQ(schema.TypesOf("z"), kWholeNumber);
}

TEST(ArgumentSchemaTest, WhatIsNoSchemaSaysNothing) {
  for (const char* text : {"", "{", "[]", "null", "1", R"({"properties":[]})",
                           R"({"properties":{"a":1}})", R"({"additionalProperties":false})"}) {
    EXPECT_EQ(ArgumentSchema(text).TypesOf("a"), kAnyJsonType) << text;
  }
}

TEST(ArgumentJsonTest, TheTypesDecide) {
  const std::tuple<const char*, JsonTypes, const char*> cases[] = {
      {"12", kJsonString, R"("12")"},
      {"12", kWholeNumber, "12"},
      {" 12\n", kWholeNumber, "12"},
      {"12", kJsonString | kJsonInteger, "12"},
      {"1.5", kJsonString | kJsonInteger, R"("1.5")"},
      {"1.5", kWholeNumber, R"("1.5")"},
      {"1.50", kAnyNumber, "1.50"},
      {"2.0", kWholeNumber, "2.0"},
      {"123456789012345678901234567890", kWholeNumber, "123456789012345678901234567890"},
      {"1e999", kAnyNumber, R"("1e999")"},
      {"012", kAnyJsonType, R"("012")"},
      {"true", kJsonBoolean, "true"},
      {"True", kJsonBoolean, "true"},
      {"False", kJsonBoolean | kJsonNull, "false"},
      {"None", kJsonBoolean | kJsonNull, "null"},
      {"None", kJsonBoolean, R"("None")"},
      {"True", kJsonBoolean | kJsonString, R"("True")"},
      {"True", kAnyJsonType, R"("True")"},
      {"null", kJsonString, R"("null")"},
      {"null", kJsonString | kJsonNull, "null"},
      {"null ", kAnyJsonType, "null"},
      {"nullx", kAnyJsonType, R"("nullx")"},
      {R"({ "a" : [ 1 , "x y\" z" ] })", kJsonObject, R"({"a":[1,"x y\" z"]})"},
      {R"({"b\\": "\\ " , "a": 1})", kAnyJsonType, R"({"b\\":"\\ ","a":1})"},
      {R"({"a":1})", kJsonArray, R"("{\"a\":1}")"},
      {R"({"a":1})", kJsonString, R"("{\"a\":1}")"},
      {R"({"a":1)", kJsonObject, R"("{\"a\":1")"},
      {"{'a': 1}", kJsonObject, R"("{'a': 1}")"},
      {R"("quoted")", kAnyJsonType, R"("\"quoted\"")"},
      {"", kWholeNumber, R"("")"},
      {" ", kAnyJsonType, R"(" ")"},
      {"a\n\t\"\\/\x01\x7F中🙂", kJsonString,
       R"("a\n\t\"\\/\u0001)"
       "\x7F"
       "中🙂\""}};
  for (const auto& [text, types, json] : cases) {
    const std::string got = ArgumentJson(text, types);
    EXPECT_EQ(got, json) << text << " as " << types;
    EXPECT_TRUE(nlohmann::json::accept(got)) << got;
  }
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_EQ(ArgumentJson(deep, kJsonArray), '"' + deep + '"') << "too deep to be of use";
}

// A text that is told before its end has to be one whatever follows.
TEST(ArgumentJsonTest, WhatCannotBeginAnotherTypeIsText) {
  const std::string texts[] = {"12", "-1", "true", "false", "null", "{}", "[]", "x", "+1", "\"\""};
  for (JsonTypes types = 1; types <= kAnyJsonType; ++types) {
    if ((types & kJsonString) == 0) continue;
    for (const std::string& text : texts) {
      if (MayBeginOtherThanText(text[0], types)) continue;
      EXPECT_EQ(ArgumentJson(text, types), QuoteJson(text)) << types;
    }
  }
  EXPECT_TRUE(MayBeginOtherThanText('x', kJsonInteger)) << "kept until it is known to be none";
}

}  // namespace
}  // namespace hillstar
