// A small HTTP/1.1 server: it knows limits, streams and clients that go away, and nothing of what
// is asked. Handlers are called on the threads of Run; replies may be used by any thread and keep
// what they need alive.
//
// A client counts as gone when its connection ends, also where it has only closed its sending half:
// no client that waits for an answer does that. What it sends ahead is read later, up to a bound.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hillstar {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;     // percent-decoded, without query; begins with '/'
  std::string query;    // as it came, without '?'
  HttpHeaders headers;  // names in lower case, in order
  std::string body;
  std::string id;    // the client's X-Request-Id where it is sane, else a new one
  std::string peer;  // "127.0.0.1:40212"
  std::chrono::steady_clock::time_point received;
  // "" where there is none; the first of several.
  std::string_view Header(std::string_view lower_case_name) const;
};

// Written whenever a stream was silent for so long; 0: never.
struct KeepAlive {
  std::chrono::milliseconds interval{0};
  std::string text;
};

// Calls after the client has gone, or after the end, do nothing. A reply that all have let go of
// without an answer becomes a 500; one that was let go of halfway, an end of the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // The whole answer.
  virtual void Send(int status, HttpHeaders headers, std::string body) = 0;
  // A stream: then Write as often as there is something, then End.
  virtual void Start(int status, HttpHeaders headers, KeepAlive keep_alive) = 0;
  virtual void Write(std::string bytes) = 0;
  virtual void End() = 0;
  virtual bool is_gone() const = 0;
  virtual size_t unsent_bytes() const = 0;  // that the socket has not taken yet
  // Called once if the client goes before the answer has ended, at once if it has gone already.
  virtual void OnGone(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;

// An answer without a handler.
struct HttpRefusal {
  int status = 400;
  HttpHeaders headers = {};
  std::string body = {};
};

struct HttpLimits {
  size_t header_bytes = 16384;
  size_t headers = 256;
  size_t target_bytes = 8192;
  size_t body_bytes = size_t{32} << 20;
  size_t unsent_bytes = size_t{32} << 20;  // of a client that reads too slowly
  size_t connections = 2048;
  std::chrono::milliseconds header_time{10'000};
  std::chrono::milliseconds body_time{30'000};  // and more for each byte:
  size_t body_bytes_per_second = 16384;
  std::chrono::milliseconds idle_time{75'000};   // between requests
  std::chrono::milliseconds write_time{60'000};  // without progress
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  HttpLimits limits;
  // Looks at a request's head before its body is read; may be empty.
  std::function<std::optional<HttpRefusal>(const HttpRequest& head)> check_head;
  // More headers of the answer to this request; may be empty.
  std::function<HttpHeaders(const HttpRequest& head)> extra_headers;
  // The answer to what is refused here.
  std::function<HttpRefusal(int status, std::string_view path, const std::string& sentence)>
      make_error;
};

struct HttpCounts {
  uint64_t connections = 0;  // open now
  uint64_t accepted = 0, refused = 0, requests = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
  // That have ended, refusals too, by the status's first digit; [0]: the client went before one.
  std::array<uint64_t, 6> answers{};
};

class HttpServer {
 public:
  // Listens, at all addresses of a name. Errors: kIo naming address and reason; kUsage for a host
  // that is none.
  HttpServer(HttpServerOptions options, HttpHandler handler);
  // REQUIRES that Run has returned or was never called.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  std::string address() const;  // "127.0.0.1:8080", "[::1]:8080"; the first of several
  // Serves until Stop. Once.
  void Run(int num_threads);
  // Any thread. Takes no more connections; running answers may end within the grace.
  void Stop(std::chrono::milliseconds grace);
  HttpCounts counts() const;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace hillstar
