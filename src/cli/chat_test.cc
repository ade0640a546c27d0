#include "cli/chat.h"

#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/conversation.h"
#include "cli/request.h"
#include "engine/fake_engine.h"

namespace hillstar {
namespace {

constexpr int32_t kUser = 257;

// Answers every prompt with `answer` and the end token <|user|>: whatever follows the last
// <|assistant|><think> (or <think></think>) of the context is the answer so far.
FakeModel AnsweringModel(const std::string& answer) {
  return [answer](std::span<const int32_t> ids) {
    const FakeEngine engine({});
    const std::string text = engine.tokenizer().Decode(ids, false);
    size_t begin = text.rfind("<|assistant|><think>") + std::string("<|assistant|><think>").size();
    if (text.substr(begin).starts_with("</think>") &&
        answer.find("</think>") == std::string::npos) {
      begin += std::string("</think>").size();
    }
    const std::vector<int32_t> script = engine.tokenizer().Encode(answer, AddedTokens::kParse);
    const size_t step = engine.tokenizer().Encode(text.substr(begin), AddedTokens::kParse).size();
    std::vector<float> logits(size_t(engine.tokenizer().vocab_size()), 0.0f);
    logits[size_t(step < script.size() ? script[step] : kUser)] = 1.0f;
    return logits;
  };
}

struct Talk {
  std::string out, notes;
  int exit_code;
};

Talk Say(const std::string& input, const std::string& answer, Options options = {}) {
  FakeEngine engine(AnsweringModel(answer));
  std::istringstream in(input);
  std::ostringstream out, notes;
  const auto lines = StreamLines(in);
  const int code = Chat({engine, options, true, false, *lines, out, notes});
  return {out.str(), notes.str(), code};
}

TEST(Chat, AnswersEachLineOfAPipe) {
  const Talk talk = Say("hello\n\nagain\r\n", "Good day.");
  EXPECT_EQ(talk.out, "Good day.\nGood day.\n");
  EXPECT_EQ(talk.notes, "");
  EXPECT_EQ(talk.exit_code, 0);
}

TEST(Chat, RoleMarkersEndTheAnswerAndAreNotShown) {
  EXPECT_EQ(Say("hello\n", "Yes.<|assistant|>No.").out, "Yes.\n");
  EXPECT_EQ(Say("hello\n", "Yes.<|system|>No.").out, "Yes.\n");
}

TEST(Chat, ThinkingIsHiddenOrShown) {
  Options options;
  options.thinking = "on";
  EXPECT_EQ(Say("x\n", "hm</think>Yes.", options).out, "Yes.\n");
  options.show_thinking = true;
  EXPECT_EQ(Say("x\n", "hm</think>Yes.", options).out, "hm\nYes.\n");
  EXPECT_EQ(Say("/think hide\nx\n", "hm</think>Yes.", options).out, "Yes.\n");
}

TEST(Chat, SaysWhereThereWereOnlyThoughts) {
  Options options;
  options.thinking = "on";
  const std::string note =
      "note: the answer has nothing but thoughts, which are hidden (/think show)\n";
  EXPECT_NE(Say("hi\n", "hm", options).notes.find(note), std::string::npos);
  EXPECT_EQ(Say("hi\n", "hm</think>Yes.", options).notes.find(note), std::string::npos);
  EXPECT_EQ(Say("/think show\nhi\n", "hm", options).notes.find(note), std::string::npos);
}

TEST(Chat, StatsGoToTheNotes) {
  Options options;
  options.stats = true;
  const Talk talk = Say("hi\n", "Yes.", options);
  EXPECT_NE(talk.notes.find("answer 4 tokens"), std::string::npos) << talk.notes;
  EXPECT_NE(Say("/stats\nhi\n/stats\n", "Yes.").notes.find("no answer yet\nprompt "),
            std::string::npos);
}

TEST(Chat, SlashCommandsAnswerOrSaySo) {
  EXPECT_NE(Say("/help\n", "x").notes.find("/system TEXT"), std::string::npos);
  EXPECT_EQ(Say("/quit\nhello\n", "x").out, "");
  EXPECT_NE(Say("/nonsense\n", "x").notes.find("there is no /nonsense"), std::string::npos);
  EXPECT_NE(Say("/think maybe\n", "x").notes.find("/think takes"), std::string::npos);
}

TEST(Chat, APromptPastTheContextFailsTheAnswerOnly) {
  FakeEngine engine(AnsweringModel("Yes."), /*context_tokens=*/40);
  Options options;
  std::istringstream in(std::string(60, 'x') + "\n/clear\nhi\n");
  std::ostringstream out, notes;
  const auto lines = StreamLines(in);
  const int code = Chat({engine, options, true, false, *lines, out, notes});
  EXPECT_EQ(out.str(), "Yes.\n");
  EXPECT_NE(notes.str().find("the prompt is too long"), std::string::npos) << notes.str();
  EXPECT_EQ(code, 1);
}

// The error begins on a line of its own, and the next message is answered.
TEST(Chat, AnAnswerThatBreaksOffEndsItsLine) {
  for (const auto& [answer, shown] : {std::pair{"You are", "You are\n"},
                                      {"hm</think>You are", "hm\nYou are\n"},
                                      {"hm, so", "hm, so\n"},
                                      {"", ""}}) {
    const bool thinks = std::string_view(answer).starts_with("hm");
    const FakeModel whole = AnsweringModel(answer);
    FakeEngine engine([&](std::span<const int32_t> ids) {
      const std::vector<float> logits = whole(ids);
      if (logits[size_t(kUser)] > 0) throw Error(ErrorCode::kDevice, "the GPU failed");
      return logits;
    });
    Options options;
    options.thinking = thinks ? "on" : "off";
    options.show_thinking = true;
    std::istringstream in("one\ntwo\n");
    std::ostringstream out, notes;
    const auto lines = StreamLines(in);
    EXPECT_EQ(Chat({engine, options, true, false, *lines, out, notes}), 1);
    EXPECT_EQ(out.str(), std::string(shown) + shown);
    EXPECT_EQ(notes.str(), "hillstar: the GPU failed\nhillstar: the GPU failed\n");
  }
}

TEST(Chat, SavesTheConversation) {
  std::string folder = (std::filesystem::temp_directory_path() / "hillstar-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/talk.json";
  Say("/system Be brief.\nhi\n/save " + file + "\n", "Yes.");
  std::ifstream stream(file);
  const auto json = nlohmann::json::parse(stream, nullptr, false);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(json.is_array());
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["content"], "Be brief.");
  EXPECT_EQ(json[1]["content"], "hi");
  EXPECT_EQ(json[2]["role"], "assistant");
  EXPECT_EQ(json[2]["content"], "Yes.");
}

TEST(Chat, SavesOverNothingButASavedConversation) {
  std::string folder = (std::filesystem::temp_directory_path() / "hillstar-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string precious = folder + "/notes.txt", saved = folder + "/talk.json";
  std::ofstream(precious) << "precious";
  std::ofstream(saved) << R"([{"role":"user","content":"old"}])";
  Say("hi\n/save " + precious + "\n/save " + saved + "\n", "Yes.");
  const auto text_of = [](const std::string& file) {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  EXPECT_EQ(text_of(precious), "precious");
  EXPECT_NE(text_of(saved).find("Yes."), std::string::npos);
  std::filesystem::remove_all(folder);
}

// What a person types, line by line, and the prompts that were shown.
class TypedLines : public LineSource {
 public:
  explicit TypedLines(std::deque<Input> typed) : typed_(std::move(typed)) {}
  Input Next(const std::string& prompt) override {
    prompts += prompt;
    if (typed_.empty()) return {Input::Kind::kEnd, ""};
    const Input next = typed_.front();
    typed_.pop_front();
    return next;
  }
  std::string prompts;

 private:
  std::deque<Input> typed_;
};

const Input kCtrlC{Input::Kind::kDropped, ""};
const Input kCtrlD{Input::Kind::kEnd, ""};
Input Typed(const std::string& text) { return {Input::Kind::kText, text}; }

TEST(Chat, CtrlCAndCtrlDDropAnUnfinishedMessage) {
  FakeEngine engine(AnsweringModel("Yes."));
  for (const Input& drop : {kCtrlC, kCtrlD}) {
    TypedLines lines({Typed("one\\"), Typed("two\\"), drop, kCtrlC, Typed("three"), kCtrlD});
    std::ostringstream out, notes;
    const Options options;
    EXPECT_EQ(Chat({engine, options, true, true, lines, out, notes}), 0);
    EXPECT_EQ(lines.prompts, "> ... ... > > > ");
    EXPECT_EQ(out.str(), "Yes.\n") << "one answer, to \"three\"";
  }
}

TEST(Chat, APipeThatEndsWithinAMessageFails) {
  const Talk talk = Say("hello\\\n", "Yes.");
  EXPECT_EQ(talk.out, "");
  EXPECT_NE(talk.notes.find("ends in a backslash"), std::string::npos) << talk.notes;
  EXPECT_EQ(talk.exit_code, 1);
}

TEST(Chat, ClearSaysWhatStays) {
  EXPECT_EQ(Say("/clear\n", "x").notes, "the conversation is forgotten\n");
  EXPECT_EQ(Say("/system s\n/clear\n", "x").notes,
            "system message set\nthe conversation is forgotten; the system message stays\n");
}

TEST(NextMessage, ABackslashContinuesTheLine) {
  TypedLines lines({Typed("one\\"), Typed("two\\"), Typed("three"), Typed("four")});
  EXPECT_EQ(NextMessage(lines, "").text, "one\ntwo\nthree");
  EXPECT_EQ(NextMessage(lines, "").text, "four");
  EXPECT_EQ(NextMessage(lines, "").kind, Input::Kind::kEnd);
}

TEST(NextMessage, TwoBackslashesAreOneAtTheEnd) {
  TypedLines lines({Typed("one\\\\"), Typed("two\\"), Typed("\\\\"), Typed("\\")});
  EXPECT_EQ(NextMessage(lines, "").text, "one\\");
  EXPECT_EQ(NextMessage(lines, "").text, "two\n\\");
  EXPECT_EQ(NextMessage(lines, "").kind, Input::Kind::kDropped);
}

TEST(Conversation, ReusesThePrefixOfTheTurnsBefore) {
  FakeEngine engine(AnsweringModel("Yes."));
  Conversation conversation(engine, RequestFrom({}, engine), {});
  conversation.Ask("hello", {}, {}, nullptr);
  const GenerateResult second = conversation.Ask("more", {}, {}, nullptr);
  // <|user|>hello<|assistant|> comes back as it was.
  EXPECT_EQ(second.reused_tokens, 1 + 5 + 1);
  EXPECT_EQ(conversation.messages().size(), 4u);
}

TEST(Conversation, ACancelledTurnWithoutTextIsForgotten) {
  FakeEngine engine(AnsweringModel("Yes."));
  Conversation conversation(engine, RequestFrom({}, engine), {});
  const std::atomic<bool> cancel{true};
  conversation.Ask("hello", {}, {}, &cancel);
  EXPECT_TRUE(conversation.messages().empty());
}

TEST(Request, StatsSayWhatEndedTheAnswer) {
  GenerateResult result;
  result.prompt_tokens = 1;
  result.ids = {1};
  const auto ending = [&] {
    const std::string text = StatsText(result);
    return text.substr(text.rfind("; ") + 2);
  };
  EXPECT_TRUE(StatsText(result).starts_with("prompt 1 token (0 reused)")) << StatsText(result);
  EXPECT_EQ(ending(), "ended by the length limit");
  result.finish_reason = FinishReason::kCancelled;
  EXPECT_EQ(ending(), "stopped by Ctrl-C");
  result.finish_reason = FinishReason::kStop;
  EXPECT_EQ(ending(), "ended by the model");
  result.stop = "a\n";
  EXPECT_EQ(ending(), "ended by the stop string \"a\\n\"");
}

TEST(Request, RawPromptsBeginWithThePrefixOnce) {
  const FakeTokenizer tokenizer({{"[gMASK]", true}, {"<sop>", true}});
  EXPECT_EQ(RawPromptIds(tokenizer, "a"), (std::vector<int32_t>{256, 257, 'a'}));
  EXPECT_EQ(RawPromptIds(tokenizer, "[gMASK]<sop>a"), (std::vector<int32_t>{256, 257, 'a'}));
  EXPECT_EQ(RawPromptIds(FakeTokenizer({}), "a"), (std::vector<int32_t>{'a'}));
}

TEST(Request, ThinkingStartsOnlyInAnOpenTag) {
  EXPECT_TRUE(EndsThinking("<|assistant|><think>"));
  EXPECT_TRUE(EndsThinking("<|assistant|><think>\n"));
  EXPECT_FALSE(EndsThinking("<|assistant|><think></think>"));
  EXPECT_FALSE(EndsThinking(""));
}

TEST(Request, AutomaticThinkingIsOffForTheBuiltInModelOnly) {
  Options options;
  EXPECT_FALSE(ChatOptionsFrom(options, true).thinking);
  EXPECT_TRUE(ChatOptionsFrom(options, false).thinking);
  options.thinking = "on";
  EXPECT_TRUE(ChatOptionsFrom(options, true).thinking);
}

}  // namespace
}  // namespace hillstar
