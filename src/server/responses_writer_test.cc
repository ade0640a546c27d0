// The response object and the events of a stream, over scripted pieces of an answer.
#include "server/responses_writer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "server/fake_reply.h"

namespace hillstar {
namespace {

using Kind = AnswerDelta::Kind;
using Texts = std::vector<std::string>;

constexpr int64_t kCreated = 1700000000, kCompleted = 1700000009;
constexpr const char* kId = "resp_0123";
const TokenUsage kUsage{.prompt = 40, .cached = 32, .completion = 9, .reasoning = 4};

struct Script {
  std::vector<AnswerPiece> pieces;
  AnswerEndReason reason = AnswerEndReason::kStop;
};

AnswerPiece Piece(std::vector<AnswerDelta> deltas) { return {0, std::move(deltas), {}}; }

// Reasoning, a text, and two calls, in pieces as they might come.
Script Everything() {
  return {{Piece({{Kind::kReasoning, -1, "Let me "}}),
           Piece({{Kind::kReasoning, -1, "see."}, {Kind::kContent, -1, "I "}}),
           Piece({{Kind::kContent, -1, "look."}, {Kind::kCallBegin, 0, "add"}}),
           Piece({{Kind::kCallArguments, 0, "{\"a\":"}, {Kind::kCallArguments, 0, "1}"}}),
           Piece({{Kind::kCallEnd, 0, ""},
                  {Kind::kCallBegin, 1, "now"},
                  {Kind::kCallArguments, 1, "{}"},
                  {Kind::kCallEnd, 1, ""}})},
          AnswerEndReason::kToolCalls};
}

struct Told {
  std::string text;
  int status = 0;
  std::vector<OrderedJson> kept;
};

class ResponsesWriterTest : public testing::Test {
 protected:
  ResponsesWriterTest()
      : tokenizer_({{"</think>", true}, {"<tool_call>", false}, {"</tool_call>", false}}) {}

  std::unique_ptr<ResponsesWriter> MakeWriter(bool streams, std::vector<OrderedJson>* kept) {
    ReplyContext context;
    context.reply = reply_ = std::make_shared<FakeReply>();
    context.tokenizer = &tokenizer_;
    context.model = "fake";
    context.request_id = "request";
    context.created = kCreated;
    context.streams = streams;
    ResponsesWriter::Options options;
    options.id = kId;
    options.settings = {{"temperature", 0.5}, {"tools", OrderedJson::array()}};
    options.starts_thinking = starts_thinking_;
    options.reads_calls = true;
    options.clock = [] { return kCompleted; };
    options.keep = [kept](const OrderedJson& response) { kept->push_back(response); };
    return std::make_unique<ResponsesWriter>(std::move(context), std::move(options));
  }
  Told Play(const Script& script, bool streams) {
    Told told;
    const auto writer = MakeWriter(streams, &told.kept);
    writer->Begin();
    writer->Progress(10, 40);
    for (const AnswerPiece& piece : script.pieces) writer->Write(piece);
    writer->End(0, {.reason = script.reason, .stop = {}, .usage = kUsage});
    writer->Done(kUsage);
    told.text = reply_->Text();
    told.status = reply_->status();
    return told;
  }
  OrderedJson Whole(const Script& script) {
    const Told told = Play(script, false);
    EXPECT_EQ(told.status, 200);
    return OrderedJson::parse(told.text);
  }
  // Checks what all streams have in common: names, numbers, and no end mark of another API.
  std::vector<OrderedJson> Events(const std::string& text) {
    std::vector<OrderedJson> events;
    std::istringstream lines(text);
    std::string name;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("event: ")) name = line.substr(7);
      if (!line.starts_with("data: ")) continue;
      events.push_back(OrderedJson::parse(line.substr(6)));
      EXPECT_EQ(events.back().at("type"), name);
      EXPECT_EQ(events.back().at("sequence_number"), events.size() - 1);
    }
    return events;
  }
  std::vector<OrderedJson> Streamed(const Script& script) {
    return Events(Play(script, true).text);
  }

  bool starts_thinking_ = true;
  FakeTokenizer tokenizer_;
  std::shared_ptr<FakeReply> reply_;
};

// "response.output_text.delta 1 look." and its like: type, output index, and what it brings.
std::string Brief(const OrderedJson& event) {
  std::string text = event.at("type").get<std::string>().substr(strlen("response."));
  if (event.contains("output_index")) text += " " + event.at("output_index").dump();
  for (const char* name : {"delta", "text", "arguments"}) {
    if (event.contains(name)) text += " " + event.at(name).get<std::string>();
  }
  return text;
}

TEST_F(ResponsesWriterTest, TellsOfEveryStepInOrder) {
  Texts told;
  for (const OrderedJson& event : Streamed(Everything())) told.push_back(Brief(event));
  const Texts expected = {"created",
                          "in_progress",
                          "output_item.added 0",
                          "content_part.added 0",
                          "reasoning_text.delta 0 Let me ",
                          "reasoning_text.delta 0 see.",
                          "reasoning_text.done 0 Let me see.",
                          "content_part.done 0",
                          "output_item.done 0",
                          "output_item.added 1",
                          "content_part.added 1",
                          "output_text.delta 1 I ",
                          "output_text.delta 1 look.",
                          "output_text.done 1 I look.",
                          "content_part.done 1",
                          "output_item.done 1",
                          "output_item.added 2",
                          "function_call_arguments.delta 2 {\"a\":",
                          "function_call_arguments.delta 2 1}",
                          "function_call_arguments.done 2 {\"a\":1}",
                          "output_item.done 2",
                          "output_item.added 3",
                          "function_call_arguments.delta 3 {}",
                          "function_call_arguments.done 3 {}",
                          "output_item.done 3",
                          "completed"};
  EXPECT_EQ(told, expected);
}

TEST_F(ResponsesWriterTest, TheWholeResponseHasEveryMember) {
  const OrderedJson expected = OrderedJson::parse(R"({
    "id": "resp_0123", "object": "response", "created_at": 1700000000, "status": "completed",
    "completed_at": 1700000009, "error": null, "incomplete_details": null, "model": "fake",
    "output": [
      {"id": "rs_0123_0", "type": "reasoning", "status": "completed", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Let me see."}]},
      {"id": "msg_0123_1", "type": "message", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
      {"id": "fc_0123_2", "type": "function_call", "status": "completed", "name": "add",
       "call_id": "call_0123_0", "arguments": "{\"a\":1}"},
      {"id": "fc_0123_3", "type": "function_call", "status": "completed", "name": "now",
       "call_id": "call_0123_1", "arguments": "{}"}],
    "usage": {"input_tokens": 40,
              "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
              "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 4},
              "total_tokens": 49},
    "temperature": 0.5, "tools": []})");
  EXPECT_EQ(Whole(Everything()), expected);
}

// What a client knows that puts events together: items and parts as they are added, then deltas.
OrderedJson Accumulated(const std::vector<OrderedJson>& events) {
  OrderedJson output = OrderedJson::array();
  for (const OrderedJson& event : events) {
    const std::string type = event.at("type");
    if (!event.contains("output_index")) continue;
    const size_t at = event.at("output_index");
    if (type == "response.output_item.added") {
      EXPECT_EQ(at, output.size());
      EXPECT_EQ(event.at("item").at("status"), "in_progress");
      output.push_back(event.at("item"));
    }
    OrderedJson& item = output.at(at);
    if (event.contains("item_id")) {
      EXPECT_EQ(event.at("item_id"), item.at("id"));
    }
    if (type == "response.content_part.added") item.at("content").push_back(event.at("part"));
    if (type.ends_with(".delta")) {
      const bool is_call = item.at("type") == "function_call";
      OrderedJson& text = is_call ? item.at("arguments") : item.at("content").at(0).at("text");
      text = text.get<std::string>() + event.at("delta").get<std::string>();
    }
    if (type == "response.output_text.delta") {
      OrderedJson& logprobs = item.at("content").at(0).at("logprobs");
      for (const OrderedJson& each : event.at("logprobs")) logprobs.push_back(each);
    }
    if (type == "response.output_item.done") {
      item.at("status") = event.at("item").at("status");
      EXPECT_EQ(item, event.at("item"));
    }
  }
  return output;
}

TEST_F(ResponsesWriterTest, WhatIsStreamedIsWhatIsSentWhole) {
  for (AnswerEndReason reason : {AnswerEndReason::kToolCalls, AnswerEndReason::kLength}) {
    for (size_t num_pieces = 0; num_pieces <= Everything().pieces.size(); ++num_pieces) {
      Script script = Everything();
      script.pieces.resize(num_pieces);
      script.reason = reason;
      const OrderedJson whole = Whole(script);
      const std::vector<OrderedJson> events = Streamed(script);
      EXPECT_EQ(events.back().at("response"), whole);
      EXPECT_EQ(Accumulated(events), whole.at("output"));
    }
  }
}

TEST_F(ResponsesWriterTest, AStreamBeginsWithTheResponseInProgress) {
  const std::vector<OrderedJson> events = Streamed(Everything());
  for (size_t i : {0, 1}) {
    const OrderedJson& response = events[i].at("response");
    EXPECT_EQ(response.at("status"), "in_progress");
    EXPECT_EQ(response.at("output"), OrderedJson::array());
    EXPECT_TRUE(response.at("usage").is_null());
    EXPECT_TRUE(response.at("completed_at").is_null());
    EXPECT_EQ(response.at("temperature"), 0.5);
  }
}

TEST_F(ResponsesWriterTest, AStreamIsNoJsonOfAnotherInterface) {
  const std::string text = Play(Everything(), true).text;
  EXPECT_EQ(text.find("[DONE]"), std::string::npos);
  EXPECT_NE(text.find(": prompt 10/40\n\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with("}\n\n"));
}

TEST_F(ResponsesWriterTest, ACutAnswerIsIncompleteAndSoIsItsLastItem) {
  Script script = Everything();
  script.reason = AnswerEndReason::kLength;
  const OrderedJson whole = Whole(script);
  EXPECT_EQ(whole.at("status"), "incomplete");
  EXPECT_EQ(whole.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_TRUE(whole.at("completed_at").is_null());
  EXPECT_EQ(whole.at("output").at(2).at("status"), "completed");
  EXPECT_EQ(whole.at("output").at(3).at("status"), "incomplete");
  EXPECT_EQ(Streamed(script).back().at("type"), "response.incomplete");
  script.pieces.clear();
  EXPECT_EQ(Whole(script).at("output"), OrderedJson::array());
}

TEST_F(ResponsesWriterTest, AnAnswerWithoutTextHasAnEmptyMessage) {
  const OrderedJson whole = Whole({{Piece({{Kind::kReasoning, -1, "Hm."}})}});
  EXPECT_EQ(whole.at("output").size(), 2u);
  EXPECT_EQ(whole.at("output").at(1).at("type"), "message");
  EXPECT_EQ(whole.at("output").at(1).at("content").at(0).at("text"), "");
}

TEST_F(ResponsesWriterTest, TextBehindACallIsAnotherMessage) {
  const OrderedJson whole = Whole({{Piece({{Kind::kContent, -1, "a"},
                                           {Kind::kCallBegin, 0, "f"},
                                           {Kind::kCallArguments, 0, "{}"},
                                           {Kind::kCallEnd, 0, ""},
                                           {Kind::kContent, -1, "b"}})}});
  ASSERT_EQ(whole.at("output").size(), 3u);
  EXPECT_EQ(whole.at("output").at(2).at("id"), "msg_0123_2");
  EXPECT_EQ(whole.at("output").at(2).at("content").at(0).at("text"), "b");
}

// Of tokens whose text is that of `ids`, with the one before as the likelier.
std::vector<TokenLogprobs> Logprobs(std::vector<int32_t> ids) {
  std::vector<TokenLogprobs> logprobs;
  for (const int32_t id : ids) logprobs.push_back({{id, -0.5}, {{id - 1, -0.25}}});
  return logprobs;
}

Texts TokensOf(const OrderedJson& part) {
  Texts tokens;
  for (const OrderedJson& each : part.at("logprobs")) tokens.push_back(each.at("token"));
  return tokens;
}

// Tokens 256 to 258 are </think>, <tool_call> and </tool_call>.
TEST_F(ResponsesWriterTest, LogprobsAreThoseOfTheText) {
  Script script;
  script.pieces.push_back({0, {{Kind::kReasoning, -1, "x"}}, Logprobs({'x', 256, 'a'})});
  script.pieces.push_back({0, {{Kind::kContent, -1, "ab"}}, Logprobs({'b', 'c'})});
  script.pieces.push_back({0, {}, Logprobs({'\n', 257, 'f', 258})});
  script.pieces.push_back(
      {0,
       {{Kind::kCallBegin, 0, "f"}, {Kind::kCallEnd, 0, ""}, {Kind::kContent, -1, "d"}},
       Logprobs({'d'})});
  const OrderedJson whole = Whole(script);
  const OrderedJson& output = whole.at("output");
  ASSERT_EQ(output.size(), 4u);
  EXPECT_EQ(TokensOf(output.at(1).at("content").at(0)), (Texts{"a", "b", "c"}));
  EXPECT_EQ(TokensOf(output.at(3).at("content").at(0)), Texts{"d"});
  EXPECT_EQ(output.at(3).at("content").at(0).at("logprobs").at(0),
            OrderedJson::parse(R"({"token": "d", "logprob": -0.5, "bytes": [100], "top_logprobs":
                                   [{"token": "c", "logprob": -0.25, "bytes": [99]}]})"));
  const std::vector<OrderedJson> events = Streamed(script);
  EXPECT_EQ(events.back().at("response"), whole);
  EXPECT_EQ(Accumulated(events), output);
  std::vector<Texts> deltas;
  for (const OrderedJson& event : events) {
    if (event.at("type") == "response.output_text.delta") deltas.push_back(TokensOf(event));
  }
  EXPECT_EQ(deltas, (std::vector<Texts>{{"a", "b", "c"}, {"d"}}));
}

TEST_F(ResponsesWriterTest, WithoutThinkingTheFirstTokenIsText) {
  starts_thinking_ = false;
  const OrderedJson whole = Whole({{{0, {{Kind::kContent, -1, "a"}}, Logprobs({'a'})}}});
  EXPECT_EQ(TokensOf(whole.at("output").at(0).at("content").at(0)), Texts{"a"});
}

TEST_F(ResponsesWriterTest, WhatEndedWellIsKeptAsItIsTold) {
  for (const bool streams : {false, true}) {
    const Told told = Play(Everything(), streams);
    ASSERT_EQ(told.kept.size(), 1u);
    EXPECT_EQ(told.kept[0], Whole(Everything()));
  }
}

TEST_F(ResponsesWriterTest, AFaultInAStreamIsAnEventAndAFailedResponse) {
  std::vector<OrderedJson> kept;
  const auto writer = MakeWriter(true, &kept);
  writer->Begin();
  writer->Write(Piece({{Kind::kContent, -1, "Hel"}}));
  writer->Fail({503, "the server is shutting down", {}, "shutting_down"});
  const std::vector<OrderedJson> events = Events(reply_->Text());
  const OrderedJson& error = events[events.size() - 2];
  EXPECT_EQ(error.at("type"), "error");
  EXPECT_EQ(error.at("code"), "shutting_down");
  EXPECT_EQ(error.at("message"), "the server is shutting down");
  EXPECT_TRUE(error.at("param").is_null());
  EXPECT_EQ(events.back().at("type"), "response.failed");
  const OrderedJson& response = events.back().at("response");
  EXPECT_EQ(response.at("status"), "failed");
  EXPECT_EQ(
      response.at("error"),
      OrderedJson::parse(R"({"code": "server_error", "message": "the server is shutting down"})"));
  EXPECT_EQ(response.at("output").at(0).at("status"), "incomplete");
  EXPECT_EQ(Accumulated(events), response.at("output"));
  EXPECT_TRUE(kept.empty());
}

TEST_F(ResponsesWriterTest, AFaultOtherwiseIsAnAnswerWithItsStatus) {
  std::vector<OrderedJson> kept;
  const auto writer = MakeWriter(false, &kept);
  writer->Begin();
  writer->Write(Piece({{Kind::kContent, -1, "Hel"}}));
  writer->Fail({500, "a logit is no number"});
  EXPECT_EQ(reply_->status(), 500);
  EXPECT_EQ(OrderedJson::parse(reply_->Text()).at("error").at("message"), "a logit is no number");
  EXPECT_TRUE(kept.empty());
}

}  // namespace
}  // namespace hillstar
