// The server as clients see it, over loopback sockets and raw bytes: what is answered, what is
// refused, and that it sees clients go.
#include "server/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/check.h"

namespace hillstar {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A client's socket.
class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~Client() { Close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(size_t(sent));
    }
    return true;
  }
  // What comes until `part` is there, the server closes, or the time is up.
  std::string ReadUntil(std::string_view part, milliseconds patience = milliseconds(5000)) {
    const auto end = Clock::now() + patience;
    while (part.empty() || got_.find(part) == std::string::npos) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now()).count();
      pollfd waiting{fd_, POLLIN, 0};
      if (left <= 0 || poll(&waiting, 1, int(left)) <= 0) break;
      char bytes[65536];
      const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
      if (n <= 0) {
        is_closed_ = true;
        break;
      }
      got_.append(bytes, size_t(n));
    }
    return std::exchange(got_, {});
  }
  std::string ReadAll(milliseconds patience = milliseconds(5000)) {
    return ReadUntil("", patience);
  }
  bool is_closed() const { return is_closed_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void Reset() {
    const linger hard{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    Close();
  }
  void ShrinkBuffer() {
    const int size = 4096;
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
  }

 private:
  int fd_;
  std::string got_;
  bool is_closed_ = false;
};

int StatusOf(const std::string& answer) {
  return answer.size() > 12 && answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9, 3)) : 0;
}

class HttpServerTest : public testing::Test {
 protected:
  // /hold keeps its reply for the test, /fail throws, all others give back what they are asked.
  void Start(HttpLimits limits = {}) {
    HttpServerOptions options;
    options.port = 0;
    options.limits = limits;
    server_.emplace(options, [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      if (request.path == "/fail") throw std::runtime_error("a fault for the test");
      if (request.path != "/hold") {
        return reply->Send(200, {}, request.method + " " + request.path + " " + request.body);
      }
      const std::lock_guard lock(mutex_);
      reply->OnGone([this] { ++num_gone_; });
      held_.push_back(std::move(reply));
      has_held_.notify_all();
    });
    thread_ = std::thread([this] { server_->Run(2); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    server_->Stop(milliseconds(0));
    thread_.join();
    held_.clear();
    server_.reset();
  }
  std::shared_ptr<HttpReply> Held(size_t index = 0) {
    std::unique_lock lock(mutex_);
    CHECK(has_held_.wait_for(lock, std::chrono::seconds(5), [&] { return held_.size() > index; }));
    return held_[index];
  }
  bool WaitForGone(int count, milliseconds patience = milliseconds(2000)) {
    const auto end = Clock::now() + patience;
    while (num_gone_ < count && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
    return num_gone_ == count;
  }
  std::string Ask(const std::string& bytes) {
    Client client(server_->port());
    client.Send(bytes);
    return client.ReadAll();
  }
  static std::string Get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  void ExpectAlive() {
    EXPECT_EQ(StatusOf(Ask("GET /alive HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), 200);
  }

  std::optional<HttpServer> server_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable has_held_;
  std::vector<std::shared_ptr<HttpReply>> held_;
  std::atomic<int> num_gone_{0};
};

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
}

TEST_F(HttpServerTest, RefusesWhatBreaksTheRules) {
  HttpLimits limits;
  limits.header_bytes = 4096;
  limits.target_bytes = 1000;
  limits.body_bytes = 1000;
  Start(limits);
  const std::string host = "Host: x\r\n";
  const struct {
    std::string bytes;
    int status;
  } cases[] = {
      {"GET /\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET /../x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /%2e%2e/x HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a%2fb HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a%00b HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET /a%zz HTTP/1.1\r\n" + host + "\r\n", 400},
      {"GET * HTTP/1.1\r\n" + host + "\r\n", 400},
      {"CONNECT a:1 HTTP/1.1\r\n" + host + "\r\n", 405},
      {"TRACE / HTTP/1.1\r\n" + host + "\r\n", 405},
      {"GET /" + std::string(1100, 'a') + " HTTP/1.1\r\n" + host + "\r\n", 414},
      {"GET / HTTP/1.1\r\n" + host + "A: " + std::string(5000, 'a') + "\r\n\r\n", 431},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 1001\r\n\r\n", 413},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\n5dc\r\n" +
           std::string(1500, 'a') + "\r\n0\r\n\r\n",
       413},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: x\r\n\r\n", 400},
      {"POST / HTTP/1.1\r\n" + host + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"POST / HTTP/1.1\r\n" + host +
           "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST / HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {"POST / HTTP/1.1\r\n" + host + "Expect: tea\r\nContent-Length: 1\r\n\r\na", 417},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(StatusOf(Ask(c.bytes)), c.status) << testing::PrintToString(c.bytes.substr(0, 80));
  }
  ExpectAlive();
}

TEST_F(HttpServerTest, GivesUpOnSlowClients) {
  HttpLimits limits;
  limits.header_time = milliseconds(150);
  limits.body_time = milliseconds(150);
  limits.idle_time = milliseconds(150);
  Start(limits);
  EXPECT_EQ(StatusOf(Ask("GET / HT")), 408);
  EXPECT_EQ(StatusOf(Ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")), 408);
  Client idle(server_->port());
  EXPECT_EQ(idle.ReadAll(), "");
  EXPECT_TRUE(idle.is_closed());
  // A byte now and then does not win time.
  Client dripping(server_->port());
  const auto began = Clock::now();
  while (dripping.Send("G") && Clock::now() - began < std::chrono::seconds(3)) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
}

TEST_F(HttpServerTest, SeesClientsGo) {
  Start();
  Client closes(server_->port());
  closes.Send(Get("/hold"));
  const auto waiting = Held(0);
  closes.Close();
  EXPECT_TRUE(WaitForGone(1));
  EXPECT_TRUE(waiting->is_gone());

  Client resets(server_->port());
  resets.Send(Get("/hold"));
  Held(1)->Start(200, {}, {});
  resets.ReadUntil("\r\n\r\n");
  resets.Reset();
  EXPECT_TRUE(WaitForGone(2));

  Client streams(server_->port());
  streams.Send(Get("/hold"));
  const auto stream = Held(2);
  stream->Start(200, {}, {});
  for (int i = 0; i < 100; ++i) stream->Write("piece");
  streams.ReadUntil("piece");
  streams.Close();
  EXPECT_TRUE(WaitForGone(3));
  stream->Write("more");
  stream->End();
  bool is_called = false;
  stream->OnGone([&] { is_called = true; });
  EXPECT_TRUE(is_called);
  ExpectAlive();
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

TEST_F(HttpServerTest, DropsClientsThatDoNotRead) {
  HttpLimits limits;
  limits.write_time = milliseconds(200);
  limits.unsent_bytes = size_t{64} << 20;
  Start(limits);
  Client client(server_->port());
  client.ShrinkBuffer();
  client.Send(Get("/hold"));
  const auto reply = Held();
  reply->Start(200, {}, {});
  reply->Write(std::string(size_t{32} << 20, 'x'));
  EXPECT_TRUE(WaitForGone(1));
}

TEST_F(HttpServerTest, BoundsWhatWaitsForAClient) {
  HttpLimits limits;
  limits.unsent_bytes = size_t{8} << 20;
  Start(limits);
  Client client(server_->port());
  client.ShrinkBuffer();
  client.Send(Get("/hold"));
  const auto reply = Held();
  reply->Start(200, {}, {});
  for (int i = 0; i < 32; ++i) reply->Write(std::string(size_t{1} << 20, 'x'));
  EXPECT_TRUE(WaitForGone(1));
}

TEST_F(HttpServerTest, AFaultOfAHandlerIsItsRequestsAlone) {
  Start();
  Client client(server_->port());
  client.Send(Get("/fail"));
  EXPECT_EQ(StatusOf(client.ReadUntil("request\n")), 500);
  client.Send(Get("/next"));
  EXPECT_EQ(StatusOf(client.ReadUntil("/next")), 200);
}

TEST_F(HttpServerTest, TakesSoManyConnectionsAndNoMore) {
  HttpLimits limits;
  limits.connections = 3;
  Start(limits);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->Send(Get("/x"));
    clients.back()->ReadUntil("/x");
  }
  EXPECT_EQ(StatusOf(Client(server_->port()).ReadAll()), 503);
  clients.clear();
  std::this_thread::sleep_for(milliseconds(50));
  ExpectAlive();
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
