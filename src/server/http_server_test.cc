// The server as clients see it, over loopback sockets and raw bytes: what is answered, that it sees
// clients go, and how it ends.
#include "server/http_server.h"

#include <fmt/format.h>

#include "server/http_test_server.h"

namespace hillstar {
namespace {

TEST_F(HttpServerTest, AnswersOneAfterAnotherOnOneConnection) {
  Start();
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.Send("POST /a%20b?q=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
    const std::string answer = client.ReadUntil("hello");
    EXPECT_EQ(StatusOf(answer), 200);
    EXPECT_TRUE(answer.ends_with("POST /a b hello")) << answer;
    EXPECT_NE(answer.find("X-Request-Id: "), std::string::npos);
    EXPECT_NE(answer.find("Cache-Control: no-store"), std::string::npos);
  }
  // Chunks, in pieces.
  for (const char* piece : {"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Enc",
                            "oding: chunked\r\n\r\n3\r", "\nabc\r\n2\r\nde\r\n0", "\r\n\r\n"}) {
    client.Send(piece);
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(client.ReadUntil("abcde").ends_with("POST /c abcde"));
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  Client client(server_->port());
  client.Send(Get("/hold") + Get("/one") + Get("/two"));
  const auto reply = Held();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(reply->is_gone());
  reply->Send(200, {}, "held");
  const std::string all = client.ReadUntil("/two ");
  EXPECT_LT(all.find("held"), all.find("/one"));
  EXPECT_LT(all.find("/one"), all.find("/two"));
}

TEST_F(HttpServerTest, HeadOldVersionsAndExpectations) {
  Start();
  const std::string head = Ask("HEAD /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(StatusOf(head), 200);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  const std::string old = Ask("GET /x HTTP/1.0\r\n\r\n");
  EXPECT_EQ(StatusOf(old), 200);
  EXPECT_TRUE(old.ends_with("GET /x ")) << old;
  Client client(server_->port());
  client.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(StatusOf(client.ReadUntil("\r\n\r\n")), 100);
  client.Send("ab");
  EXPECT_TRUE(client.ReadUntil(" ab").ends_with("POST /x ab"));
  // HTTP/1.0 knows no such answer.
  const std::string not_asked =
      Ask("POST /x HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nab");
  EXPECT_EQ(StatusOf(not_asked), 200);
  // An empty line behind a body is passed over.
  client.Send("\r\n" + Get("/next"));
  EXPECT_EQ(StatusOf(client.ReadUntil("/next ")), 200);
}

TEST_F(HttpServerTest, WhoMayAskIsSettledBeforeTheBody) {
  HttpServerOptions options;
  options.limits.body_bytes = 100;
  options.check_head = [](const HttpRequest& head) -> std::optional<HttpRefusal> {
    if (head.path == "/fault") throw std::runtime_error("a fault for the test");
    if (!head.Header("authorization").empty()) return std::nullopt;
    return HttpRefusal{401, {{"WWW-Authenticate", "Bearer"}}, "who are you"};
  };
  options.make_error = [](int status, std::string_view path, const std::string&) {
    return HttpRefusal{status, {}, std::string(path)};
  };
  options.extra_headers = [](const HttpRequest&) { return HttpHeaders{{"X-More", "1"}}; };
  StartWith(std::move(options));
  const std::string waits = "Content-Length: 50\r\nExpect: 100-continue\r\n";
  EXPECT_EQ(StatusOf(Ask(Post("/x", waits))), 401);
  EXPECT_EQ(StatusOf(Ask(Post("/x", "Content-Length: 1000\r\n"))), 401);
  const std::string head = Ask("HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(StatusOf(head), 401);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  EXPECT_NE(head.find("Content-Length: 11\r\n"), std::string::npos);
  EXPECT_EQ(StatusOf(Ask(Get("/fault"))), 500);
  // With path, number and headers, also where the body is what is wrong.
  const std::string large = Ask(Post("/x",
                                     "Authorization: k\r\nContent-Length: 1000\r\n"
                                     "X-Request-Id: mine\r\n"));
  EXPECT_EQ(StatusOf(large), 413);
  EXPECT_TRUE(large.ends_with("\r\n\r\n/x")) << large;
  EXPECT_NE(large.find("X-More: 1\r\n"), std::string::npos);
  EXPECT_NE(large.find("X-Request-Id: mine\r\n"), std::string::npos);
}

TEST_F(HttpServerTest, AnswersAFloodOfRequestsInOrder) {
  Start();
  Client client(server_->port());
  client.Send(Get("/hold"));
  const auto reply = Held();
  constexpr int kRequests = 2000;  // of more bytes than are read ahead
  std::string flood;
  for (int i = 0; i < kRequests; ++i) flood += Get(fmt::format("/{}.", i));
  std::thread sender([&] { client.Send(flood); });
  std::this_thread::sleep_for(milliseconds(20));
  reply->Send(200, {}, "held");
  const std::string all = client.ReadUntil("/1999. ");
  sender.join();
  size_t at = 0;
  for (int i = 0; i < kRequests && at != std::string::npos; ++i) {
    at = all.find(fmt::format("GET /{}. ", i), at);
  }
  EXPECT_NE(at, std::string::npos);
}

TEST_F(HttpServerTest, StreamsToOldClientsUntilTheEnd) {
  Start();
  Client client(server_->port());
  client.Send("GET /hold HTTP/1.0\r\n\r\n");
  const auto reply = Held();
  reply->Start(200, {}, {});
  reply->Write("one ");
  reply->Write("two");
  reply->End();
  const std::string all = client.ReadAll();
  EXPECT_TRUE(all.ends_with("\r\n\r\none two")) << all;
  EXPECT_EQ(all.find("Transfer-Encoding"), std::string::npos);
  EXPECT_TRUE(client.is_closed());
}

TEST_F(HttpServerTest, ManyThreadsWriteOneStream) {
  Start();
  constexpr int kThreads = 4, kPieces = 500;
  for (const bool goes : {false, true}) {
    Client client(server_->port());
    client.Send(Get("/hold"));
    const auto reply = Held(goes ? 1 : 0);
    reply->Start(200, {}, {});
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kPieces; ++i) reply->Write("piece.");
      });
    }
    if (goes) {
      client.ReadUntil("piece.");
      client.Close();
    }
    for (std::thread& thread : threads) thread.join();
    reply->End();
    if (goes) continue;
    const std::string all = client.ReadUntil("\r\n0\r\n\r\n");
    size_t count = 0;
    for (size_t at = 0; (at = all.find("6\r\npiece.\r\n", at)) != std::string::npos; ++at) ++count;
    EXPECT_EQ(count, size_t(kThreads * kPieces));
  }
}

TEST_F(HttpServerTest, StreamsWithSignsOfLife) {
  Start();
  Client client(server_->port());
  client.Send(Get("/hold"));
  const auto reply = Held();
  reply->Start(200, {{"Content-Type", "text/event-stream"}}, {milliseconds(30), ": alive\n\n"});
  const std::string head = client.ReadUntil("9\r\n: alive\n\n\r\n");
  EXPECT_NE(head.find("Transfer-Encoding: chunked"), std::string::npos);
  reply->Write("data: 1\n\n");
  client.ReadUntil("data: 1\n\n");
  reply->End();
  EXPECT_TRUE(client.ReadUntil("0\r\n\r\n").ends_with("0\r\n\r\n"));
  client.Send(Get("/next"));  // the connection goes on
  EXPECT_EQ(StatusOf(client.ReadUntil("/next")), 200);
  EXPECT_EQ(num_gone_, 0);
}

TEST_F(HttpServerTest, AFaultOfAHandlerIsItsRequestsAlone) {
  Start();
  Client client(server_->port());
  client.Send(Get("/fail"));
  EXPECT_EQ(StatusOf(client.ReadUntil("request\n")), 500);
  client.Send(Get("/next"));
  EXPECT_EQ(StatusOf(client.ReadUntil("/next")), 200);
}

TEST_F(HttpServerTest, ManyStreamsAtOnce) {
  Start();
  constexpr size_t kStreams = 200;
  constexpr int kPieces = 200;
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send(Get("/hold"));
  }
  Held(kStreams - 1);
  for (const auto& reply : held_) reply->Start(200, {}, {});
  for (int piece = 0; piece < kPieces; ++piece) {
    for (const auto& reply : held_) reply->Write("a piece of text\n");
  }
  for (const auto& reply : held_) reply->End();
  for (const auto& client : clients) {
    const std::string all = client->ReadUntil("\r\n0\r\n\r\n");
    size_t count = 0;
    for (size_t at = 0; (at = all.find("a piece", at)) != std::string::npos; ++at) ++count;
    EXPECT_EQ(count, size_t(kPieces));
  }
}

TEST_F(HttpServerTest, EndsInOrderInEveryPhase) {
  Start();
  Client idle(server_->port()), reading(server_->port()), holding(server_->port()),
      streaming(server_->port());
  idle.Send(Get("/x"));
  idle.ReadUntil("/x");
  reading.Send("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  holding.Send(Get("/hold"));
  const auto held = Held(0);
  streaming.Send(Get("/hold"));
  const auto stream = Held(1);
  stream->Start(200, {}, {});
  std::this_thread::sleep_for(milliseconds(100));  // until the request that is sent has begun
  server_->Stop(std::chrono::seconds(30));
  EXPECT_EQ(idle.ReadAll(), "");  // closed at once
  EXPECT_TRUE(idle.is_closed());
  reading.Send("cde");
  EXPECT_EQ(StatusOf(reading.ReadAll()), 200);  // what had begun is answered
  held->Send(200, {}, "late");
  EXPECT_NE(holding.ReadAll().find("late"), std::string::npos);
  stream->Write("last");
  stream->End();
  EXPECT_NE(streaming.ReadAll().find("last"), std::string::npos);
  thread_.join();  // nothing is left
  held_.clear();
}

TEST_F(HttpServerTest, EndsInSpiteOfAnswersThatNeverCome) {
  Start();
  Client holding(server_->port());
  holding.Send(Get("/hold"));
  Held(0);
  const auto began = Clock::now();
  server_->Stop(milliseconds(100));
  thread_.join();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
  EXPECT_EQ(num_gone_, 1);
  held_.clear();
}

TEST_F(HttpServerTest, EndsThoughAClientDoesNotRead) {
  Start();
  Client client(server_->port());
  client.ShrinkBuffer();
  client.Send(Get("/hold"));
  const auto reply = Held();
  reply->Send(200, {}, std::string(size_t{32} << 20, 'x'));
  const auto began = Clock::now();
  server_->Stop(milliseconds(100));
  thread_.join();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
}

TEST_F(HttpServerTest, EndsWheneverItIsTold) {
  HttpServerOptions options;
  options.port = 0;
  const auto handler = [](HttpRequest, std::shared_ptr<HttpReply>) {};
  {
    HttpServer server(options, handler);  // never runs
    server.Stop(milliseconds(0));
  }
  HttpServer server(options, handler);
  server.Stop(std::chrono::seconds(100));
  server.Run(2);  // ends at once
  server.Stop(milliseconds(0));
  Start();
  server_->Stop(std::chrono::seconds(100));
  server_->Stop(milliseconds(0));
}

TEST_F(HttpServerTest, ASecondStopCutsTheGraceShort) {
  Start();
  Client holding(server_->port());
  holding.Send(Get("/hold"));
  Held();
  const auto began = Clock::now();
  server_->Stop(std::chrono::seconds(100));
  server_->Stop(milliseconds(0));
  thread_.join();
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
}

TEST_F(HttpServerTest, RepliesOutliveTheServer) {
  Start();
  Client waiting(server_->port()), streaming(server_->port());
  waiting.Send(Get("/hold"));
  const auto never_begun = Held(0);
  streaming.Send(Get("/hold"));
  const auto stream = Held(1);
  stream->Start(200, {}, {});
  server_->Stop(milliseconds(0));
  thread_.join();
  held_.clear();
  server_.reset();
  EXPECT_TRUE(never_begun->is_gone());
  never_begun->Send(200, {}, "late");
  stream->Write("late");
  stream->End();
  EXPECT_EQ(num_gone_, 2);
}

TEST_F(HttpServerTest, CountsWhatItDoes) {
  Start();
  Ask("GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  Ask("GET /fail HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  Ask("nonsense\r\n\r\n");
  {
    Client client(server_->port());
    client.Send(Get("/hold"));
    Held();
  }
  EXPECT_TRUE(WaitFor([&] { return server_->counts().connections == 0; }));
  const HttpCounts counts = server_->counts();
  EXPECT_EQ(counts.accepted, 4u);
  EXPECT_EQ(counts.refused, 0u);
  EXPECT_EQ(counts.requests, 3u);
  EXPECT_EQ(counts.answers, (std::array<uint64_t, 6>{1, 0, 1, 0, 1, 1}));
  EXPECT_GT(counts.bytes_in, 100u);
  EXPECT_GT(counts.bytes_out, 300u);
}

// Whether a connection to this address comes about.
bool CanConnect(const char* address, uint16_t port) {
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  const bool is_six = inet_pton(AF_INET6, address, &six.sin6_addr) == 1;
  CHECK(is_six || inet_pton(AF_INET, address, &four.sin_addr) == 1);
  const int fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
  const auto* to = is_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  const bool is_connected = connect(fd, to, is_six ? sizeof(six) : sizeof(four)) == 0;
  close(fd);
  return is_connected;
}

bool HasIpv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool has = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return has;
}

TEST(HttpServerListen, TakesAddressesAndNames) {
  const auto server_at = [](const char* host) {
    HttpServerOptions options;
    options.host = host;
    options.port = 0;
    return std::make_unique<HttpServer>(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  };
  EXPECT_TRUE(CanConnect("127.0.0.1", server_at("0.0.0.0")->port()));
  const auto local = server_at("localhost");
  EXPECT_TRUE(CanConnect("127.0.0.1", local->port()));
  EXPECT_EQ(local->address(), fmt::format("127.0.0.1:{}", local->port()));
  if (!HasIpv6()) GTEST_SKIP() << "this machine has no IPv6";
  const auto six = server_at("::1");
  EXPECT_TRUE(CanConnect("::1", six->port()));
  EXPECT_FALSE(CanConnect("127.0.0.1", six->port()));
  EXPECT_EQ(six->address(), fmt::format("[::1]:{}", six->port()));
  EXPECT_TRUE(CanConnect("127.0.0.1", server_at("::")->port()));
}

TEST(HttpServerListen, SaysWhyItCannot) {
  HttpServerOptions options;
  options.port = 0;
  const HttpServer first(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
  options.port = first.port();
  try {
    const HttpServer second(options, [](HttpRequest, std::shared_ptr<HttpReply>) {});
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(std::to_string(options.port)), std::string::npos);
  }
  options.host = "256.1.1.1";
  EXPECT_ANY_THROW(HttpServer(options, [](HttpRequest, std::shared_ptr<HttpReply>) {}));
}

}  // namespace
}  // namespace hillstar
