#include "cli/run.h"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/tools_file.h"
#include "engine/fake_engine.h"

namespace hillstar {
namespace {

struct Output {
  std::string out, notes;
  int exit_code;
};

// The prompt of "hi" is <|user|>hi<|assistant|><think></think>: 6 tokens; raw it is 2.
Output Answer(const std::string& script, Options options, const std::string& input = "",
              size_t prompt_tokens = 6) {
  static const FakeEngine known({});
  const Tokenizer& tokenizer = known.tokenizer();
  FakeEngine engine(ScriptedModel(tokenizer.Encode(script, AddedTokens::kParse), prompt_tokens, 257,
                                  tokenizer.vocab_size()));
  if (options.arguments.empty()) options.arguments = {"hi"};
  std::istringstream in(input);
  std::ostringstream out, notes;
  const int code = RunOnce({engine, options, true, false, in, out, notes});
  return {out.str(), notes.str(), code};
}

TEST(Run, PrintsTheAnswerOnly) {
  const Output output = Answer("Good day.", {});
  EXPECT_EQ(output.out, "Good day.\n");
  EXPECT_EQ(output.notes, "");
  EXPECT_EQ(output.exit_code, 0);
}

TEST(Run, ReadsThePromptFromStandardInput) {
  Options options;
  options.arguments = {"-"};
  options.json = true;
  const auto json = nlohmann::json::parse(Answer("Yes.", options, "hi\n").out);
  EXPECT_EQ(json["content"], "Yes.");
  EXPECT_EQ(json["prompt_ids"].size(), 6u);
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["ids"].size(), 4u);
}

TEST(Run, RawContinuesTheTextAndPrintsIds) {
  Options options;
  options.raw = true;
  options.ids = true;
  EXPECT_EQ(Answer("!?", options, "", 2).out, "104 105\n33 63\n");
}

TEST(Run, ThinkingIsSplitFromTheAnswer) {
  Options options;
  options.thinking = "on";
  options.json = true;
  const auto json = nlohmann::json::parse(Answer("hm</think>Yes.", options, "", 5).out);
  EXPECT_EQ(json["reasoning_content"], "hm");
  EXPECT_EQ(json["content"], "Yes.");
  options.json = false;
  EXPECT_EQ(Answer("hm</think>Yes.", options, "", 5).out, "Yes.\n");
  options.show_thinking = true;
  EXPECT_EQ(Answer("hm</think>Yes.", options, "", 5).out, "hm\nYes.\n");
}

TEST(Run, AMarkThatClosesNothingIsNotShown) {
  Options options;
  options.thinking = "on";
  EXPECT_EQ(Answer("hm</think>Yes.</think>So.", options, "", 5).out, "Yes.\nSo.\n");
}

TEST(Run, SaysWhereThereWereOnlyThoughts) {
  Options options;
  options.thinking = "on";
  EXPECT_EQ(Answer("hm", options, "", 5).notes,
            "note: the answer has nothing but thoughts, which --show-thinking shows\n");
  EXPECT_EQ(Answer("hm</think>Yes.", options, "", 5).notes, "");
  options.show_thinking = true;
  EXPECT_EQ(Answer("hm", options, "", 5).notes, "");
}

TEST(Run, StopStringsAndLengthEndTheAnswer) {
  Options options;
  options.stop = {"day"};
  options.json = true;
  EXPECT_EQ(nlohmann::json::parse(Answer("Good day.", options).out)["content"], "Good ");
  options.stop.clear();
  options.max_tokens = 3;
  const auto json = nlohmann::json::parse(Answer("Good day.", options).out);
  EXPECT_EQ(json["content"], "Goo");
  EXPECT_EQ(json["finish_reason"], "length");
}

TEST(Run, CtrlCKeepsWhatCameAndSaysSo) {
  FakeEngine known({});
  const auto script = known.tokenizer().Encode("Good day.", AddedTokens::kParse);
  const FakeModel answer = ScriptedModel(script, 6, 257, known.tokenizer().vocab_size());
  FakeEngine engine([&](std::span<const int32_t> ids) {
    if (ids.size() == 9) std::raise(SIGINT);  // while "d", after "Goo", is computed
    return answer(ids);
  });
  Options options;
  options.arguments = {"hi"};
  std::istringstream in;
  std::ostringstream out, notes;
  EXPECT_EQ(RunOnce({engine, options, true, false, in, out, notes}), 130);
  EXPECT_EQ(out.str(), "Good\n");
  EXPECT_EQ(notes.str(), "hillstar: stopped by Ctrl-C after 4 tokens; the answer is unfinished\n");
}

TEST(Run, CtrlCThatIsIgnoredStaysIgnored) {
  FakeEngine known({});
  const auto script = known.tokenizer().Encode("Good day.", AddedTokens::kParse);
  const FakeModel answer = ScriptedModel(script, 6, 257, known.tokenizer().vocab_size());
  FakeEngine engine([&](std::span<const int32_t> ids) {
    if (ids.size() == 9) std::raise(SIGINT);
    return answer(ids);
  });
  Options options;
  options.arguments = {"hi"};
  std::istringstream in;
  std::ostringstream out, notes;
  const auto previous = std::signal(SIGINT, SIG_IGN);
  EXPECT_EQ(RunOnce({engine, options, true, false, in, out, notes}), 0);
  std::signal(SIGINT, previous);
  EXPECT_EQ(out.str(), "Good day.\n");
}

// The error that follows begins on a line of its own.
TEST(Run, AnAnswerThatBreaksOffEndsItsLine) {
  const FakeEngine known({});
  const auto broken = [&](const std::string& text, Options options, size_t prompt_tokens) {
    const auto script = known.tokenizer().Encode(text, AddedTokens::kParse);
    const FakeModel answer =
        ScriptedModel(script, prompt_tokens, 257, known.tokenizer().vocab_size());
    FakeEngine engine([&](std::span<const int32_t> ids) {
      if (ids.size() == prompt_tokens + script.size()) {
        throw Error(ErrorCode::kDevice, "the GPU failed");
      }
      return answer(ids);
    });
    options.arguments = {"hi"};
    std::istringstream in;
    std::ostringstream out, notes;
    EXPECT_THROW(RunOnce({engine, options, true, false, in, out, notes}), Error);
    return out.str();
  };
  Options options;
  EXPECT_EQ(broken("You are", options, 6), "You are\n");
  EXPECT_EQ(broken("", options, 6), "") << "nothing was shown";
  options.thinking = "on";
  options.show_thinking = true;
  EXPECT_EQ(broken("hm, so", options, 5), "hm, so\n");
  EXPECT_EQ(broken("hm</think>You are", options, 5), "hm\nYou are\n");
  options.json = true;
  EXPECT_EQ(broken("hm</think>You are", options, 5), "");
}

TEST(Run, RefusesOptionsThatHaveNoUseTogether) {
  Options options;
  options.raw = true;
  options.given.insert("system");
  EXPECT_THROW(Answer("x", options), Error);
  Options both;
  both.json = both.ids = true;
  EXPECT_THROW(Answer("x", both), Error);
}

// A file of the test's own, removed at its end.
class ToolsFileTest : public testing::Test {
 protected:
  ~ToolsFileTest() override { std::filesystem::remove(path_); }
  std::string Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
    return path_;
  }
  std::string Message(const std::string& text) {
    try {
      ReadToolsFile(Write(text));
      return "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadFile);
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path_)) << message;
      return message.substr(std::min(message.size(), path_.size()));
    }
  }

  const std::string path_ = testing::TempDir() + "tools_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

constexpr const char* kWeather = R"([{"type": "function", "function": {"name": "get_weather",
    "description": "Tells it.", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"name": "now"}])";

TEST_F(ToolsFileTest, TakesBothForms) {
  const ToolsFile file = ReadToolsFile(Write(kWeather));
  ASSERT_EQ(file.tools.size(), 2u);
  EXPECT_EQ(file.tools[0].name, "get_weather");
  EXPECT_EQ(
      file.tools[0].parameters_json,
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}})");
  EXPECT_EQ(file.tools[1].name, "now");
  EXPECT_EQ(file.tools[1].parameters_json, "");
  EXPECT_EQ(file.tools_json[1], R"({"name":"now"})");
  EXPECT_TRUE(file.tools_json[0].starts_with(R"({"name":"get_weather","description":"Tells it.")"));
}

TEST_F(ToolsFileTest, SaysWhatIsWrong) {
  EXPECT_EQ(Message("[]"), " holds no tools: a JSON array of functions");
  EXPECT_EQ(Message(R"({"name":"f"})"), " holds no tools: a JSON array of functions");
  EXPECT_EQ(Message("[{]"), " is not valid JSON: fault at byte 3.");
  EXPECT_EQ(Message("[1]"), ": tool 1 is no JSON object");
  EXPECT_EQ(Message(R"([{"name":"f"},{"type":"function"}])"), ": tool 2 has no \"name\"");
  EXPECT_EQ(Message(R"([{"type":"function","function":"f"}])"),
            ": tool 1 has a \"function\" that is no JSON object");
  EXPECT_EQ(Message(R"([{"type":"web_search","name":"f"}])"),
            ": tool 1 has the type 'web_search'; only \"function\" is known");
  EXPECT_EQ(Message(R"([{"name":"a b"}])"),
            ": tool 1 has the name 'a b'; a name has 1 to 128 letters, digits and _ - . : /");
  EXPECT_EQ(Message(R"([{"name":"f"},{"name":"f"}])"), ": tool 2 has the name f of another tool");
  EXPECT_EQ(Message(R"([{"name":"f","description":1}])"),
            ": tool 1 (f) has a \"description\" that is no text");
  EXPECT_EQ(Message(R"([{"name":"f","parameters":[]}])"),
            ": tool 1 (f) has \"parameters\" that are no JSON schema: an object");
}

class RunWithTools : public ToolsFileTest {
 protected:
  RunWithTools() { options_.tools = Write(kWeather); }
  Options options_;
};

constexpr const char* kCalls =
    "Let me see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now</tool_call>";

TEST_F(RunWithTools, PrintsCallsBehindTheAnswer) {
  EXPECT_EQ(Answer(kCalls, options_).out,
            "Let me see.\nget_weather({\"city\":\"Paris\",\"days\":2})\nnow({})\n");
  EXPECT_EQ(Answer("<tool_call>now</tool_call>", options_).out, "now({})\n");
  EXPECT_EQ(Answer("<tool_call>now</tool_call>", options_).notes, "");
  EXPECT_EQ(Answer("Mild.", options_).out, "Mild.\n");
  options_.thinking = "on";
  EXPECT_EQ(Answer("hm</think><tool_call>now</tool_call>", options_, "", 5).out, "now({})\n");
  EXPECT_EQ(Answer("hm</think><tool_call>now</tool_call>", options_, "", 5).notes, "");
  options_.show_thinking = true;
  EXPECT_EQ(Answer("hm</think><tool_call>now</tool_call>", options_, "", 5).out, "hm\nnow({})\n");
}

TEST_F(RunWithTools, JsonHoldsCallsAndUsage) {
  options_.json = true;
  const auto json = nlohmann::json::parse(Answer(kCalls, options_).out);
  EXPECT_EQ(json["content"], "Let me see.");
  EXPECT_EQ(json["finish_reason"], "tool_calls");
  EXPECT_EQ(json["tool_calls"].dump(),
            R"([{"arguments":"{\"city\":\"Paris\",\"days\":2}","name":"get_weather"},)"
            R"({"arguments":"{}","name":"now"}])");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(json["usage"]["completion_tokens"], json["ids"].size());
  EXPECT_EQ(json["usage"]["cached_tokens"], 0);
  const auto plain = nlohmann::json::parse(Answer("Mild.", options_).out);
  EXPECT_EQ(plain["tool_calls"].dump(), "[]");
  EXPECT_EQ(plain["finish_reason"], "stop");
  EXPECT_EQ(plain["usage"]["completion_tokens"], 5);
}

TEST_F(RunWithTools, ACallThatIsCutIsToldAsFarAsItCame) {
  options_.json = true;
  options_.max_tokens = 60;
  const Output output =
      Answer("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome and what lies around it",
             options_);
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["tool_calls"][0]["arguments"], R"({"city":"Rome and what "})");
  EXPECT_EQ(output.notes,
            "note: the answer ended inside a tool call, whose arguments are not whole\n");
}

TEST_F(RunWithTools, AStopStringDoesNotAskForTools) {
  options_.json = true;
  options_.stop = {"now"};
  const auto json = nlohmann::json::parse(Answer(kCalls, options_).out);
  EXPECT_EQ(json["finish_reason"], "stop");
  EXPECT_EQ(json["tool_calls"].size(), 1u);
}

TEST_F(RunWithTools, WithoutToolsCallsAreText) {
  options_.tools.clear();
  EXPECT_EQ(Answer("<tool_call>now</tool_call>", options_).out, "<tool_call>now</tool_call>\n");
}

TEST_F(RunWithTools, RawTakesNoTools) {
  options_.raw = true;
  EXPECT_EQ(Answer("<tool_call>", options_, "", 2).out, "<tool_call>\n") << "from the config file";
  options_.given.insert("tools");
  EXPECT_THROW(Answer("x", options_, "", 2), Error);
}

TEST_F(RunWithTools, AWrongFileIsToldBeforeTheModelIsLoaded) {
  Write("[{}]");
  EXPECT_THROW(CheckRunOptions(options_), Error);
  options_.tools = path_ + ".none";
  EXPECT_THROW(CheckRunOptions(options_), Error);
}

// As FakeEngine, with GLM's own template.
class GlmEngine : public FakeEngine {
 public:
  using FakeEngine::FakeEngine;
  const ChatFormat& chat_format() const override { return *format_; }

 private:
  std::shared_ptr<const ChatFormat> format_ = ChatFormat::Create("", "");
};

TEST_F(RunWithTools, TheModelIsToldOfThem) {
  const FakeEngine engine({});
  const Tokenizer& tokenizer = engine.tokenizer();
  std::string prompt;
  GlmEngine answering([&](std::span<const int32_t> ids) {
    prompt = tokenizer.Decode(ids, false);
    std::vector<float> logits(size_t(tokenizer.vocab_size()));
    logits[257] = 1;
    return logits;
  });
  options_.arguments = {"Rome?"};
  std::istringstream in;
  std::ostringstream out, notes;
  EXPECT_EQ(RunOnce({answering, options_, true, false, in, out, notes}), 0);
  EXPECT_NE(prompt.find("<tools>\n{\"name\": \"get_weather\", \"description\": \"Tells it.\", "),
            std::string::npos)
      << prompt;
  EXPECT_NE(prompt.find("\n{\"name\": \"now\"}\n</tools>"), std::string::npos) << prompt;
}

}  // namespace
}  // namespace hillstar
