#include "grammar/grammar_test_answers.h"

namespace hillstar {
namespace {

constexpr const char* kWeather =
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7},)"
    R"("unit":{"enum":["C","F"]},"where":{"type":"object","properties":{"lat":{"type":"number"},"note":{"type":"string"}},"required":["lat"]},)"
    R"("hint":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["city"]})";

std::vector<ToolSpec> Tools() {
  return {{"weather", kWeather},
          {"now", ""},
          {"wea", "{}"},
          {"no-args", R"({"type":"object","properties":{}})"}};
}

// A call's text as tokens, its tags as added tokens.
std::vector<int32_t> Ids(const std::string& text) {
  return PocketTokenizer().Encode(text, AddedTokens::kParse);
}
std::string Argument(const std::string& name, const std::string& value) {
  return "<arg_key>" + name + "</arg_key><arg_value>" + value + "</arg_value>";
}
std::string Call(const std::string& name, const std::string& arguments) {
  return "<tool_call>" + name + arguments + "</tool_call>";
}

class ToolCallsTest : public testing::Test {
 protected:
  bool Takes(const std::string& text) { return TakesIds(grammar_, Ids(text)); }
  void Use(ToolCallRule rule, bool parallel) {
    grammar_ = GrammarOfToolCalls(Tools(), rule, parallel, PocketTokenizer());
  }
  std::shared_ptr<const Grammar> grammar_ =
      GrammarOfToolCalls(Tools(), ToolCallRule::kRequired, true, PocketTokenizer());
};

TEST_F(ToolCallsTest, CallsWithAndWithoutArguments) {
  EXPECT_TRUE(Takes(Call("now", "")));
  EXPECT_TRUE(Takes(Call("wea", "")));
  EXPECT_TRUE(Takes(Call("no-args", "")));
  EXPECT_TRUE(Takes(Call("weather", Argument("city", "Paris"))));
  EXPECT_TRUE(
      Takes(Call("weather", Argument("city", "") + Argument("days", "7") + Argument("unit", "C"))));
  EXPECT_TRUE(Takes(Call("weather", Argument("city", "\"a\nb\" <b></b> 日本 \\") +
                                        Argument("where", R"({"lat": 1.5, "note": "x < y"})"))));
  EXPECT_FALSE(Takes(Call("weather", "")));
  EXPECT_FALSE(Takes(Call("weather", Argument("days", "7") + Argument("city", "x"))));
  EXPECT_FALSE(Takes(Call("weather", Argument("city", "x") + Argument("days", "8"))));
  EXPECT_FALSE(Takes(Call("weather", Argument("city", "x") + Argument("unit", "\"C\""))));
  EXPECT_FALSE(Takes(Call("weather", Argument("city", "x") + Argument("other", "1"))));
  EXPECT_FALSE(Takes(Call("other", "")));
  EXPECT_FALSE(Takes(Call("now", Argument("city", "x"))));
  EXPECT_FALSE(Takes("<tool_call>now"));
}

// A reader takes the text of an argument of several types for JSON where it is.
TEST_F(ToolCallsTest, TextsThatWouldBeReadAsOtherTypesAreNone) {
  const auto hint = [&](const char* value) {
    return Takes(Call("weather", Argument("city", "x") + Argument("hint", value)));
  };
  EXPECT_TRUE(hint("new york"));
  EXPECT_TRUE(hint("nullify"));
  EXPECT_TRUE(hint("12"));
  EXPECT_TRUE(hint("null"));
  EXPECT_FALSE(hint(" null "));
  // Schemas that a reader does not look into: it takes what it can for JSON.
  const std::vector<ToolSpec> tools = {
      {"f", R"({"allOf":[{"type":"object","properties":{"a":{"type":"string"}}}]})"}};
  grammar_ = GrammarOfToolCalls(tools, ToolCallRule::kRequired, false, PocketTokenizer());
  EXPECT_TRUE(Takes(Call("f", Argument("a", "text"))));
  EXPECT_FALSE(Takes(Call("f", Argument("a", "12"))));
  EXPECT_FALSE(Takes(Call("f", Argument("a", "\n[1]"))));
  EXPECT_FALSE(Takes(Call("f", Argument("a", "false"))));
}

TEST_F(ToolCallsTest, TheClosingTagStandsNowhereWithinAValue) {
  const auto takes = [&](const std::string& city) {
    // The tags within the value as text.
    std::vector<int32_t> ids = Ids("<tool_call>weather<arg_key>city</arg_key><arg_value>");
    for (const int32_t id : PocketTokenizer().Encode(city, AddedTokens::kAsText)) ids.push_back(id);
    for (const int32_t id : Ids("</arg_value></tool_call>")) ids.push_back(id);
    return TakesIds(grammar_, ids);
  };
  EXPECT_TRUE(takes("</arg_value"));
  EXPECT_TRUE(takes("<</arg_key></tool_call>"));
  EXPECT_FALSE(takes("</arg_value>"));
  EXPECT_FALSE(takes("a <</arg_value> b"));
  // Nor within JSON.
  const std::string note = R"({"lat": 1, "note": ")";
  std::vector<int32_t> ids =
      Ids("<tool_call>weather" + Argument("city", "x") + "<arg_key>where</arg_key><arg_value>");
  for (const int32_t id : PocketTokenizer().Encode(note + "</arg_value>", AddedTokens::kAsText))
    ids.push_back(id);
  EXPECT_FALSE(TakesIds(grammar_, ids));
}

TEST_F(ToolCallsTest, OneCallOrMore) {
  const std::string two = Call("now", "") + Call("wea", "");
  EXPECT_TRUE(Takes(two));
  EXPECT_FALSE(Takes(""));
  EXPECT_FALSE(Takes("text"));
  Use(ToolCallRule::kRequired, false);
  EXPECT_FALSE(Takes(two));
  EXPECT_TRUE(Takes(Call("now", "")));
}

TEST_F(ToolCallsTest, TextBeforeCallsOnlyWhereTheyAreNotRequired) {
  Use(ToolCallRule::kAuto, true);
  EXPECT_TRUE(Takes(""));
  EXPECT_TRUE(Takes("Hello, <b>world</b>! 日本 \"x\"\n"));
  EXPECT_TRUE(Takes("Let me see." + Call("now", "") + Call("now", "")));
  EXPECT_TRUE(Takes("</think>\nyes"));
  EXPECT_FALSE(Takes("Let me see." + Call("weather", "")));
  EXPECT_FALSE(Takes(Call("now", "") + "and more"));
  EXPECT_FALSE(TakesIds(grammar_, PocketTokenizer().Encode("a <tool_call>", AddedTokens::kAsText)));
  EXPECT_FALSE(Takes("x<|user|>"));
}

TEST_F(ToolCallsTest, MasksAgreeWithAccept) {
  for (const ToolCallRule rule : {ToolCallRule::kAuto, ToolCallRule::kRequired}) {
    Use(rule, true);
    bool ends = false;
    for (uint32_t seed = 0; seed < 3; ++seed) RandomAnswer(grammar_, seed, 15, true, &ends);
  }
}

TEST_F(ToolCallsTest, FurtherArguments) {
  const std::vector<ToolSpec> tools = {
      {"set",
       R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})"}};
  grammar_ = GrammarOfToolCalls(tools, ToolCallRule::kRequired, false, PocketTokenizer());
  EXPECT_TRUE(
      Takes(Call("set", Argument("a", "1") + Argument("b", "text") + Argument("aa", "12"))));
  EXPECT_FALSE(Takes(Call("set", Argument("a", "text"))));
  EXPECT_FALSE(Takes(Call("set", Argument("b c", "text"))));
}

TEST_F(ToolCallsTest, SaysWhichToolIsWrong) {
  const auto error = [](const ToolSpec& tool) {
    return ErrorOf([&] {
      GrammarOfToolCalls(std::vector{tool}, ToolCallRule::kAuto, true, PocketTokenizer());
    });
  };
  EXPECT_NE(error({"a b", ""}).find("'a b'"), std::string::npos);
  EXPECT_NE(error({"", ""}), "");
  EXPECT_NE(error({"f", "{"}).find("The schema of the tool 'f'"), std::string::npos);
  EXPECT_NE(error({"f", R"({"properties":{"x":{"not":{}}}})"}).find("'#/properties/x'"),
            std::string::npos);
  EXPECT_NE(error({"f", R"({"properties":{"<x>":{}}})"}).find("'<x>'"), std::string::npos);
  EXPECT_NE(error({"f", R"({"type":"string"})"}), "");
  EXPECT_NE(ErrorOf([] { GrammarOfToolCalls({}, ToolCallRule::kAuto, true, PocketTokenizer()); }),
            "");
}

}  // namespace
}  // namespace hillstar
