// A server on a free port and clients that send raw bytes, for the tests of HTTP. Everything
// belongs to the test's thread but for what the handler touches, which is locked or atomic.
#pragma once

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
#include "server/http_server.h"

namespace hillstar {

// A client's socket.
class HttpTestClient {
  using Milliseconds = std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;

 public:
  explicit HttpTestClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  ~HttpTestClient() { Close(); }
  HttpTestClient(const HttpTestClient&) = delete;
  HttpTestClient& operator=(const HttpTestClient&) = delete;

  // False once the server has ended the connection.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(size_t(sent));
    }
    return true;
  }
  // What comes until `part` is there, the server closes, or the time is up.
  std::string ReadUntil(std::string_view part, Milliseconds patience = Milliseconds(5000)) {
    const auto end = Clock::now() + patience;
    std::string got;
    while (part.empty() || got.find(part) == std::string::npos) {
      const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now()).count();
      pollfd waiting{fd_, POLLIN, 0};
      if (left <= 0 || poll(&waiting, 1, int(left)) <= 0) break;
      char bytes[65536];
      const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
      if (n <= 0) {
        is_closed_ = true;
        break;
      }
      got.append(bytes, size_t(n));
    }
    return got;
  }
  std::string ReadAll(Milliseconds patience = Milliseconds(5000)) {
    return ReadUntil("", patience);
  }
  // Known after a read.
  bool is_closed() const { return is_closed_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  void CloseSendingHalf() { shutdown(fd_, SHUT_WR); }
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
  bool is_closed_ = false;
};

inline int StatusOf(const std::string& answer) {
  return answer.size() > 12 && answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9, 3)) : 0;
}

class HttpServerTest : public testing::Test {
 protected:
  using milliseconds = std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  using Client = HttpTestClient;

  void Start(HttpLimits limits = {}) {
    HttpServerOptions options;
    options.limits = limits;
    StartWith(std::move(options));
  }
  void StartWith(HttpServerOptions options) {
    options.port = 0;
    server_.emplace(std::move(options), [this](HttpRequest request, auto reply) {
      Handle(std::move(request), std::move(reply));
    });
    thread_ = std::thread([this] { server_->Run(2); });
  }
  void TearDown() override {
    if (thread_.joinable()) {
      server_->Stop(milliseconds(0));
      thread_.join();
    }
    held_.clear();
  }

  // The reply to the request of this number of those to /hold.
  std::shared_ptr<HttpReply> Held(size_t index = 0) {
    std::unique_lock lock(mutex_);
    CHECK(has_held_.wait_for(lock, std::chrono::seconds(10), [&] { return held_.size() > index; }));
    return held_[index];
  }
  template <typename Condition>
  static bool WaitFor(const Condition& condition, milliseconds patience = milliseconds(5000)) {
    const auto end = Clock::now() + patience;
    while (!condition() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
    return condition();
  }
  bool WaitForGone(int count) {
    return WaitFor([&] { return num_gone_ == count; });
  }
  std::string Ask(const std::string& bytes) {
    Client client(server_->port());
    client.Send(bytes);
    return client.ReadAll();
  }
  static std::string Get(const std::string& path) {
    return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  // `more` are headers, each with its line's end.
  static std::string Post(const std::string& path, const std::string& more,
                          const std::string& body = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n" + body;
  }
  void ExpectAlive() {
    EXPECT_EQ(StatusOf(Ask("GET /alive HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), 200);
  }

  std::optional<HttpServer> server_;
  std::thread thread_;
  std::mutex mutex_;  // for held_
  std::condition_variable has_held_;
  std::vector<std::shared_ptr<HttpReply>> held_;
  std::atomic<int> num_gone_{0};

 private:
  // /hold keeps its reply for the test, /fail throws, /drop lets go of its reply, /half too after a
  // beginning; all others give back what they are asked.
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/fail") throw std::runtime_error("a fault for the test");
    if (request.path == "/drop") return;
    if (request.path == "/half") {
      reply->Start(200, {}, {});
      return reply->Write("half");
    }
    if (request.path != "/hold") {
      return reply->Send(200, {}, request.method + " " + request.path + " " + request.body);
    }
    reply->OnGone([this] { ++num_gone_; });
    const std::lock_guard lock(mutex_);
    held_.push_back(std::move(reply));
    has_held_.notify_all();
  }
};

}  // namespace hillstar
