#include "tokenizer/answer_reader.h"

#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

using Kind = AnswerDelta::Kind;
using Deltas = std::vector<AnswerDelta>;

const std::vector<ToolDefinition> kTools = {{"weather", R"({"type": "object", "properties": {
       "city": {"type": "string"}, "days": {"type": "integer"}, "share": {"type": "number"},
       "unit": {"enum": ["C", "F"]}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
       "id": {"type": ["string", "integer"]}, "now": {"type": "boolean"},
       "place": {"type": "object"}, "tags": {"type": "array"}}})"},
                                            {"now", ""},
                                            {"broken", "{"}};

AnswerReaderOptions Options(bool starts_thinking, bool reads_calls = true) {
  return {.starts_thinking = starts_thinking, .reads_calls = reads_calls, .tools = kTools};
}

// Checks what holds for every stream, and joins the pieces.
Deltas Joined(const Deltas& pieces) {
  Deltas joined;
  int64_t num_begun = 0, num_ended = 0;
  for (const AnswerDelta& piece : pieces) {
    EXPECT_EQ(ValidUtf8Prefix(piece.text), piece.text.size()) << piece.text;
    const bool is_of_call = piece.kind != Kind::kReasoning && piece.kind != Kind::kContent;
    if (piece.kind == Kind::kCallBegin) ++num_begun;
    EXPECT_EQ(piece.call, is_of_call ? num_begun - 1 : -1);
    EXPECT_EQ(num_begun - num_ended, is_of_call ? 1 : 0) << "calls come one after the other";
    if (piece.kind == Kind::kCallEnd) ++num_ended;
    AppendDelta(piece.kind, piece.call, piece.text, &joined);
  }
  EXPECT_EQ(num_begun, num_ended);
  return joined;
}

struct Outcome {
  std::string text;  // "[R why][C text][f {"a":1}]"
  bool was_cut = false;
  bool operator==(const Outcome&) const = default;
};
void PrintTo(const Outcome& outcome, std::ostream* out) {
  *out << outcome.text << (outcome.was_cut ? " cut" : "");
}

Outcome OutcomeOf(const Deltas& pieces, const AnswerReader& reader) {
  Outcome outcome{"", reader.was_cut()};
  int64_t num_calls = 0;
  std::string arguments;
  for (const AnswerDelta& delta : Joined(pieces)) {
    switch (delta.kind) {
      case Kind::kReasoning: outcome.text += "[R " + delta.text + "]"; break;
      case Kind::kContent: outcome.text += "[C " + delta.text + "]"; break;
      case Kind::kCallBegin:
        outcome.text += "[" + delta.text + " ";
        arguments.clear();
        ++num_calls;
        break;
      case Kind::kCallArguments:
        outcome.text += delta.text;
        arguments += delta.text;
        break;
      case Kind::kCallEnd:
        outcome.text += "]";
        EXPECT_TRUE(nlohmann::json::parse(arguments, nullptr, false).is_object()) << arguments;
        break;
    }
  }
  EXPECT_EQ(num_calls, reader.num_calls());
  return outcome;
}

Outcome ReadCut(const std::string& text, const AnswerReaderOptions& options,
                const std::vector<size_t>& cuts) {
  AnswerReader reader(options);
  Deltas all;
  const auto add = [&all](const Deltas& deltas) {
    all.insert(all.end(), deltas.begin(), deltas.end());
  };
  size_t begin = 0;
  for (const size_t cut : cuts) {
    add(reader.Push(std::string_view(text).substr(begin, cut - begin)));
    begin = cut;
  }
  add(reader.Push(std::string_view(text).substr(begin)));
  add(reader.Finish());
  return OutcomeOf(all, reader);
}

std::vector<size_t> CutsEvery(size_t num_bytes, size_t size) {
  std::vector<size_t> cuts;
  for (size_t cut = num_bytes; cut < size; cut += num_bytes) cuts.push_back(cut);
  return cuts;
}

void ExpectHoweverCut(const std::string& text, const AnswerReaderOptions& options,
                      const Outcome& expected) {
  SCOPED_TRACE(text.substr(0, 400));
  EXPECT_EQ(ReadCut(text, options, {}), expected);
  for (const size_t num_bytes : {1, 2, 3, 7, 64}) {
    EXPECT_EQ(ReadCut(text, options, CutsEvery(num_bytes, text.size())), expected)
        << "by " << num_bytes;
  }
  for (size_t cut = 1; cut < text.size(); ++cut) {
    const Outcome got = ReadCut(text, options, {cut});
    if (got == expected) continue;
    ADD_FAILURE() << "cut at " << cut << ": " << got.text;
    return;
  }
}

struct Case {
  const char* text;
  const char* expected;
  bool was_cut = false;
};
void ExpectAll(std::initializer_list<Case> cases, bool starts_thinking) {
  for (const Case& c : cases) {
    ExpectHoweverCut(c.text, Options(starts_thinking), {c.expected, c.was_cut});
  }
}

// `arguments` of a call of `weather`: "key=value" each.
std::string Weather(std::initializer_list<const char*> arguments) {
  std::string text = "<tool_call>weather";
  for (const std::string argument : arguments) {
    const size_t equals = argument.find('=');
    text += "<arg_key>" + argument.substr(0, equals) + "</arg_key><arg_value>" +
            argument.substr(equals + 1) + "</arg_value>";
  }
  return text + "</tool_call>";
}

TEST(AnswerReaderTest, ReasoningContentAndCalls) {
  ExpectAll(
      {{"why</think>answer", "[R why][C answer]"},
       {"why</think>\nLet me see.\n<tool_call>now</tool_call>", "[R why][C \nLet me see.][now {}]"},
       {"why</think><tool_call>now</tool_call>", "[R why][now {}]"},
       {"why</think>\n\n<tool_call>now</tool_call>\n", "[R why][now {}]"},
       {"a</think>b</think>c", "[R a][C b\nc]"},
       {"a<tool_call", "[R a<tool_call]"},
       {"<</think><<tool_call>now</tool_call><", "[R <][C <][now {}][C <]"},
       {"中</think>文<tool_call>now</tool_call>", "[R 中][C 文][now {}]"}},
      true);
  ExpectAll({{"", ""},
             {"answer \n", "[C answer \n]"},
             {"x < y </ z <too", "[C x < y </ z <too]"},
             {"<think>why</think>a<tool_call>now</tool_call>", "[R why][C a][now {}]"},
             {"<tool_call>now</tool_call><think>so</think><tool_call>now</tool_call>",
              "[now {}][R so][now {}]"}},
            false);
}

TEST(AnswerReaderTest, ArgumentsAreWrittenInTheirTypes) {
  const std::pair<std::string, const char*> cases[] = {
      {Weather({"city=Paris"}), R"({"city":"Paris"})"},
      {Weather({"city=12", "days=12", "share=0.50", "unit=C"}),
       R"({"city":"12","days":12,"share":0.50,"unit":"C"})"},
      {Weather({"days= 3\n", "now=True", "id=7", "note=null"}),
       R"({"days":3,"now":true,"id":7,"note":null})"},
      {Weather({"days=three", "now=perhaps", "id=7a", "note=nullify"}),
       R"({"days":"three","now":"perhaps","id":"7a","note":"nullify"})"},
      {Weather({R"(place={ "lat" : 1.0, "name": "a b" })", "tags=[ \"x\" ,\n2]"}),
       R"({"place":{"lat":1.0,"name":"a b"},"tags":["x",2]})"},
      {Weather({"place={\"lat\":", "tags={}"}), R"({"place":"{\"lat\":","tags":"{}"})"},
      {Weather({"city=  indented\n\n", "note=  x", "note2=  "}),
       R"({"city":"  indented\n\n","note":"  x","note2":"  "})"},
      {Weather({"city=a\"b\\c\x01\t🙂中", "note=\"\\🙂"}),
       "{\"city\":\"a\\\"b\\\\c\\u0001\\t🙂中\",\"note\":\"\\\"\\\\🙂\"}"},
      {Weather({"city=", "days=", "note="}), R"({"city":"","days":"","note":""})"},
      {Weather({"other=1.5", "more=x", "most={\"a\":[]}", "word=true", "last=-"}),
       R"({"other":1.5,"more":"x","most":{"a":[]},"word":true,"last":"-"})"},
      {Weather({"city=a", "city=b", "days=1", "days=2"}), R"({"city":"a","days":1})"},
      {Weather({"=x", "ключ\"=1"}), R"({"":"x","ключ\"":1})"}};
  for (const auto& [text, arguments] : cases) {
    ExpectHoweverCut(text, Options(false), {std::string("[weather ") + arguments + "]"});
  }
}

TEST(AnswerReaderTest, UnknownToolsAndBrokenSchemasLeaveItToTheText) {
  for (const std::string name : {"now", "broken", "unheard_of.tool-2"}) {
    ExpectHoweverCut("<tool_call>" + name +
                         "<arg_key>a</arg_key><arg_value>1</arg_value>"
                         "<arg_key>b</arg_key><arg_value>x1</arg_value></tool_call>",
                     Options(false), {"[" + name + R"( {"a":1,"b":"x1"}])"});
  }
}

TEST(AnswerReaderTest, BlanksAroundTheParts) {
  ExpectAll({{"<tool_call>now\n</tool_call>", "[now {}]"},
             {"<tool_call>\n now \n\n</tool_call>", "[now {}]"},
             {"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n"
              "<arg_key> days\n</arg_key>\n<arg_value>\n2\n</arg_value>\n</tool_call>\n",
              R"([weather {"city":"Bonn","days":2}])"}},
            false);
}

TEST(AnswerReaderTest, TextAroundCalls) {
  ExpectAll(
      {{"a \n<tool_call>now</tool_call> \n <tool_call>now</tool_call>\n", "[C a][now {}][now {}]"},
       {"<tool_call>now</tool_call>\n\nb \n", "[now {}][C \n\nb \n]"},
       {"a\n<tool_call>now</tool_call>\nb\n<tool_call>now</tool_call>c",
        "[C a][now {}][C \nb][now {}][C c]"},
       {"a\n<tool_call> </tool_call>", "[C a\n<tool_call> </tool_call>]"},
       {"a</tool_call><arg_key>", "[C a</tool_call><arg_key>]"}},
      false);
}

TEST(AnswerReaderTest, WhatIsNoCallIsContent) {
  for (const char* text : {"<tool_call></tool_call>",
                           "<tool_call>\n</tool_call>",
                           "<tool_call><arg_key>a</arg_key>",
                           "<tool_call>a b</tool_call>",
                           "Write <tool_call> to call a tool.",
                           "<tool_call>a<b</tool_call>",
                           "<tool_call></think",
                           "<tool_call>f<arg_value>1</arg_value></tool_call>",
                           "<tool_call>",
                           "<tool_call>get_wea",
                           "<tool_call>get_weather</tool_ca",
                           "<tool_call>f<",
                           "<tool_call>{",
                           "<tool_call>{}</tool_call>",
                           "<tool_call>{\"name\":1}</tool_call>",
                           "<tool_call>{\"name\":\"\"}</tool_call>",
                           "<tool_call>{\"name\":\"a b\"}</tool_call>",
                           "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
                           "<tool_call>{\"name\":\"f\",\"arguments\":\"x\"}</tool_call>",
                           "<tool_call>{\"name\":\"f\"]</tool_call>",
                           "<tool_call>{\"name\":\"f\"</tool_call>",
                           "<tool_call>{\"name\":\"f\",\"arguments\":{\"a",
                           "<tool_call>[1]</tool_call> x"}) {
    ExpectHoweverCut(text, Options(false), {std::string("[C ") + text + "]"});
  }
  const std::string blanks(600, ' '), name(300, 'n');
  for (const std::string& text : {"<tool_call>" + blanks + "now</tool_call>",
                                  "<tool_call>" + blanks + "{\"name\":\"f\"}</tool_call>",
                                  "<tool_call>" + name + "</tool_call>"}) {
    ExpectHoweverCut(text, Options(false), {"[C " + text + "]"});
  }
}

TEST(AnswerReaderTest, ACallBehindWhatIsNone) {
  ExpectAll({{"<tool_call><tool_call>now</tool_call>", "[C <tool_call>][now {}]"},
             {"<tool_call>a b <tool_call>now</tool_call>", "[C <tool_call>a b][now {}]"},
             {"<tool_call></tool_call>\n<tool_call>now</tool_call>",
              "[C <tool_call></tool_call>][now {}]"},
             {"<tool_call>x<think>y</think>z", "[C <tool_call>x][R y][C z]"},
             {"<tool_call>{\"a\": <tool_call>now</tool_call>", "[C <tool_call>{\"a\":][now {}]"},
             {"<tool_call>{\"a<tool_call>now</tool_call>", "[C <tool_call>{\"a][now {}]"}},
            false);
}

TEST(AnswerReaderTest, TagsInsideAValueAreText) {
  ExpectAll(
      {{"<tool_call>weather<arg_key>city</arg_key><arg_value></think><tool_call>x</"
        "tool_call><think>"
        "</arg_value</arg_key><arg_value></arg_value></tool_call>",
        R"([weather {"city":"</think><tool_call>x</tool_call><think></arg_value</arg_key><arg_value>"}])"},
       {"<tool_call>weather<arg_key>days</arg_key><arg_value><</arg_value></tool_call>",
        R"([weather {"days":"<"}])"}},
      false);
}

TEST(AnswerReaderTest, PartsThatAreMissingOrInTheWay) {
  ExpectAll(
      {{"<tool_call>weather<arg_key>city<arg_value>Rome</arg_value></tool_call>",
        R"([weather {"city":"Rome"}])"},
       {"<tool_call>weather<arg_key>city</arg_key></tool_call>", "[weather {}]"},
       {"<tool_call>weather<arg_key>city</tool_call>", "[weather {}]"},
       {"<tool_call>weather<arg_key>unit</arg_key><arg_key>city</arg_key><arg_value>Rome</"
        "arg_value>"
        "</tool_call>",
        R"([weather {"city":"Rome"}])"},
       {"<tool_call>weather<arg_key>city</arg_key> is <arg_value>Rome</arg_value></arg_value>, so"
        "<arg_key>days</arg_key></arg_key><arg_value>1</arg_value> \n</tool_call> x",
        R"([weather {"city":"Rome","days":1}][C  is , so 
 x])"},
       {"<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value><tool_call>now"
        "</tool_call>",
        R"([weather {"city":"Rome"}][now {}])"}},
      false);
}

TEST(AnswerReaderTest, CallsThatAreNotClosed) {
  ExpectAll(
      {{"<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>",
        R"([weather {"city":"Rome"}])"},
       {"<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>\n</tool_",
        R"([weather {"city":"Rome"}])"},
       {"<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>\n\nSo be it.",
        "[weather {\"city\":\"Rome\"}][C \n\nSo be it.]"},
       {"<tool_call>weather<arg_key>city</arg_key><arg_value>Ro", R"([weather {"city":"Ro"}])",
        true},
       {"<tool_call>weather<arg_key>city</arg_key><arg_value>a\\</arg_v",
        R"([weather {"city":"a\\</arg_v"}])", true},
       {"<tool_call>weather<arg_key>days</arg_key><arg_value>1", R"([weather {"days":1}])", true},
       {"<tool_call>weather<arg_key>tags</arg_key><arg_value>[1,", R"([weather {"tags":"[1,"}])",
        true},
       {"<tool_call>weather<arg_key>days</arg_key><arg_value>", R"([weather {"days":""}])", true},
       {"<tool_call>weather<arg_key>days</arg_key>", "[weather {}]", true},
       {"<tool_call>weather<arg_key>da", "[weather {}]", true},
       {"<tool_call>{\"name\":\"now\"}", "[now {}]"}},
      false);
}

TEST(AnswerReaderTest, CallsAsJsonObjects) {
  ExpectAll({{"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"days\": 1.0, \"city\": \"a } "
              "\\\" b\"}}\n"
              "</tool_call>\n<tool_call>{\"arguments\":{},\"name\":\"now\"}</tool_call>",
              R"([weather {"days":1.0,"city":"a } \" b"}][now {}])"},
             {R"(<tool_call>{"name":"f","arguments":"{\"a\": 1}"}</tool_call>)", R"([f {"a":1}])"},
             {R"(<tool_call>{"name":"f","parameters":{"b":2,"a":1}}</tool_call>)",
              R"([f {"b":2,"a":1}])"},
             {R"(<tool_call>{"name":"f","arguments":null}</tool_call>)", "[f {}]"},
             {R"(<tool_call>{"name":"f","arguments":[]}</tool_call>)", "[f {}]"},
             {R"(<tool_call>{"name":"f","arguments":""}</tool_call>)", "[f {}]"},
             {R"(<tool_call>{"name":"f","arguments":{"x":"</tool_call>"}} ok</tool_call>)",
              R"([f {"x":"</tool_call>"}][C  ok])"},
             {R"(<tool_call>{"name":"f"}<tool_call>{"name":"g"}</tool_call>)", "[f {}][g {}]"}},
            false);
}

TEST(AnswerReaderTest, CallsInClosedReasoningAreReasoning) {
  ExpectAll({{"I write <tool_call>now</tool_call> then.</think>x",
              "[R I write <tool_call>now</tool_call> then.][C x]"},
             {"<tool_call>now</tool_call></think>x", "[R <tool_call>now</tool_call>][C x]"},
             {"<tool_call>weather<arg_key>city</arg_key><arg_value>a</think>x",
              "[R <tool_call>weather<arg_key>city</arg_key><arg_value>a][C x]"},
             {"so <tool_call>a</think><tool_call>now</tool_call>", "[R so <tool_call>a][now {}]"},
             {"<tool_call>now</tool_call>\n<tool_call>now</tool_call>, no</think>",
              "[R <tool_call>now</tool_call>\n<tool_call>now</tool_call>, no]"}},
            true);
}

TEST(AnswerReaderTest, CallsThatEndReasoningWithoutItsEndAreCalls) {
  ExpectAll(
      {{"why\n<tool_call>now</tool_call>", "[R why\n][now {}]"},
       {"why<tool_call>now</tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call> \n",
        "[R why][now {}][f {}]"},
       {"<tool_call>weather<arg_key>city</arg_key><arg_value><think>中</arg_value></tool_call>",
        R"([weather {"city":"<think>中"}])"},
       {"as in <tool_call>now</tool_call> or <tool_call>now</tool_call>",
        "[R as in <tool_call>now</tool_call> or ][now {}]"},
       {"<tool_call>a<tool_call>now</tool_call>", "[R <tool_call>a][now {}]"},
       {"<tool_call>now</tool_call><tool_call>now", "[R <tool_call>now</tool_call><tool_call>now]"},
       {"<tool_call>now</tool_call>.", "[R <tool_call>now</tool_call>.]"},
       {"<tool_call>now</tool_call></thin", "[R <tool_call>now</tool_call></thin]"},
       {"<tool_call>weather<arg_key>days</arg_key><arg_value>1</arg_value>",
        "[R <tool_call>weather<arg_key>days</arg_key><arg_value>1</arg_value>]"},
       {"<tool_call>now</tool_call><think>x<tool_call>now</tool_call>",
        "[R <tool_call>now</tool_call><think>x][now {}]"}},
      true);
}

TEST(AnswerReaderTest, WithoutToolsTagsAreContent) {
  const std::string text = "a \n<tool_call>now</tool_call> \n";
  ExpectHoweverCut(text, Options(false, false), {"[C " + text + "]"});
  ExpectHoweverCut("r<tool_call>now</tool_call></think>" + text, Options(true, false),
                   {"[R r<tool_call>now</tool_call>][C " + text + "]"});
}

// Where no tools are given it says what ThinkSplitter says.
TEST(AnswerReaderTest, ReasoningIsToldApartAsThinkSplitterDoes) {
  for (const char* text :
       {"why</think>answer", "<think>why</think>answer", "a<think>b</think>c", "unfinished </thi",
        "x < y </ z <thi", "<</think>>", "</</think></think>", "a</think>b</think>c",
        "a</think>b\n</think>c", "</think>a</think></think>", "a<think>b</think></think>c<think>d",
        "</<think>why</think><"}) {
    for (const bool thinking : {false, true}) {
      ThinkSplitter splitter(thinking);
      ThinkSplitter::Piece all = splitter.Push(text);
      const ThinkSplitter::Piece last = splitter.Finish();
      for (const bool reads_calls : {false, true}) {
        const Answer answer = ReadAnswer(text, Options(thinking, reads_calls));
        EXPECT_EQ(answer.reasoning, all.reasoning + last.reasoning) << text;
        EXPECT_EQ(answer.content, all.content + last.content) << text;
      }
    }
  }
}

TEST(AnswerReaderTest, KeepsBackNoMoreThanItHasTo) {
  AnswerReader reader(Options(true));
  const auto push = [&](const char* text) {
    std::string all;
    for (const AnswerDelta& delta : reader.Push(text)) all += "[" + delta.text + "]";
    return all;
  };
  EXPECT_EQ(push("abc</th"), "[abc]");
  EXPECT_EQ(push("x <tool_call> y"), "[</thx ]") << "y may be a name";
  EXPECT_EQ(push(" z"), "[<tool_call> y z]") << "it was none";
  EXPECT_EQ(push("</think>Hello "), "[Hello]");
  EXPECT_EQ(push("you\n<tool_call>wea"), "[ you]");
  EXPECT_EQ(push("ther<arg_key>"), "[weather]");
  EXPECT_EQ(push("city</arg_key><arg_value>Par"), "[{\"city\":\"Par]");
  EXPECT_EQ(push("is</"), "[is]");
  EXPECT_EQ(push("p></arg_value><arg_key>days</arg_key><arg_value>1"), "[</p>\",\"days\":]");
  EXPECT_EQ(push("2</arg_value>"), "[12]");
  EXPECT_EQ(push("<arg_key>note</arg_key><arg_value>None"), "[,\"note\":\"None]");
  EXPECT_EQ(push("</arg_value></tool_call>"), "[\"}][]");
  EXPECT_EQ(push("<tool_call>a"), "");
  EXPECT_EQ(push(" b"), "[<tool_call>a b]");
}

// Nothing is left of an answer for the next, and none for another reader.
TEST(AnswerReaderTest, AMalformedCallLeavesNothingBehind) {
  const Answer first = ReadAnswer("<tool_call>None<arg_key><arg_key></tool_", Options(false));
  ASSERT_EQ(first.tool_calls.size(), 1u);
  const Answer second = ReadAnswer("<tool_call>now</tool_call>", Options(false));
  ASSERT_EQ(second.tool_calls.size(), 1u);
  EXPECT_EQ(second.tool_calls[0].name, "now");
  EXPECT_EQ(second.tool_calls[0].arguments_json, "{}");
}

TEST(AnswerReaderTest, BytesThatAreNoUtf8) {
  ExpectHoweverCut("a\xFF\xE6\xAD<tool_call>weather<arg_key>city</arg_key><arg_value>\xC3(\xE6",
                   Options(false), {"[C a��][weather {\"city\":\"�(�\"}]", true});
  using std::string_literals::operator""s;
  ExpectHoweverCut("a\0b<tool_call>weather<arg_key>city</arg_key><arg_value>\0</arg_value>"s,
                   Options(false), {"[C a\0b][weather {\"city\":\"\\u0000\"}]"s});
}

TEST(AnswerReaderTest, LargeValues) {
  std::string value;
  while (value.size() < 1'000'000) value += "line of \"code\" < 中 </arg_value </tool_call>\n";
  const std::string escaped = nlohmann::json(value).dump();
  const std::string list = "[\"" + std::string(300'000, 'x') + "\"]";
  const std::string text = "<tool_call>weather<arg_key>city</arg_key><arg_value>" + value +
                           "</arg_value><arg_key>tags</arg_key><arg_value>" + list +
                           "</arg_value></tool_call>";
  const Outcome expected{"[weather {\"city\":" + escaped + ",\"tags\":" + list + "}]"};
  EXPECT_TRUE(ReadCut(text, Options(false), {}) == expected);
  EXPECT_TRUE(ReadCut(text, Options(false), CutsEvery(5, text.size())) == expected);
  EXPECT_TRUE(ReadCut(text, Options(true), CutsEvery(4096, text.size())) == expected);
}

std::string Repeat(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

// Texts that would take quadratic time if they were read again and again. 40,000 pieces then took
// 4 s of a processor's time; they take 0.05 s.
TEST(AnswerReaderTest, HostileTextsTakeNoLonger) {
  constexpr double kMaxSeconds = 2;
  for (const char* piece :
       {"<tool_call>", "<tool_call>{", "<tool_call>{\"x", "<tool_call>{\"\\\"", "<tool_call>f",
        "<tool_call>f</tool_call>", "<tool_call>f</tool_call><think>", "<", "</think><think>",
        "<tool_call>f<arg_key>", "<arg_key>k</arg_key><arg_value>v</arg_value>", " ",
        "<tool_call>{\"name\":\"f\"}", "[", "<tool_call>f<arg_key>a</arg_key><arg_value>[["}) {
    for (const std::string start : {"", "<tool_call>{\""}) {
      for (const bool thinking : {false, true}) {
        SCOPED_TRACE(start + piece);
        const std::string few = start + Repeat(piece, 1000);
        const Outcome whole = ReadCut(few, Options(thinking), {});
        EXPECT_TRUE(ReadCut(few, Options(thinking), CutsEvery(11, few.size())) == whole);
        const std::string many = start + Repeat(piece, 40'000);
        const std::clock_t begin = std::clock();
        ReadAnswer(many, Options(thinking));
        EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, kMaxSeconds);
      }
    }
  }
}

// Answers put together at random, the same in every run.
TEST(AnswerReaderTest, RandomTextsReadTheSameHoweverCut) {
  const std::string parts[] = {"<think>",
                               "</think>",
                               "<tool_call>",
                               "<tool_call>",
                               "</tool_call>",
                               "<arg_key>",
                               "</arg_key>",
                               "<arg_value>",
                               "</arg_value>",
                               "weather",
                               "now",
                               "city",
                               "days",
                               "note",
                               "tags",
                               " ",
                               "\n",
                               "<",
                               "</",
                               ">",
                               "中",
                               "🙂",
                               "\"",
                               "\\",
                               "{",
                               "}",
                               "[1]",
                               "12",
                               "null",
                               "text ",
                               "{\"name\":\"now\"",
                               ",\"arguments\":{\"a\":[1]}",
                               "\x01",
                               "\xE4",
                               "<tool_call>weather<arg_key>city</arg_key><arg_value>",
                               "<tool_call>now</tool_call>",
                               "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>"};
  std::mt19937 random(1);
  for (int round = 0; round < 6000; ++round) {
    std::string text;
    const size_t num_parts = 1 + random() % 20;
    for (size_t i = 0; i < num_parts; ++i) text += parts[random() % std::size(parts)];
    const AnswerReaderOptions options = Options(random() % 2 == 0, random() % 8 != 0);
    const Outcome whole = ReadCut(text, options, {});
    std::vector<size_t> cuts;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if (random() % 4 == 0) cuts.push_back(cut);
    }
    ASSERT_EQ(ReadCut(text, options, cuts), whole) << text;
    ASSERT_EQ(ReadCut(text, options, CutsEvery(1, text.size())), whole) << text;
  }
}

TEST(AnswerTest, IsBuiltOfDeltas) {
  const Answer answer = ReadAnswer(
      "why</think>Look:<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value>"
      "</tool_call><tool_call>now</tool_call>",
      Options(true));
  EXPECT_EQ(answer.reasoning, "why");
  EXPECT_EQ(answer.content, "Look:");
  ASSERT_EQ(answer.tool_calls.size(), 2u);
  EXPECT_EQ(answer.tool_calls[0].name, "weather");
  EXPECT_EQ(answer.tool_calls[0].arguments_json, R"({"city":"Rome"})");
  EXPECT_EQ(answer.tool_calls[1].name, "now");
  EXPECT_EQ(answer.tool_calls[1].arguments_json, "{}");
}

}  // namespace
}  // namespace hillstar
