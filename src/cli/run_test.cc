#include "cli/run.h"

#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

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

}  // namespace
}  // namespace hillstar
