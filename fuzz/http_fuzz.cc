// The input, in pieces, to a server on this machine: whatever comes, the connection ends when the
// client does, what reaches the handler is as http_server.h says, and another client is answered.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <thread>

#include "core/check.h"
#include "core/log.h"
#include "server/http_server.h"

namespace {

using namespace hillstar;

constexpr size_t kMaxBodyBytes = 2000;
constexpr std::string_view kCleanRequest = "GET /clean HTTP/1.1\r\nHost: x\r\n\r\n";

// What may stand before the input.
constexpr std::string_view kBeginnings[] = {
    "",
    "GET /",
    "GET / HTTP/1.1\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nabcde\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n",
    "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"};

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

void CheckRequest(const HttpRequest& request) {
  CHECK(request.path.starts_with('/') && std::ranges::none_of(request.path, IsControl));
  CHECK(request.path.find("/../") == std::string::npos && !request.path.ends_with("/.."));
  CHECK(request.method != "TRACE" && request.method != "CONNECT" && !request.method.empty());
  CHECK(request.body.size() <= kMaxBodyBytes);
  CHECK(!request.id.empty() && request.id.size() <= 128);
  for (const auto& [name, value] : request.headers) {
    CHECK(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }));
    CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
  }
}

// Serves until the program ends.
HttpServer& TheServer() {
  static HttpServer* const server = [] {
    SetLogLevel("error");
    HttpServerOptions options;
    options.port = 0;
    options.limits.header_bytes = 4096;
    options.limits.body_bytes = kMaxBodyBytes;
    auto* const started = new HttpServer(options, [](HttpRequest request, auto reply) {
      CheckRequest(request);
      if (request.path != "/stream") return reply->Send(200, {}, request.method + request.body);
      reply->Start(200, {}, {});
      for (int i = 0; i < 3; ++i) reply->Write(request.body + "piece");
      reply->End();
    });
    std::thread([started] { started->Run(1); }).detach();
    return started;
  }();
  return *server;
}

// libFuzzer's alarm interrupts whatever waits.
template <typename Call>
auto WithoutInterrupts(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Client {
 public:
  Client() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    // From one of 65,536 addresses of this machine: one has too few ports for so many connections.
    static uint16_t next = 0;
    sockaddr_in own{}, address{};
    own.sin_family = address.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl((INADDR_LOOPBACK & 0xff0000ffu) | uint32_t{next++} << 8);
    CHECK(bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof(own)) == 0);
    address.sin_port = htons(TheServer().port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // Goes on while it is interrupted.
    CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
          (errno == EINTR && Polls(POLLOUT)));
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const linger hard{1, 0};  // thousands a second must not wait for their end
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool Send(std::string_view bytes) {
    return WithoutInterrupts([&] { return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }) ==
           ssize_t(bytes.size());
  }
  void CloseSendingHalf() { shutdown(fd_, SHUT_WR); }
  // Until `end`, or the server's end of the connection where `end` is empty.
  std::string Read(std::string_view end) {
    std::string got;
    while (end.empty() || !got.ends_with(end)) {
      CHECK(Polls(POLLIN));
      char bytes[8192];
      const ssize_t n = WithoutInterrupts([&] { return recv(fd_, bytes, sizeof(bytes), 0); });
      if (n <= 0) break;
      got.append(bytes, size_t(n));
    }
    return got;
  }

 private:
  bool Polls(int16_t event) const {
    constexpr int kPatienceMs = 10'000;
    pollfd waiting{fd_, event, 0};
    return WithoutInterrupts([&] { return poll(&waiting, 1, kPatienceMs); }) == 1;
  }

  const int fd_;
};

void SendInPieces(Client* client, std::string_view bytes, uint8_t seed) {
  std::minstd_rand random(seed);
  while (!bytes.empty()) {
    const size_t n = seed == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 1 + random() % 64);
    if (!client->Send(bytes.substr(0, n))) return;
    bytes.remove_prefix(n);
    if (random() % 4 == 0) std::this_thread::yield();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view beginning = kBeginnings[data[0] % std::size(kBeginnings)];
  const std::string input(reinterpret_cast<const char*>(data + 2), size - 2);
  Client client;
  SendInPieces(&client, std::string(beginning) + input, data[1]);
  if (data[0] < 224) {  // else the client goes at once
    client.CloseSendingHalf();
    const std::string answer = client.Read("");
    CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "));
  }

  static auto* const clean = new Client;  // one for all inputs
  CHECK(clean->Send(kCleanRequest));
  CHECK(clean->Read("\r\n\r\nGET").starts_with("HTTP/1.1 200 OK\r\n"));
  return 0;
}
