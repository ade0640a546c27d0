// One client's connection: reads requests one after another, hands them out, writes answers, and
// sees when the client goes. Everything but the reply's methods runs on the connection's strand.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <array>
#include <atomic>

#include "server/http_head.h"
#include "server/http_reply.h"

namespace hillstar {

// What connections have in common. Replies hold it too, as they wake connections: it goes last.
struct HttpShared {
  boost::asio::io_context context;
  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<bool> is_stopping{false};
  std::atomic<uint64_t> connections{0}, accepted{0}, refused{0}, requests{0}, bytes_in{0},
      bytes_out{0};
  std::array<std::atomic<uint64_t>, 6> answers{};

  void CountAnswer(int status) { ++answers[size_t(status) / 100 % answers.size()]; }
  // Shaped by make_error.
  HttpRefusal RefusalFor(const HttpFault& fault, const HttpRequest& request) const;
};

// "127.0.0.1:8080", "[::1]:8080".
std::string EndpointText(const boost::asio::ip::tcp::endpoint& end);

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  HttpConnection(Socket socket, std::shared_ptr<HttpShared> shared);
  ~HttpConnection();

  // Serves the client until the connection ends.
  boost::asio::awaitable<void> Serve();
  // Tells the client that there is no room, and ends.
  boost::asio::awaitable<void> TurnAway();
  // On the strand: ends the connection, at once where nothing is being answered.
  void EndWhenIdle();
  void Close();
  Strand strand() { return socket_.get_executor(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Timer = boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand>;
  struct Waker;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  boost::asio::awaitable<void> Watchdog();
  void SetDeadline(std::chrono::milliseconds from_now);
  void SetNoDeadline();

  // Reads the next request and gives it to the handler. False where the connection is to end.
  boost::asio::awaitable<bool> TakeRequest();
  boost::asio::awaitable<bool> WaitForFirstByte();
  // Both into `request`. False where it is refused, or the client has gone.
  boost::asio::awaitable<bool> TakeHead(Parser& parser, HttpRequest* request);
  boost::asio::awaitable<bool> TakeBody(Parser& parser, HttpRequest* request);
  std::optional<HttpRefusal> CheckHead(const HttpRequest& request) const;
  void Handle(HttpRequest request, bool is_old);
  std::shared_ptr<HttpStreamReply> MakeReply(const HttpRequest& request, bool is_old);
  boost::asio::awaitable<void> Refuse(const HttpFault& fault, const HttpRequest& request);
  boost::asio::awaitable<void> Send(const HttpRefusal& refusal, const HttpRequest& request);

  // Writes what the reply has until it has ended or the client is gone.
  boost::asio::awaitable<void> Answer();
  boost::asio::awaitable<void> WaitForMore(std::chrono::milliseconds keep_alive_interval);
  // The reply has something to send, or the connection has to end.
  void TakeWake();
  // `reply` is told of what has been sent; none where it is not a reply's.
  boost::asio::awaitable<bool> WriteAll(std::string_view bytes, HttpStreamReply* reply = nullptr);
  // Reads ahead while an answer is due, to see the client go.
  void Watch();
  void LookAhead();
  // What has come, up to `max_bytes` in the buffer. False where the connection has ended.
  bool ReadWhatIsThere(size_t max_bytes);
  boost::asio::awaitable<void> EndWatch();
  void FreeBuffer();
  boost::asio::awaitable<void> CloseGently();

  const std::shared_ptr<HttpShared> shared_;
  Socket socket_;
  std::string peer_;
  boost::beast::flat_buffer buffer_;
  Timer watchdog_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool has_timed_out_ = false;
  Timer changed_;     // cancelled when the reply has something
  Timer look_again_;  // at a client that has sent too much ahead to be read
  bool is_idle_ = true;
  bool is_closed_ = false;
  bool keeps_alive_ = true;
  bool is_watching_ = false;
  bool ends_watch_ = false;
  std::shared_ptr<HttpStreamReply> reply_;  // while an answer is due
};

}  // namespace hillstar
