// Keys, names and origins.
#include "server/http_gate.h"

#include <gtest/gtest.h>

namespace hillstar {
namespace {

HttpGate Gate(std::vector<std::string> keys, std::vector<std::string> hosts = {},
              std::vector<std::string> origins = {}) {
  return HttpGate({std::move(keys), std::move(hosts), std::move(origins),
                   [](std::string_view path) { return path != "/health"; },
                   [](int status, std::string_view, const std::string& sentence) {
                     return HttpRefusal{status, {}, sentence};
                   }});
}

HttpRequest Head(HttpHeaders headers, std::string method = "GET", std::string path = "/v1/models") {
  HttpRequest head;
  head.method = std::move(method);
  head.path = std::move(path);
  head.headers = std::move(headers);
  return head;
}

int StatusOf(const HttpGate& gate, const HttpRequest& head) {
  const auto refusal = gate.Check(head);
  return refusal ? refusal->status : 200;
}

std::string Find(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

TEST(HttpGate, TakesTheServersOwnNamesOnly) {
  const HttpGate gate = Gate({}, {"Box.example.org"});
  for (const char* host : {"localhost", "localhost:8080", "LOCALHOST.", "127.0.0.1", "127.0.0.1:80",
                           "[::1]:8080", "[::1]", "192.168.1.7:8080", "box.example.org:1"}) {
    EXPECT_EQ(StatusOf(gate, Head({{"host", host}})), 200) << host;
  }
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8080",
        "1.2.3", "[evil.example]", "", ".", ":80", "[::1", "[::1]evil.example",
        "[::1]:80evil.example", "::1", "localhost:80:evil.example", "localhost:evil.example",
        "user@localhost", "localhost,evil.example"}) {
    EXPECT_EQ(StatusOf(gate, Head({{"host", host}})), 403) << host;
  }
  EXPECT_EQ(StatusOf(Gate({}, {"*"}), Head({{"host", "evil.example"}})), 200);
  EXPECT_EQ(StatusOf(gate, Head({})), 200);  // of HTTP/1.0
}

TEST(HttpGate, WantsAKey) {
  const HttpGate gate = Gate({"secret", "other key"});
  const auto with = [](const char* name, const char* value) {
    return Head({{"host", "localhost"}, {name, value}});
  };
  EXPECT_EQ(StatusOf(gate, Head({{"host", "localhost"}})), 401);
  EXPECT_EQ(StatusOf(gate, with("authorization", "Bearer secret")), 200);
  EXPECT_EQ(StatusOf(gate, with("authorization", "bearer other key")), 200);
  EXPECT_EQ(StatusOf(gate, with("x-api-key", "secret")), 200);
  for (const char* wrong : {"Bearer secre", "Bearer secret ", "Bearer ", "Basic secret", "secret",
                            "Bearer Secret", "Bearer"}) {
    EXPECT_EQ(StatusOf(gate, with("authorization", wrong)), 401) << wrong;
  }
  EXPECT_EQ(StatusOf(gate, with("x-api-key", "")), 401);
  EXPECT_EQ(StatusOf(gate, Head({{"host", "localhost"},
                                 {"x-api-key", "another's"},
                                 {"authorization", "Bearer secret"}})),
            200);
  EXPECT_EQ(StatusOf(gate, Head({{"host", "localhost"}}, "GET", "/health")), 200);
  EXPECT_EQ(StatusOf(Gate({}), Head({{"host", "localhost"}})), 200);
}

TEST(HttpGate, LetsOtherOriginsReadOnlyWhenAsked) {
  const auto head = [](const char* method) {
    return Head({{"host", "localhost"}, {"origin", "https://evil.example"}}, method);
  };
  EXPECT_TRUE(Gate({}).MoreHeaders(head("GET")).empty());
  const HttpGate one = Gate({}, {}, {"https://good.example"});
  EXPECT_EQ(Find(one.MoreHeaders(head("GET")), "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(Find(one.MoreHeaders(head("GET")), "Vary"), "Origin");
  const auto refused = one.Check(head("OPTIONS"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(Find(refused->headers, "Access-Control-Allow-Origin"), "");
  const HttpGate all = Gate({"key"}, {}, {"*"});
  const auto preflight = all.Check(head("OPTIONS"));  // brings no key
  ASSERT_TRUE(preflight);
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(Find(preflight->headers, "Access-Control-Allow-Origin"), "https://evil.example");
  EXPECT_EQ(Find(preflight->headers, "Access-Control-Allow-Credentials"), "");
}

}  // namespace
}  // namespace hillstar
