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

TEST(JsonSchemaTest, RefusesByPointerAndKeyword) {
  EXPECT_NE(
      SchemaError(R"({"properties":{"a":{"not":{}}}})").find("'#/properties/a': the keyword 'not'"),
      std::string::npos);
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
