#include "chat_stream_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace hillstar {
namespace {

using Json = nlohmann::json;

Json Chunk(Json delta, Json finish) {
  Json choice = {{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", std::move(finish)}};
  return {{"id", "chatcmpl-1"},
          {"object", "chat.completion.chunk"},
          {"choices", Json::array({std::move(choice)})},
          {"usage", nullptr}};
}

// The chunks of an answer of three tokens.
std::vector<Json> Chunks() {
  Json usage = Chunk(Json::object(), nullptr);
  usage["choices"] = Json::array();
  usage["usage"] = {{"prompt_tokens", 5}, {"completion_tokens", 3}, {"total_tokens", 8}};
  return {Chunk({{"role", "assistant"}, {"content", ""}}, nullptr),
          Chunk({{"content", "a b"}}, nullptr), Chunk(Json::object(), "length"), usage};
}

std::string Stream(const std::vector<Json>& chunks) {
  std::string text = ": prompt 2/5\n\n";
  for (const Json& chunk : chunks) text += "data: " + chunk.dump() + "\n\n";
  return text + "data: [DONE]\n\n";
}

std::string FaultOf(const std::string& text, int64_t max_tokens = 3) {
  ChatStreamCheck check(max_tokens);
  check.Push(text);
  check.Finish();
  return check.fault();
}

// What is found when `change` was done to the chunks.
std::string FaultAfter(const std::function<void(std::vector<Json>&)>& change) {
  std::vector<Json> chunks = Chunks();
  change(chunks);
  return FaultOf(Stream(chunks));
}

TEST(ChatStreamCheck, AcceptsAWholeAnswerInAnyPieces) {
  const std::string text = Stream(Chunks());
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    ChatStreamCheck check(3);
    const bool first = check.Push(text.substr(0, cut));
    const bool second = check.Push(text.substr(cut));
    check.Finish();
    EXPECT_EQ(check.fault(), "") << cut;
    EXPECT_TRUE(first != second) << cut;
    EXPECT_EQ(check.prompt_tokens(), 5);
    EXPECT_EQ(check.answer_tokens(), 3);
  }
}

TEST(ChatStreamCheck, FindsWhatIsCutOff) {
  const std::string text = Stream(Chunks());
  for (size_t size = 0; size < text.size() - 1; ++size) {
    EXPECT_NE(FaultOf(text.substr(0, size)), "") << size;
  }
}

TEST(ChatStreamCheck, FindsDeviations) {
  using Chunked = std::vector<Json>&;
  EXPECT_NE(FaultAfter([](Chunked c) { c[0]["choices"][0]["delta"].erase("role"); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1]["id"] = "chatcmpl-2"; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1]["object"] = "chat.completion"; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1] = {{"error", {{"message", "failed"}}}}; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1]["choices"][0].erase("finish_reason"); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1]["choices"][0]["finish_reason"] = ""; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1]["choices"][0]["index"] = 1; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[1].erase("usage"); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[2]["choices"][0]["finish_reason"] = "tool_calls"; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { std::swap(c[1], c[2]); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { std::swap(c[2], c[3]); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[3]["usage"]["total_tokens"] = 9; }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c[3].erase("choices"); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c.push_back(c[3]); }), "");
  EXPECT_NE(FaultAfter([](Chunked c) { c.pop_back(); }), "");
}

TEST(ChatStreamCheck, FindsWrongLengths) {
  EXPECT_NE(FaultOf(Stream(Chunks()), 2), "");
  EXPECT_NE(FaultOf(Stream(Chunks()), 4), "");
  EXPECT_NE(FaultOf(Stream(Chunks()) + "data: {}\n\n"), "");
}

}  // namespace
}  // namespace hillstar
