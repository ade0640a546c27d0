// What a stream adds up to is what the whole answer says, and what `hillstar run` prints: content,
// reasoning, tool calls and usage, wherever tokens cut the text.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/run.h"
#include "server/fake_reply.h"

namespace hillstar {
namespace {

struct Result {
  std::string content, reasoning, finish;
  std::vector<std::pair<std::string, std::string>> calls;
  int64_t prompt_tokens = 0, completion_tokens = 0;
  bool operator==(const Result&) const = default;
};

void PrintTo(const Result& result, std::ostream* out) {
  *out << "content " << testing::PrintToString(result.content) << " reasoning "
       << testing::PrintToString(result.reasoning) << " calls "
       << testing::PrintToString(result.calls) << " finish " << result.finish << " tokens "
       << result.prompt_tokens << " " << result.completion_tokens;
}

void TakeUsage(const OrderedJson& usage, Result* result) {
  result->prompt_tokens = usage.at("prompt_tokens");
  result->completion_tokens = usage.at("completion_tokens");
}

Result OfWhole(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text);
  Result result;
  const OrderedJson& choice = json.at("choices").at(0);
  const OrderedJson& message = choice.at("message");
  if (!message.at("content").is_null()) result.content = message.at("content");
  result.reasoning = message.value("reasoning_content", "");
  for (const OrderedJson& call : message.value("tool_calls", OrderedJson::array())) {
    result.calls.emplace_back(call.at("function").at("name"), call.at("function").at("arguments"));
  }
  result.finish = choice.at("finish_reason");
  TakeUsage(json.at("usage"), &result);
  return result;
}

void TakeChunk(const OrderedJson& chunk, Result* result) {
  if (chunk.at("choices").empty()) return TakeUsage(chunk.at("usage"), result);
  const OrderedJson& choice = chunk.at("choices").at(0);
  const OrderedJson& delta = choice.at("delta");
  result->content += delta.value("content", "");
  result->reasoning += delta.value("reasoning_content", "");
  for (const OrderedJson& call : delta.value("tool_calls", OrderedJson::array())) {
    const size_t index = call.at("index");
    const OrderedJson& function = call.at("function");
    if (index == result->calls.size()) result->calls.emplace_back(function.at("name"), "");
    result->calls.at(index).second += function.at("arguments");
  }
  if (!choice.at("finish_reason").is_null()) result->finish = choice.at("finish_reason");
}

Result OfStream(const std::string& text) {
  Result result;
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    last = line.substr(6);
    if (last != "[DONE]") TakeChunk(OrderedJson::parse(last), &result);
  }
  EXPECT_EQ(last, "[DONE]");
  return result;
}

constexpr const char* kTools =
    R"([{"type":"function","function":{"name":"get_weather","description":"d","parameters":
    {"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}])";

struct Script {
  const char* name;
  std::string text;
  bool thinking = false;
  bool has_tools = false;
  std::string stop = "";
};

const Script kScripts[] = {
    {"plain", "A river is a \"stream\"\n\tof water."},
    {"characters", "\xc3\xa9\xe6\xb0\xb4\xf0\x9f\x90\xa6 and a cut one \xf0\x9f\x90"},
    {"reasoning", "Let me see: 1 < 2.</think>Yes.", true},
    {"reasoning twice", "a</think>b</think>c", true},
    {"never answers", "only thoughts", true},
    {"call",
     "I look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>K\xc3\xb6ln</arg_value>"
     "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
     false, true},
    {"two calls",
     "<tool_call>get_weather</tool_call><tool_call>get_weather<arg_key>city</arg_key>"
     "<arg_value>a \"b\" < c</arg_value></tool_call>",
     false, true},
    {"reasoning and a call",
     "hm</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
     "<arg_value>Rome</arg_value>\n</tool_call>",
     true, true},
    {"a call that breaks off", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro", false,
     true},
    {"no tools", "<tool_call>get_weather</tool_call>"},
    {"stop string", "one two three four", false, false, "three"},
    {"a stop that is none", "one two thre", false, false, "three"},
};

OrderedJson ChatRequest(const Script& script) {
  OrderedJson request{{"temperature", 0}, {"max_tokens", 1000}};
  request["messages"] = OrderedJson::array({{{"role", "user"}, {"content", "q"}}});
  request["chat_template_kwargs"] = {{"enable_thinking", script.thinking}};
  if (script.has_tools) request["tools"] = OrderedJson::parse(kTools);
  if (!script.stop.empty()) request["stop"] = script.stop;
  return request;
}

Result RunProgram(Engine& engine, const Script& script, const std::string& tools_file) {
  Options options;
  options.arguments = {"q"};
  options.json = true;
  options.max_tokens = 1000;
  options.temperature = 0;
  options.thinking = script.thinking ? "on" : "off";
  options.given = {"temperature"};
  if (script.has_tools) options.tools = tools_file;
  if (!script.stop.empty()) options.stop = {script.stop};
  std::istringstream in;
  std::ostringstream out, notes;
  RunOnce({engine, options, /*is_built_in=*/false, /*has_terminal=*/false, in, out, notes});
  const OrderedJson json = OrderedJson::parse(out.str());
  Result result;
  result.content = json.at("content");
  result.reasoning = json.at("reasoning_content");
  result.finish = json.at("finish_reason");
  for (const OrderedJson& call : json.at("tool_calls")) {
    result.calls.emplace_back(call.at("name"), call.at("arguments"));
  }
  TakeUsage(json.at("usage"), &result);
  return result;
}

class EqualPaths : public testing::TestWithParam<Script> {
 protected:
  // Answers with the script's text as the tokens `cuts` make of it.
  static Result AllWays(const Script& script, const std::vector<std::string>& tokens) {
    std::vector<FakeTokenizer::Added> added;
    std::vector<int32_t> ids;
    constexpr int32_t kFirstMore = 256 + 8;  // behind bytes and the conversation's tags
    for (const std::string& token : tokens) {
      ids.push_back(kFirstMore + int32_t(added.size()));
      added.push_back({token, false});
    }
    ChatOptions chat;
    chat.thinking = script.thinking;
    FakeEngine sizes({}, 4096, added);
    const size_t prompt =
        sizes.chat_format().RenderIds({{"user", "q", "", {}}}, chat, sizes.tokenizer()).size();
    FakeEngine engine(ScriptedModel(ids, prompt, 256, sizes.tokenizer().vocab_size()), 4096, added);
    FakeServer server(engine);
    OrderedJson request = ChatRequest(script);
    const Result whole = OfWhole(server.Post("/v1/chat/completions", request)->Text());
    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};
    EXPECT_EQ(OfStream(server.Post("/v1/chat/completions", request)->Text()), whole);
    EXPECT_EQ(RunProgram(engine, script, tools_file()), whole);
    return whole;
  }
  static std::string tools_file() { return testing::TempDir() + "/equal_paths_tools.json"; }
};

TEST_P(EqualPaths, WhereverTokensCut) {
  const Script& script = GetParam();
  std::ofstream(tools_file()) << kTools;
  const std::string& text = script.text;
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  // Which tokens there are changes how many the text has.
  const auto without_counts = [&](const std::vector<std::string>& tokens) {
    Result result = AllWays(script, tokens);
    result.prompt_tokens = result.completion_tokens = 0;
    return result;
  };
  const Result want = without_counts({text});
  for (size_t cut = 1; cut < text.size(); ++cut) {
    ASSERT_EQ(without_counts({text.substr(0, cut), text.substr(cut)}), want) << "cut at " << cut;
  }
  EXPECT_EQ(without_counts(bytes), want);
}

std::string NameOf(const testing::TestParamInfo<Script>& script) {
  std::string name = script.param.name;
  for (char& c : name) c = c == ' ' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Scripts, EqualPaths, testing::ValuesIn(kScripts), NameOf);

}  // namespace
}  // namespace hillstar
