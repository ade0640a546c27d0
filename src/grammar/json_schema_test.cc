#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "grammar/grammar_test_answers.h"

namespace hillstar {
namespace {

std::string SchemaError(const std::string& schema) {
  return ErrorOf([&] { GrammarOfJsonSchema(schema); });
}

struct Case {
  const char* schema;
  std::vector<std::string> valid, invalid;
};

void Check(const Case& test) {
  const auto grammar = GrammarOfJsonSchema(test.schema);
  for (const std::string& text : test.valid)
    EXPECT_TRUE(Takes(grammar, text)) << test.schema << " " << text;
  for (const std::string& text : test.invalid)
    EXPECT_FALSE(Takes(grammar, text)) << test.schema << " " << text;
}

TEST(JsonSchemaTest, Types) {
  Check({R"({"type":"boolean"})", {"true", "false"}, {"null", "tru", "true ", "0"}});
  Check({R"({"type":["null","integer"]})", {"null", "0", "-17"}, {"1.5", "01", "-0", "\"\""}});
  Check({"true",
         {"null", "[]", "{\"a\": [1, {\"b\": \"c\"}]}", "-1.5e-3", "\"x\""},
         {"", "[,]", "{a:1}"}});
  Check({"{}", {"null", "[1,2]", "{}"}, {"nul"}});
}

TEST(JsonSchemaTest, Strings) {
  Check({R"({"type":"string"})",
         {R"("")", R"("é日本🙂")", R"("\n\u00e9\ud83d\ude00\/")", "\"\x7f\""},
         {R"("\ud83d")", "\"\n\"", "\"\xff\"", "\"\xc3\"", R"("\x")", R"(")", R"("a"b")"}});
  Check({R"({"type":"string","minLength":2,"maxLength":3})",
         {R"("ab")", R"("日本語")", R"("\ud83d\ude00x")", R"("🙂🙂🙂")"},
         {R"("a")", R"("abcd")", R"("\ud83d\ude00")", R"("🙂")"}});
  Check({R"({"type":"string","pattern":"^a+$"})",
         {R"("a")", R"("aaa")"},
         {R"("")", R"("ab")", R"("ba")"}});
  Check({R"({"type":"string","pattern":"b\"c"})", {R"("b\"c")", R"("ab\"cd")"}, {R"("bc")"}});
  Check({R"({"type":"string","pattern":"^[a-z]*$","minLength":2,"maxLength":4})",
         {R"("ab")", R"("abcd")"},
         {R"("a")", R"("abcde")", R"("AB")"}});
  Check({R"({"type":"string","format":"date"})",
         {R"("2024-02-29")", R"("1999-12-31")"},
         {R"("2023-02-29")", R"("1900-02-29")", R"("2024-13-01")", R"("2024-04-31")"}});
}

TEST(JsonSchemaTest, Numbers) {
  Check({R"({"type":"integer","minimum":-5,"maximum":120})",
         {"-5", "-1", "0", "9", "10", "99", "100", "120"},
         {"-6", "-10", "121", "130", "200", "1000", "007"}});
  Check({R"({"type":"number","minimum":0,"maximum":1})",
         {"0", "1", "0.5", "1.0", "1.000", "0.999999"},
         {"-0.1", "1.1", "2", "1e0", "1.01"}});
  Check({R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1.5})",
         {"0.1", "1", "1.4999", "0.00001"},
         {"0", "0.0", "1.5", "1.50", "-1", "2"}});
  Check({R"({"type":"number","minimum":-2.5,"maximum":-1.25})",
         {"-2.5", "-2", "-1.25", "-1.3", "-2.49"},
         {"-2.51", "-1.2", "-1", "0", "1.5", "-3"}});
  Check({R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "700"}, {"1", "8", "-15"}});
  Check({R"({"type":"integer","exclusiveMinimum":3,"multipleOf":5,"maximum":20})",
         {"5", "20"},
         {"0", "3", "25", "7"}});
}

TEST(JsonSchemaTest, Objects) {
  Check(
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": 1,\n  \"b\": \"\"\n}"},
       {"{}", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,"c":2})", R"({"a":1,})",
        R"({"a" :1})"}});
  Check(
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"a":1})", R"({"b":true})", R"({"a":1,"b":true,"c":false})",
        R"({"aa":true,"":false})"},
       {R"({"a":true})", R"({"b":1})", R"({"a":1,"a":true})", R"({"b":true,"a":1})",
        R"({"\u0061":true})"}});
  Check({R"({"type":"object","properties":{"a":true,"b":true,"c":true},"minProperties":2})",
         {R"({"a":1,"b":2})", R"({"b":1,"c":2})", R"({"a":1,"b":2,"c":3})"},
         {"{}", R"({"a":1})", R"({"c":1})"}});
  Check({R"({"type":"object","properties":{"a":true,"b":true,"c":true},"maxProperties":1})",
         {"{}", R"({"a":1})", R"({"c":1})"},
         {R"({"a":1,"b":2})", R"({"b":1,"c":2})"}});
  Check(
      {R"({"patternProperties":{"^x":{"type":"integer"},"y$":{"minimum":5}}, "additionalProperties":false})",
       {"{}", R"({"x":1})", R"({"xy":5,"zy":7.5})"},
       {R"({"xy":4})", R"({"x":1.5})", R"({"a":1})"}});
  Check({R"({"type":"object"})", {"{}", R"({"a":{"b":[1,"\u00e9"]}})"}, {"[]"}});
}

TEST(JsonSchemaTest, Arrays) {
  Check({R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
         {"[1]", "[1,2]", "[1, 2, 3]", "[ 1, 2 ]", "[\n  1,\n  2\n]"},
         {"[]", "[1,2,3,4]", "[1,]", "[\"a\"]"}});
  Check({R"({"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
         {"[]", "[1]", "[1,\"a\"]"},
         {"[\"a\"]", "[1,\"a\",2]", "[1,2]"}});
  Check({R"({"prefixItems":[{"type":"integer"}],"items":{"type":"boolean"},"minItems":2})",
         {"[1,true]", "[1,true,false]"},
         {"[1]", "[]", "[1,2]"}});
  Check(
      {R"({"prefixItems":[{"type":"integer"},{"type":"integer"},{"type":"integer"}],"minItems":1,"maxItems":2})",
       {"[1]", "[1,2]"},
       {"[]", "[1,2,3]"}});
}

TEST(JsonSchemaTest, Combinations) {
  Check({R"({"enum":["a",1,null,{"b":[true]}]})",
         {"\"a\"", "1", "null", R"({"b": [true]})"},
         {"\"b\"", "2", "{}"}});
  Check({R"({"type":"string","enum":["a",1],"minLength":1})", {"\"a\""}, {"1"}});
  Check({R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})",
         {"1", "\"a\""},
         {"\"ab\"", "true"}});
  Check(
      {R"({"allOf":[{"properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"b":{"type":"integer"},"a":{"minimum":3}}}]})",
       {R"({"a":3})", R"({"a":3,"b":1})"},
       {R"({"a":2})", "{}"}});
  Check(
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"next":{"$ref":"#/$defs/n"}},"required":["v"]}},"$ref":"#/$defs/n"})",
       {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"},
       {R"({"next":{"v":2}})"}});
  Check(
      {R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"properties":{"k":{"const":"b"}},"required":["k"]}]})",
       {R"({"k":"a","x":1})", R"({"k":"b"})"},
       {R"({"k":"a"})", R"({"k":"c"})"}});
}

TEST(JsonSchemaTest, Names) {
  Check(
      {R"({"type":"object","propertyNames":{"pattern":"^[a-c]+$"},"additionalProperties":{"type":"integer"}})",
       {"{}", R"({"a":1,"cab":2})"},
       {R"({"d":1})", R"({"":1})", R"({"a":"x"})"}});
  Check(
      {R"({"type":"object","propertyNames":{"enum":["x","y"]},"properties":{"x":{"type":"null"},"z":true}})",
       {"{}", R"({"x":null})"},
       {R"({"z":1})", R"({"x":1})"}});
  Check(
      {R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"boolean"}})",
       {R"({"\u00e9":true})"},
       {R"({"a":1})"}});
}

TEST(JsonSchemaTest, FormatsOfNumbers) {
  Check({R"({"type":"integer","format":"int32"})",
         {"0", "-2147483648", "2147483647"},
         {"2147483648"}});
  Check({R"({"type":"number","format":"int64"})", {"12345678901"}, {"1.5"}});
  Check({R"({"type":"number","format":"double"})", {"1.5", "1e3"}, {"\"1\""}});
}

// Where a name stands twice, the last value counts; it is of the same schema as the first.
TEST(JsonSchemaTest, NamesThatStandTwice) {
  Check({R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1})",
         {R"({"a":1})", R"({"a":1,"a":2})"},
         {"{}"}});
  EXPECT_NE(SchemaError(R"({"type":"object","additionalProperties":true,"minProperties":2})")
                .find("'minProperties' asks for 2 members"),
            std::string::npos);
}

// The place and the keyword of what is not enforced, or makes no sense.
TEST(JsonSchemaTest, RefusesByPointerAndKeyword) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"a/b~c":{"not":{}}}})", "'#/properties/a~1b~0c': the keyword 'not'"},
      {R"({"items":{"if":{},"then":{}}})", "'#/items': the keyword 'if'"},
      {R"({"uniqueItems":true})", "'#': the keyword 'uniqueItems'"},
      {R"({"contains":{}})", "'contains'"},
      {R"({"dependentRequired":{}})", "'dependentRequired'"},
      {R"({"unevaluatedProperties":false})", "'unevaluatedProperties'"},
      {R"({"$dynamicRef":"#a"})", "'$dynamicRef'"},
      {R"({"anyOf":[{"type":"string"},{"surprise":1}]})", "'#/anyOf/1': the keyword 'surprise'"},
      {R"({"type":"text"})", "'#': the keyword 'type'"},
      {R"({"type":[]})", "'type'"},
      {R"({"$ref":"other.json"})", "'$ref' leads to 'other.json'"},
      {R"({"$ref":"#/$defs/none"})", "where there is nothing"},
      {R"({"$ref":"#"})", "refers to itself"},
      {R"({"items":[{"type":"string"}]})", "'items'"},
      {R"({"minLength":-1})", "'minLength'"},
      {R"({"minLength":1.5})", "'minLength'"},
      {R"({"minItems":1000000000})", "'minItems' asks for 1000000000"},
      {R"({"exclusiveMinimum":true})", "'exclusiveMinimum'"},
      {R"({"multipleOf":0.1})", "'multipleOf'"},
      {R"({"multipleOf":0})", "'multipleOf'"},
      {R"({"pattern":"(?=a)b"})", "'#': The pattern '(?=a)b'"},
      {R"({"type":"string","format":"idn-email"})", "'format'"},
      {R"({"type":"integer","format":"unix-time"})", "'format'"},
      {R"({"nullable":true})", "'nullable'"},
      {R"({"required":"a"})", "'required'"},
      {R"({"enum":3})", "'enum'"},
      {R"({"allOf":[]})", "'allOf'"},
      {R"({"properties":{"a":5}})", "'#/properties/a': a schema has to be"},
      {R"({"properties":{"a":{"$id":"x"}}})", "'$id'"},
      {R"({"oneOf":[{"type":"string"},{"maxLength":3}]})", "'oneOf' has schemas 0 and 1"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "'oneOf'"},
      {R"({"oneOf":[{"minimum":3},{"maximum":3}]})", "'oneOf'"},
      {R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]})", "'oneOf'"},
      {R"(false)", "Nothing satisfies"},
      {R"({"type":"string","enum":[1]})", "Nothing satisfies"},
      {R"({"minimum":3,"maximum":2})", "Nothing satisfies"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
       "Nothing satisfies"},
      {R"({"a":1,"a":2})", "has the key 'a' twice"},
      {R"([)", "is not valid JSON"},
      {R"(3)", "a schema has to be"}};
  for (const auto& [schema, sentence] : cases) {
    const std::string error = SchemaError(schema);
    EXPECT_NE(error.find(sentence), std::string::npos) << schema << "\n" << error;
  }
}

TEST(JsonSchemaTest, OneOfWhereOnlyOneCanHold) {
  const char* const schemas[] = {
      R"({"oneOf":[{"type":"integer"},{"type":"string"},{"type":["null","boolean"]}]})",
      R"({"oneOf":[{"const":1},{"enum":[2,"a"]}]})",
      R"({"oneOf":[{"const":1},{"minimum":2}]})",
      R"({"oneOf":[{"maximum":3},{"exclusiveMinimum":3}]})",
      R"({"oneOf":[{"type":"string","maxLength":3},{"type":"string","minLength":4}]})",
      R"({"oneOf":[{"type":"array","maxItems":1},{"type":"array","minItems":2}]})",
      R"({"type":"array","minItems":1,"oneOf":[{"prefixItems":[{"const":1}]},{"prefixItems":[{"const":2}]}]})",
      R"({"type":"object","oneOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"a":false}}]})",
      R"({"oneOf":[{"type":"object","properties":{"a":{}},"required":["a"],"additionalProperties":false},
          {"type":"object","properties":{"b":{}},"required":["b"]}, {"type":"object","properties":{"b":{},"a":{}},"required":["a"],"not-there":1}]})",
  };
  for (size_t i = 0; i + 1 < std::size(schemas); ++i)
    EXPECT_EQ(SchemaError(schemas[i]), "") << schemas[i];
  EXPECT_NE(SchemaError(schemas[std::size(schemas) - 1]).find("'not-there'"), std::string::npos);
}

// What is large or deep is refused or built, and soon: in less than a second even on a slow
// machine.
TEST(JsonSchemaTest, HostileSchemasCostLittle) {
  using Json = nlohmann::json;
  std::vector<std::string> schemas = {
      R"({"pattern":"^(a|b)*a(a|b){24}$"})",
      R"({"pattern":"((a{1,100}){1,100}){1,100}"})",
      R"({"maxLength":1000000000})",
      R"({"maxItems":1000000000})",
      R"({"type":"object","maxProperties":1000000000,"minProperties":1})",
      R"({"multipleOf":997})",
      R"({"allOf":[{"pattern":"a.{10}$"},{"pattern":"b.{11}$"},{"pattern":"c.{12}$"}]})",
      std::string(100000, '['),
      fmt::format("{{\"items\":{}", std::string(1000, '[')),
      R"({"minimum":1e400})",
      R"({"minimum":1e308,"maximum":-1e308})"};
  Json values = Json::array(), all_of = Json::array(), any_of = Json::array(),
       one_of = Json::array();
  for (int i = 0; i < 14000; ++i) values.push_back({{"a", {i}}});
  schemas.push_back(Json{{"enum", values}}.dump());
  for (int i = 0; i < 12; ++i) {
    any_of = Json::array();
    for (int j = 0; j < 4; ++j) any_of.push_back({{"required", {std::to_string(4 * i + j)}}});
    all_of.push_back({{"anyOf", any_of}});
  }
  schemas.push_back(Json{{"type", "object"}, {"allOf", all_of}}.dump());
  Json properties, required;
  for (int i = 0; i < 1000; ++i) properties[fmt::format("p{}", i)] = {{"maxLength", 10 + i}};
  schemas.push_back(Json{{"properties", properties}, {"additionalProperties", true}}.dump());
  schemas.push_back(Json{{"properties", properties}, {"maxProperties", 500}}.dump());
  for (int i = 0; i < 64; ++i)
    one_of.push_back({{"properties", {{"k", {{"oneOf", {{{"const", i}}, {{"const", -1 - i}}}}}}}},
                      {"required", {"k"}}});
  schemas.push_back(Json{{"type", "object"}, {"oneOf", one_of}}.dump());
  for (int i = 0; i < 20000; ++i) required.push_back(fmt::format("x{}", i));
  schemas.push_back(Json{{"required", required}}.dump());
  Json chain;
  for (int i = 0; i < 3000; ++i) {
    const std::string next = fmt::format("#/$defs/d{}", (i + 1) % 3000);
    chain[fmt::format("d{}", i)] = {{"anyOf", {{{"$ref", next}}, {{"type", "null"}}}}};
  }
  schemas.push_back(Json{{"$defs", chain}, {"$ref", "#/$defs/d0"}}.dump());
  for (const std::string& schema : schemas) {
    const auto start = std::clock();
    const std::string error = SchemaError(schema);
    EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 1.0) << schema.substr(0, 100) << error;
  }
}

TEST(JsonSchemaTest, MasksAgreeWithAccept) {
  const char* const schemas[] = {
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},"tags":{"type":"array","items":{"type":"string","maxLength":5}}},"required":["name"]})",
      "true",
      R"({"type":"object","additionalProperties":{"anyOf":[{"type":"number"},{"type":"null"},{"type":"array","items":{"type":"boolean"}}]}})",
      R"({"type":"array","items":{"type":"string","pattern":"^[A-Z][a-z]+ \\d{2,3}$"},"minItems":2})"};
  for (const char* schema : schemas) {
    const auto grammar = GrammarOfJsonSchema(schema);
    for (uint32_t seed = 0; seed < 3; ++seed) {
      bool ends = false;
      const std::string text = RandomAnswer(grammar, seed, 20, true, &ends);
      EXPECT_TRUE(!ends || nlohmann::json::accept(text)) << text;
    }
  }
}

}  // namespace
}  // namespace hillstar
