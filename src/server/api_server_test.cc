// The routes over a scripted engine: what is answered, what is refused and how, and that one
// request never touches another.
#include "server/api_server.h"

#include <gtest/gtest.h>

#include <sstream>

#include "server/fake_reply.h"

namespace hillstar {
namespace {

// Answers with the letter that follows the last one of the prompt, for ever.
FakeModel Alphabet() {
  return [](std::span<const int32_t> ids) {
    std::vector<float> logits(264, 0.0f);
    logits[size_t(ids.back() >= 'a' && ids.back() < 'z' ? ids.back() + 1 : 'a')] = 50;
    return logits;
  };
}

// The same, slowly, so that answers are still under way when a test looks.
FakeModel SlowAlphabet() {
  return [fast = Alphabet()](std::span<const int32_t> ids) {
    std::this_thread::sleep_for(std::chrono::microseconds(500));
    return fast(ids);
  };
}

OrderedJson Chat(const std::string& text) {
  OrderedJson request;
  request["messages"] = OrderedJson::array({{{"role", "user"}, {"content", text}}});
  request["temperature"] = 0;
  request["max_tokens"] = 8;
  return request;
}

std::vector<OrderedJson> EventsOf(const std::string& text) {
  std::vector<OrderedJson> events;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("data: {")) events.push_back(OrderedJson::parse(line.substr(6)));
  }
  return events;
}

class ApiServerTest : public testing::Test {
 protected:
  ApiServerTest() : engine_(Alphabet()), server_(engine_) {}

  OrderedJson Error(const std::string& path, const std::string& body, int status) {
    const auto reply = server_.Ask("POST", path, body);
    EXPECT_EQ(reply->status(), status) << body << "\n" << reply->Text();
    return OrderedJson::parse(reply->Text()).at("error");
  }
  // The request with one member changed is refused, and the error names the member.
  void ExpectRefused(OrderedJson request, const std::string& member, const OrderedJson& value,
                     const std::string& param) {
    request[member] = value;
    const OrderedJson error = Error("/v1/chat/completions", request.dump(), 400);
    EXPECT_EQ(error.at("param"), param) << error.dump();
    EXPECT_EQ(error.at("type"), "invalid_request_error");
  }
  std::string Content(const OrderedJson& request) {
    const auto reply = server_.Post("/v1/chat/completions", request);
    EXPECT_EQ(reply->status(), 200) << reply->Text();
    return OrderedJson::parse(reply->Text()).at("choices").at(0).at("message").at("content");
  }

  FakeEngine engine_;
  FakeServer server_;
};

TEST_F(ApiServerTest, AnswersAndSaysWhatItUsed) {
  const auto reply = server_.Post("/v1/chat/completions", Chat("x"));
  EXPECT_EQ(reply->status(), 200);
  const OrderedJson json = OrderedJson::parse(reply->Text());
  EXPECT_EQ(json.at("object"), "chat.completion");
  EXPECT_EQ(json.at("model"), "fake");
  EXPECT_EQ(json.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 8);
  EXPECT_EQ(json.at("usage").at("total_tokens"),
            json.at("usage").at("prompt_tokens").get<int>() + 8);
}

TEST_F(ApiServerTest, AStreamBeginsWithTheRoleAndEndsWithDone) {
  OrderedJson request = Chat("x");
  request["stream"] = true;
  const std::string text = server_.Post("/v1/chat/completions", request)->Text();
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
  const std::vector<OrderedJson> events = EventsOf(text);
  EXPECT_EQ(events.front().at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_TRUE(events.front().at("choices").at(0).at("finish_reason").is_null());
  EXPECT_EQ(events.back().at("choices").at(0).at("finish_reason"), "length");
  for (const OrderedJson& event : events) EXPECT_FALSE(event.contains("usage"));
}

TEST_F(ApiServerTest, RefusesByName) {
  const OrderedJson good = Chat("x");
  for (const OrderedJson& value : {OrderedJson("10"), OrderedJson(0.5), OrderedJson(0),
                                   OrderedJson(-1), OrderedJson(true), OrderedJson::array()}) {
    ExpectRefused(good, "max_tokens", value, "max_tokens");
  }
  for (const OrderedJson& value : {OrderedJson("1"), OrderedJson(-0.1), OrderedJson(101)}) {
    ExpectRefused(good, "temperature", value, "temperature");
  }
  ExpectRefused(good, "top_p", 1.5, "top_p");
  ExpectRefused(good, "top_k", 0.4, "top_k");
  ExpectRefused(good, "seed", "x", "seed");
  ExpectRefused(good, "n", 0, "n");
  ExpectRefused(good, "stop", "", "stop");
  ExpectRefused(good, "stop", OrderedJson::array({"a", 7}), "stop[1]");
  ExpectRefused(good, "stream", "yes", "stream");
  ExpectRefused(good, "stream_options", {{"include_usage", true}}, "stream_options");
  ExpectRefused(good, "logit_bias", {{"x", 1}}, "logit_bias");
  ExpectRefused(good, "logit_bias", {{"1", 101}}, "logit_bias");
  ExpectRefused(good, "top_logprobs", 3, "top_logprobs");
  ExpectRefused(good, "frequency_penalty", 2.5, "frequency_penalty");
  ExpectRefused(good, "messages", OrderedJson::array(), "messages");
  ExpectRefused(good, "messages", "x", "messages");
  ExpectRefused(good, "no_such_member", 1, "no_such_member");
  ExpectRefused(good, "functions", OrderedJson::array({1}), "functions");
  ExpectRefused(good, "tool_choice", "required", "tool_choice");
  ExpectRefused(good, "reasoning_effort", "huge", "reasoning_effort");
  ExpectRefused(good, "modalities", OrderedJson::array({"audio"}), "modalities");
}

TEST_F(ApiServerTest, RefusesMessagesByTheirPlace) {
  const auto refuse = [&](const char* messages, const std::string& param) {
    ExpectRefused(Chat("x"), "messages", OrderedJson::parse(messages), param);
  };
  refuse(R"([{"role":"user","content":""}])", "messages[0].content");
  refuse(R"([{"role":"user","content":null}])", "messages[0].content");
  refuse(R"([{"role":"user"}])", "messages[0].content");
  refuse(R"([{"role":"king","content":"x"}])", "messages[0].role");
  refuse(R"([{"content":"x"}])", "messages[0].role");
  refuse(R"([7])", "messages[0]");
  refuse(R"([{"role":"user","content":"x","size":1}])", "messages[0].size");
  refuse(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///x"}}]}])",
         "messages[0].content[0].type");
  refuse(R"([{"role":"user","content":"x"},{"role":"assistant","content":"y"}])", "messages[1]");
}

TEST_F(ApiServerTest, RefusesBodiesThatAreNone) {
  for (const char* body : {"", "{", "[]", "7", "{\"messages\":[]}x", "{\"a\":1,\"a\":2}", "\xff"}) {
    Error("/v1/chat/completions", body, 400);
  }
  Error("/v1/chat/completions", std::string(100000, '['), 400);
  Error("/v1/embeddings", "{}", 404);
  EXPECT_EQ(server_.Ask("GET", "/v1/chat/completions")->status(), 405);
  EXPECT_EQ(server_.Ask("POST", "/health", "{}")->status(), 405);
}

TEST_F(ApiServerTest, TheModelIsFoundByItsName) {
  const auto list = OrderedJson::parse(server_.Ask("GET", "/v1/models")->Text());
  EXPECT_EQ(list.at("object"), "list");
  const auto one = OrderedJson::parse(server_.Ask("GET", "/v1/models/fake")->Text());
  EXPECT_EQ(one, list.at("data").at(0));
  EXPECT_EQ(one.at("id"), "fake");
  EXPECT_EQ(one.at("object"), "model");
  const auto other = server_.Ask("GET", "/v1/models/other");
  EXPECT_EQ(other->status(), 404);
  EXPECT_EQ(OrderedJson::parse(other->Text()).at("error").at("code"), "model_not_found");
}

TEST_F(ApiServerTest, MadeUpPathsAreOneLineOfTheMetrics) {
  for (int i = 0; i < 3; ++i) Error("/made/up/" + std::to_string(i), "{}", 404);
  const std::string text = server_.Ask("GET", "/metrics")->Text();
  EXPECT_EQ(text.find("made"), std::string::npos);
  EXPECT_NE(text.find("hillstar_http_replies_total{route=\"other\",status=\"404\"} 3"),
            std::string::npos)
      << text;
}

TEST_F(ApiServerTest, APromptThatIsTooLongIsToldWithBothNumbers) {
  const OrderedJson error = Error("/v1/chat/completions", Chat(std::string(5000, 'x')).dump(), 400);
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  const std::string message = error.at("message");
  EXPECT_NE(message.find("4096"), std::string::npos) << message;
  EXPECT_NE(message.find("50"), std::string::npos) << message;
}

TEST_F(ApiServerTest, StopsSeedsAndBiases) {
  OrderedJson request = Chat("x");
  request["max_tokens"] = 12;
  const std::string whole = Content(request);  // the template ends in '>', so this begins with 'a'
  EXPECT_EQ(whole, "abcdefghijkl");
  request["stop"] = OrderedJson::array({"zz", "def"});
  EXPECT_EQ(Content(request), "abc");
  request.erase("stop");
  request["logit_bias"] = {{"99", -100}};  // no 'c': all others are equal, and the lowest id is 0
  EXPECT_EQ(Content(request).substr(0, 2), "ab");
  EXPECT_EQ(Content(request).find('c'), std::string::npos);
}

TEST_F(ApiServerTest, SeveralAnswersHaveTheirPlaces) {
  OrderedJson request = Chat("x");
  request["n"] = 3;
  const OrderedJson json =
      OrderedJson::parse(server_.Post("/v1/chat/completions", request)->Text());
  ASSERT_EQ(json.at("choices").size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(json.at("choices").at(size_t(i)).at("index"), i);
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 24);
}

TEST_F(ApiServerTest, AnthropicsShapes) {
  OrderedJson request = Chat("x");
  const OrderedJson whole = OrderedJson::parse(server_.Post("/v1/messages", request)->Text());
  EXPECT_EQ(whole.at("type"), "message");
  EXPECT_EQ(whole.at("content").at(0).at("text"), "abcdefgh");
  EXPECT_EQ(whole.at("stop_reason"), "max_tokens");
  request["stream"] = true;
  const std::vector<OrderedJson> events = EventsOf(server_.Post("/v1/messages", request)->Text());
  EXPECT_EQ(events.front().at("type"), "message_start");
  EXPECT_EQ(events.back().at("type"), "message_stop");
  std::string text;
  for (const OrderedJson& event : events) {
    if (event.at("type") == "content_block_delta") text += event.at("delta").at("text");
  }
  EXPECT_EQ(text, "abcdefgh");
  request.erase("max_tokens");
  const auto reply = server_.Post("/v1/messages", request);
  EXPECT_EQ(reply->status(), 400);
  const OrderedJson error = OrderedJson::parse(reply->Text());
  EXPECT_EQ(error.at("type"), "error");
  EXPECT_NE(error.at("error").at("message").get<std::string>().find("max_tokens"),
            std::string::npos);
}

// What Anthropic's own clients go by.
TEST_F(ApiServerTest, AnthropicsErrorsNameTheirReason) {
  const auto error = [&](const char* member, const OrderedJson& value) {
    OrderedJson request = Chat("x");
    request[member] = value;
    return Error("/v1/messages", request.dump(), 400);
  };
  OrderedJson thread = error("thread", {{"type", "create"}});
  EXPECT_EQ(thread.at("details").at("error_code"), "thread_unsupported_request");
  EXPECT_TRUE(thread.at("message").get<std::string>().starts_with("thread is not"));
  const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", "x"}},
                                                   {{"role", "system"}, {"content", "y"}},
                                                   {{"role", "assistant"}, {"content", "z"}}});
  EXPECT_EQ(error("messages", messages).at("message").get<std::string>().find("messages[2].role"),
            0u);
  EXPECT_FALSE(error("top_p", 2).contains("details"));
}

TEST_F(ApiServerTest, AnthropicsEditsAreKeptOrRefused) {
  const auto edit = [&](const char* edits) {
    OrderedJson request = Chat("x");
    request["context_management"] = {{"edits", OrderedJson::parse(edits)}};
    const auto reply = server_.Post("/v1/messages", request);
    return reply->status() == 200 ? std::string() : reply->Text();
  };
  EXPECT_EQ(edit("[]"), "");
  EXPECT_EQ(edit(R"([{"type":"clear_thinking_20251015","keep":"all"}])"), "");
  EXPECT_EQ(edit(R"([{"type":"clear_thinking_20251015","keep":{"type":"all"}}])"), "");
  EXPECT_EQ(edit(R"([{"type":"clear_thinking_20251015"}])"), "");
  const std::string turns =
      edit(R"([{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":2}}])");
  EXPECT_NE(turns.find("context_management.edits[0].keep"), std::string::npos) << turns;
  const std::string uses = edit(R"([{"type":"clear_tool_uses_20250919"}])");
  EXPECT_NE(uses.find("context_management.edits[0].type"), std::string::npos) << uses;
}

TEST_F(ApiServerTest, CompletionsTakeTextsAndIds) {
  const auto texts = [&](const char* body) {
    std::vector<std::string> all;
    const auto reply = server_.Ask("POST", "/v1/completions", body);
    EXPECT_EQ(reply->status(), 200) << reply->Text();
    const OrderedJson json = OrderedJson::parse(reply->Text());
    for (const OrderedJson& choice : json.at("choices")) all.push_back(choice.at("text"));
    return all;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(R"({"prompt":"c","max_tokens":2,"temperature":0})"), Texts{"de"});
  EXPECT_EQ(texts(R"({"prompt":["c","k"],"max_tokens":2,"temperature":0})"), (Texts{"de", "lm"}));
  EXPECT_EQ(texts(R"({"prompt":[99],"max_tokens":2,"temperature":0})"), Texts{"de"});
  EXPECT_EQ(texts(R"({"prompt":[[99],[107]],"max_tokens":1,"temperature":0,"n":2})"),
            (Texts{"d", "d", "l", "l"}));
  EXPECT_EQ(texts(R"({"prompt":"c","max_tokens":2,"temperature":0,"echo":true})"), Texts{"cde"});
  for (const char* body : {R"({"prompt":""})", R"({"prompt":[""]})", R"({"prompt":[]})", R"({})",
                           R"({"prompt":[264]})", R"({"prompt":[-1]})", R"({"prompt":[1,"a"]})",
                           R"({"prompt":{"a":1}})", R"({"prompt":"a","max_tokens":0})",
                           R"({"prompt":"a","suffix":"b"})", R"({"prompt":"a","best_of":2})"}) {
    Error("/v1/completions", body, 400);
  }
  EXPECT_EQ(Error("/v1/completions", R"({"prompt":["a","b",7]})", 400).at("param"), "prompt[2]");
}

// An answer that takes seconds of a slow model.
OrderedJson Endless() {
  OrderedJson request = Chat("x");
  request["max_tokens"] = 3000;
  request["stream"] = true;
  return request;
}

TEST(ApiServerCancel, AClientThatGoesFreesItsPlace) {
  FakeEngine engine(SlowAlphabet());
  FakeServer server(engine);
  std::vector<std::shared_ptr<FakeReply>> replies;
  for (int i = 0; i < 5; ++i) replies.push_back(server.Post("/v1/chat/completions", Endless()));
  while (server.service().snapshot().phases.running < 5) std::this_thread::yield();
  for (const auto& reply : replies) reply->GoAway();
  for (const auto& reply : replies) EXPECT_NE(reply->Text().find("cancelled"), std::string::npos);
  const auto reply = server.Post("/v1/chat/completions", Chat("x"));
  EXPECT_EQ(reply->status(), 200);
  while (server.service().snapshot().phases.running > 0) std::this_thread::yield();
}

TEST(ApiServerQueue, TellsToComeBackWhenItIsFull) {
  FakeEngine engine(SlowAlphabet());
  FakeServer server(engine, FakeServer::WithoutThinking(), /*max_waiting=*/0);
  OrderedJson request = Endless();
  request["n"] = 128;
  std::vector<std::shared_ptr<FakeReply>> replies;
  for (int i = 0; i < 4; ++i) replies.push_back(server.Post("/v1/chat/completions", request));
  const auto refused = server.Post("/v1/chat/completions", Chat("x"));
  EXPECT_EQ(refused->status(), 429) << refused->Text();
  EXPECT_EQ(OrderedJson::parse(refused->Text()).at("error").at("type"), "rate_limit_error");
  for (const auto& reply : replies) reply->GoAway();
  EXPECT_EQ(server.Post("/v1/chat/completions", Chat("x"))->status(), 200);
}

TEST(ApiServerShutdown, HandsOutErrors) {
  FakeEngine engine(SlowAlphabet());
  auto server = std::make_unique<FakeServer>(engine);
  const auto streamed = server->Post("/v1/chat/completions", Endless());
  OrderedJson request = Endless();
  request["stream"] = false;
  const auto whole = server->Post("/v1/chat/completions", request);
  while (server->service().snapshot().phases.running < 2) std::this_thread::yield();
  server.reset();
  EXPECT_EQ(whole->status(), 503);
  EXPECT_NE(streamed->Text().find("shutting down"), std::string::npos) << streamed->Text();
}

// Logits that are not numbers end the request that has them, and no other.
TEST(ApiServerFault, ABadRowEndsItsOwnRequest) {
  FakeEngine engine([](std::span<const int32_t> ids) {
    std::vector<float> logits(264, 0.0f);
    logits['a'] = 50;
    if (std::ranges::count(ids, 'q') > 0) logits[7] = std::nanf("");
    return logits;
  });
  FakeServer server(engine);
  const auto good = server.Post("/v1/chat/completions", Chat("x"));
  const auto bad = server.Post("/v1/chat/completions", Chat("q"));
  EXPECT_EQ(bad->status(), 500) << bad->Text();
  EXPECT_EQ(good->status(), 200);
}

}  // namespace
}  // namespace hillstar
