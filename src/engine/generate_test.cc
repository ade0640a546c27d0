#include "engine/generate.h"

#include <gtest/gtest.h>

#include "engine/fake_engine.h"

namespace hillstar {
namespace {

constexpr int32_t kEnd = 256, kUser = 257, kObservation = 258;
constexpr int64_t kPrompt = 3;

const FakeTokenizer& Tokens() {
  static const FakeEngine engine({});
  return static_cast<const FakeTokenizer&>(engine.tokenizer());
}

GenerateRequest Request() {
  GenerateRequest request;
  request.prompt_ids = {'a', 'b', 'c'};
  request.sampling.temperature = 0;
  request.max_tokens = 100;
  request.context_tokens = 1000;
  request.end_ids = {kEnd, kUser, kObservation};
  return request;
}

FakeSequence Answering(std::string_view text, int32_t end = kEnd) {
  return FakeSequence(ScriptedModel(Tokens().Encode(text, AddedTokens::kParse), kPrompt, end,
                                    Tokens().vocab_size()),
                      Tokens().vocab_size(), 1000);
}

TEST(Generate, EveryEndTokenEndsTheAnswer) {
  for (const int32_t end : {kEnd, kUser, kObservation}) {
    FakeSequence sequence = Answering("hello", end);
    const GenerateResult result = Generate(sequence, Tokens(), Request());
    EXPECT_EQ(result.text, "hello");
    EXPECT_EQ(result.ids.size(), 5u);
    EXPECT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_EQ(result.end_id, end);
    EXPECT_EQ(result.steps, 5);
  }
}

TEST(Generate, RoleMarkersAreNeverShownAndTagsAre) {
  FakeSequence sequence = Answering("a<|assistant|>b<think>c</think><tool_call>d");
  std::string streamed;
  GenerateRequest request = Request();
  request.on_text = [&](std::string_view piece) { streamed += piece; };
  const GenerateResult result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.text, "ab<think>c</think><tool_call>d");
  EXPECT_EQ(streamed, result.text);
}

// Vocabularies of published models are padded: such an id has no text, and the answer goes on.
TEST(Generate, IdsThatTheTokenizerLacksHaveNoText) {
  const auto vocab = int32_t(Tokens().vocab_size());
  std::vector<int32_t> ids = Tokens().Encode("ab", AddedTokens::kParse);
  ids.insert(ids.begin() + 1, {vocab, vocab + 7});
  FakeSequence sequence(ScriptedModel(ids, kPrompt, kEnd, vocab + 8), vocab + 8, 1000);
  const GenerateResult result = Generate(sequence, Tokens(), Request());
  EXPECT_EQ(result.text, "ab");
  EXPECT_EQ(result.ids, ids);
}

TEST(Generate, ChatEndsAtEveryRoleMarker) {
  const std::vector<int32_t> ends = ChatEndIds(std::vector<int32_t>{kEnd}, Tokens());
  EXPECT_EQ(ends, (std::vector<int32_t>{256, 260, 257, 259, 258}));
}

TEST(Generate, StopStringSpansTokensAndEndsAtOnce) {
  FakeSequence sequence = Answering("one two three four");
  GenerateRequest request = Request();
  request.stops = {"three"};
  std::vector<std::string> pieces;
  request.on_text = [&](std::string_view piece) { pieces.emplace_back(piece); };
  const GenerateResult result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.text, "one two ");
  EXPECT_EQ(result.stop, "three");
  EXPECT_EQ(result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.ids.size(), std::string("one two three").size());
}

TEST(Generate, AnUnfinishedStopStringIsShownAtTheEnd) {
  FakeSequence sequence = Answering("the thre");
  GenerateRequest request = Request();
  request.stops = {"three"};
  EXPECT_EQ(Generate(sequence, Tokens(), request).text, "the thre");
}

TEST(Generate, CharactersAreShownWhole) {
  for (const std::string text : {"\xC3\xA9!", "\xE6\xAD\xA3!", "\xF0\x9F\x98\x80!"}) {
    FakeSequence sequence = Answering(text);
    GenerateRequest request = Request();
    std::vector<std::string> pieces;
    request.on_text = [&](std::string_view piece) { pieces.emplace_back(piece); };
    Generate(sequence, Tokens(), request);
    EXPECT_EQ(pieces, (std::vector<std::string>{text.substr(0, text.size() - 1), "!"}));
  }
  FakeSequence sequence = Answering("x\xE6\xAD");
  EXPECT_EQ(Generate(sequence, Tokens(), Request()).text, "x\xEF\xBF\xBD");
}

TEST(Generate, LengthIsCappedByTheContextAndSaysSo) {
  FakeSequence sequence = Answering("abcdefghij");
  GenerateRequest request = Request();
  request.context_tokens = 7;
  GenerateResult result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.text, "abcd");
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(
      result.notice,
      "the answer was limited to 4 tokens instead of 100: the prompt has 3 of the context's 7");
  request.max_tokens = 2;
  result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.text, "ab");
  EXPECT_EQ(result.notice, "");
}

TEST(Generate, PromptsOfContextMinusOneFitAndLongerOnesDoNot) {
  GenerateRequest request = Request();
  request.context_tokens = kPrompt + 1;
  FakeSequence sequence = Answering("xyz");
  EXPECT_EQ(Generate(sequence, Tokens(), request).text, "x");
  for (const int64_t context : {kPrompt, kPrompt - 1}) {
    request.context_tokens = context;
    try {
      Generate(sequence, Tokens(), request);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadRequest);
      EXPECT_NE(std::string(error.what()).find("the prompt is too long: it has 3 tokens"),
                std::string::npos);
      EXPECT_NE(std::string(error.what()).find("context of " + std::to_string(context)),
                std::string::npos);
    }
  }
}

TEST(Generate, RefusesAnEmptyPromptAndNoTokens) {
  FakeSequence sequence = Answering("x");
  GenerateRequest request = Request();
  request.prompt_ids.clear();
  EXPECT_THROW(Generate(sequence, Tokens(), request), Error);
  request = Request();
  request.max_tokens = 0;
  EXPECT_THROW(Generate(sequence, Tokens(), request), Error);
}

// Where tokens are drawn with the logits, every answer ends as it does token by token, which a
// penalty that changes nothing asks for.
TEST(Generate, DrawingWhereTheLogitsAreGivesTheSameAnswers) {
  const auto answer = [](bool has_penalty, GenerateRequest request, int32_t end) {
    FakeSequence sequence = Answering("hello <|user|>world", end);
    if (has_penalty) request.sampling.presence_penalty = 1e-9;
    return Generate(sequence, Tokens(), request);
  };
  std::vector<GenerateRequest> requests(7, Request());
  requests[1].max_tokens = 4;
  requests[2].stops = {"lo"};
  requests[3].end_ids = {'e'};
  int64_t left = 0;
  requests[4].on_token = [&](int32_t) { return left-- > 0; };
  requests[5].sampling = {.temperature = 3, .seed = 7};  // anything but the script
  requests[6].sampling = {.temperature = 5, .min_p = 0.01, .seed = 8};
  for (const GenerateRequest& request : requests) {
    left = 3;
    const GenerateResult want = answer(true, request, kEnd);
    left = 3;
    const GenerateResult got = answer(false, request, kEnd);
    EXPECT_EQ(want.ids, got.ids);
    EXPECT_EQ(want.text, got.text);
    EXPECT_EQ(want.finish_reason, got.finish_reason);
    EXPECT_EQ(want.steps, got.steps);
  }
}

TEST(Generate, CancelEndsWithWhatIsThere) {
  std::atomic<bool> cancel{false};
  FakeSequence sequence = Answering("abcdef");
  GenerateRequest request = Request();
  request.cancel = &cancel;
  request.on_text = [&](std::string_view piece) { cancel = piece == "c"; };
  GenerateResult result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.text, "abc");
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(sequence.num_tokens(), kPrompt + 2);
  cancel = true;  // before the first token
  sequence.Truncate(0);
  result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
}

// What the prompt's last step computed is not drawn from.
TEST(Generate, CancelWithinThePromptsLastStepShowsNothing) {
  for (const float penalty : {0.0f, 1.0f}) {
    std::atomic<bool> cancel{false};
    const FakeModel answer = ScriptedModel(Tokens().Encode("abc", AddedTokens::kParse), kPrompt,
                                           kEnd, Tokens().vocab_size());
    FakeSequence sequence(
        [&](std::span<const int32_t> ids) {
          cancel = true;
          return answer(ids);
        },
        Tokens().vocab_size(), 1000);
    GenerateRequest request = Request();
    request.sampling.presence_penalty = penalty;
    request.cancel = &cancel;
    const GenerateResult result = Generate(sequence, Tokens(), request);
    EXPECT_EQ(result.text, "");
    EXPECT_TRUE(result.ids.empty());
    EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
    EXPECT_EQ(sequence.num_tokens(), kPrompt);
  }
}

TEST(Generate, ReusesTheCommonPrefix) {
  FakeSequence sequence = Answering("xy");
  Generate(sequence, Tokens(), Request());
  const int64_t computed = sequence.num_appended;
  GenerateRequest request = Request();
  request.prompt_ids = {'a', 'b', 'c', 'x', 'y', 'q'};
  GenerateResult result = Generate(sequence, Tokens(), request);
  EXPECT_EQ(result.reused_tokens, 5);
  EXPECT_EQ(sequence.num_appended, computed + 1);
  result = Generate(sequence, Tokens(), Request());  // shorter than what is held
  EXPECT_EQ(result.reused_tokens, 2);
  EXPECT_EQ(result.text, "xy");
}

}  // namespace
}  // namespace hillstar
