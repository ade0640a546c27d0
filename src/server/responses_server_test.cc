// The routes of /v1/responses over a scripted engine: conversations that go on, and what is kept.
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

// Answers with the number of the prompt's letters "x".
FakeModel CountOfX() {
  return [](std::span<const int32_t> ids) {
    std::vector<float> logits(264, 0.0f);
    const auto count = std::ranges::count(ids, int32_t('x'));
    const bool has_said = ids.back() >= '0' && ids.back() <= '9';
    logits[has_said ? 257 : size_t('0' + count)] = 50;
    return logits;
  };
}

class ResponsesServerTest : public testing::Test {
 protected:
  explicit ResponsesServerTest(FakeModel model = CountOfX())
      : engine_(std::move(model)), server_(engine_) {}

  OrderedJson Post(const OrderedJson& body, int status = 200) {
    return Parsed(server_.Post("/v1/responses", body), status);
  }
  OrderedJson Ask(const char* method, const std::string& path, int status) {
    return Parsed(server_.Ask(method, path), status);
  }
  static OrderedJson Parsed(const std::shared_ptr<FakeReply>& reply, int status) {
    EXPECT_EQ(reply->status(), status) << reply->Text();
    return OrderedJson::parse(reply->Text());
  }
  static std::string TextOf(const OrderedJson& response) {
    return response.at("output").at(0).at("content").at(0).at("text");
  }

  FakeEngine engine_;
  FakeServer server_;
};

TEST_F(ResponsesServerTest, GoesOnFromTheResponseBefore) {
  const OrderedJson first = Post({{"input", "xx"}, {"temperature", 0}});
  EXPECT_EQ(first.at("status"), "completed");
  EXPECT_EQ(TextOf(first), "2");
  const OrderedJson second =
      Post({{"input", "x"}, {"temperature", 0}, {"previous_response_id", first.at("id")}});
  EXPECT_EQ(TextOf(second), "3");
  EXPECT_EQ(second.at("previous_response_id"), first.at("id"));
  EXPECT_EQ(TextOf(Post({{"input", "x"}, {"temperature", 0}})), "1");
}

TEST_F(ResponsesServerTest, KeepsWhatItAnswered) {
  const OrderedJson response = Post({{"input", "xx"}, {"temperature", 0}});
  const std::string path = "/v1/responses/" + response.at("id").get<std::string>();
  EXPECT_EQ(Ask("GET", path, 200), response);
  const OrderedJson items = Ask("GET", path + "/input_items", 200);
  EXPECT_EQ(items.at("data").at(0).at("content").at(0).at("text"), "xx");
  EXPECT_EQ(Ask("DELETE", path, 200).at("deleted"), true);
  for (const char* method : {"GET", "DELETE"}) {
    EXPECT_NE(Ask(method, path, 404).at("error").at("message").dump().find("resp_"),
              std::string::npos);
  }
  Ask("GET", path + "/input_items", 404);
  const OrderedJson error =
      Post({{"input", "x"}, {"previous_response_id", response.at("id")}}, 404).at("error");
  EXPECT_EQ(error.at("param"), "previous_response_id");
  EXPECT_NE(error.at("message").get<std::string>().find(response.at("id").get<std::string>()),
            std::string::npos);
}

TEST_F(ResponsesServerTest, KeepsNothingWhereItIsNotToStore) {
  const OrderedJson response = Post({{"input", "x"}, {"store", false}, {"temperature", 0}});
  EXPECT_EQ(response.at("store"), false);
  Ask("GET", "/v1/responses/" + response.at("id").get<std::string>(), 404);
}

// The same id from the client twice: no two responses may get mixed up.
TEST_F(ResponsesServerTest, IdsAreNotTheClients) {
  const OrderedJson first = Post({{"input", "x"}, {"temperature", 0}});
  const OrderedJson second = Post({{"input", "xx"}, {"temperature", 0}});
  EXPECT_NE(first.at("id"), second.at("id"));
  EXPECT_EQ(Ask("GET", "/v1/responses/" + first.at("id").get<std::string>(), 200), first);
}

TEST_F(ResponsesServerTest, KnowsItsRoutes) {
  for (const char* path : {"/v1/responses/", "/v1/responses/a/b", "/v1/responses/a/input_items/",
                           "/v1/responses//input_items"}) {
    const std::string message = Ask("GET", path, 404).at("error").at("message");
    EXPECT_NE(message.find("there is no response"), std::string::npos) << message;
  }
  EXPECT_EQ(server_.Ask("GET", "/v1/responses")->status(), 405);
  const OrderedJson error = Ask("POST", "/v1/responses/a", 405);
  EXPECT_NE(error.at("error").at("message").get<std::string>().find("GET and DELETE"),
            std::string::npos);
  const std::string metrics = server_.Ask("GET", "/metrics")->Text();
  EXPECT_EQ(metrics.find("/v1/responses/a"), std::string::npos) << metrics;
}

class ResponsesStreamTest : public ResponsesServerTest {
 protected:
  ResponsesStreamTest() : ResponsesServerTest(Alphabet()) {}
};

TEST_F(ResponsesStreamTest, TheLastEventHoldsWhatIsKept) {
  const std::string text =
      server_
          .Post("/v1/responses",
                {{"input", "a"}, {"stream", true}, {"temperature", 0}, {"max_output_tokens", 8}})
          ->Text();
  const std::string last = text.substr(text.rfind("data: ") + 6);
  const OrderedJson event = OrderedJson::parse(last);
  EXPECT_EQ(event.at("type"), "response.incomplete");
  const OrderedJson& response = event.at("response");
  EXPECT_EQ(TextOf(response), "abcdefgh");
  EXPECT_EQ(response.at("usage").at("output_tokens"), 8);
  EXPECT_EQ(Ask("GET", "/v1/responses/" + response.at("id").get<std::string>(), 200), response);
}

TEST_F(ResponsesStreamTest, AWholeAnswerWithLogprobs) {
  const OrderedJson response =
      Post({{"input", "a"},
            {"temperature", 0},
            {"max_output_tokens", 3},
            {"top_logprobs", 2},
            {"include", OrderedJson::array({"message.output_text.logprobs"})}});
  const OrderedJson& part = response.at("output").at(0).at("content").at(0);
  EXPECT_EQ(part.at("text"), "abc");
  ASSERT_EQ(part.at("logprobs").size(), 3u);
  EXPECT_EQ(part.at("logprobs").at(1).at("token"), "b");
  EXPECT_EQ(part.at("logprobs").at(1).at("top_logprobs").size(), 2u);
}

}  // namespace
}  // namespace hillstar
