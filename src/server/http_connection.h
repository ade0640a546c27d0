// One client's connection: reads requests one after another, hands them out, writes answers, and
// sees when the client goes. Everything but the reply's methods runs on the connection's strand.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <atomic>

#include "server/http_reply.h"

namespace hillstar {

// What connections have in common; outlives them.
struct HttpShared {
  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<bool> is_stopping{false};
  std::atomic<uint64_t> connections{0}, accepted{0}, refused{0}, requests{0}, bytes_in{0},
      bytes_out{0};
};

// "127.0.0.1:8080", "[::1]:8080".
std::string EndpointText(const boost::asio::ip::tcp::endpoint& end);

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  // `keep_alive` holds what the sockets need.
  HttpConnection(Socket socket, std::shared_ptr<HttpShared> shared);
  ~HttpConnection();

  // Serves the client until the connection ends.
  boost::asio::awaitable<void> Serve();
  // On the strand: ends the connection, at once where nothing is being answered.
  void EndWhenIdle();
  void Close();
  Strand strand() { return socket_.get_executor(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Timer = boost::asio::basic_waitable_timer<Clock, boost::asio::wait_traits<Clock>, Strand>;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  boost::asio::awaitable<void> Watchdog();
  void SetDeadline(std::chrono::milliseconds from_now);
  void SetNoDeadline();

  // Reads the next request and gives it to the handler. False where the connection is to end.
  boost::asio::awaitable<bool> TakeRequest();
  void Handle(HttpRequest request, bool is_old);
  boost::asio::awaitable<bool> WaitForFirstByte();
  // Into `request`. False where it is refused, or the client has gone.
  boost::asio::awaitable<bool> ReadBody(Parser& parser, HttpRequest* request);
  // Nothing where the head is refused; `refusal` then says how.
  std::optional<HttpRequest> TakeHead(const Parser& parser, HttpRefusal* refusal);
  HttpRefusal Refusal(int status, std::string_view path, const std::string& sentence) const;
  boost::asio::awaitable<void> Refuse(const HttpRefusal& refusal, const std::string& id);

  // Writes what the reply has until it has ended or the client is gone.
  boost::asio::awaitable<void> Answer(const std::shared_ptr<HttpStreamReply>& reply);
  // The reply has something to send, or too much.
  void TakeWake();
  boost::asio::awaitable<bool> WriteAll(std::string_view bytes);
  // Reads ahead while an answer is due, to see the client go.
  void Watch();
  boost::asio::awaitable<void> EndWatch();
  boost::asio::awaitable<void> CloseGently();

  Socket socket_;
  const std::shared_ptr<HttpShared> shared_;
  std::string peer_;
  boost::beast::flat_buffer buffer_;
  Timer watchdog_;
  Clock::time_point deadline_ = Clock::time_point::max();
  bool has_timed_out_ = false;
  Timer changed_;  // cancelled when the reply has something
  bool is_idle_ = true;
  bool is_closed_ = false;
  bool keeps_alive_ = true;
  bool is_watching_ = false;
  bool ends_watch_ = false;
  std::shared_ptr<HttpStreamReply> reply_;  // while an answer is due
};

}  // namespace hillstar
