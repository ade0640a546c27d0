#include "server/http_server.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <set>
#include <thread>

#include "core/log.h"
#include "hillstar/error.h"
#include "server/http_connection.h"

namespace hillstar {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Runs on a strand of its own but for what is atomic.
class HttpServer::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(HttpServerOptions options, HttpHandler handler)
      : shared_(std::make_shared<HttpShared>()),
        strand_(asio::make_strand(context_)),
        acceptor_(strand_),
        pause_(strand_),
        grace_(strand_) {
    shared_->options = std::move(options);
    shared_->handler = std::move(handler);
    Listen();
  }

  tcp::endpoint endpoint() const { return endpoint_; }
  const HttpShared& shared() const { return *shared_; }

  void Run(int num_threads) {
    asio::co_spawn(strand_, Accept(), asio::detached);
    std::vector<std::thread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back([this] { context_.run(); });
    context_.run();
    for (std::thread& thread : threads) thread.join();
  }

  void Stop(std::chrono::milliseconds grace) {
    asio::post(strand_, [self = shared_from_this(), grace] { self->StopHere(grace); });
  }

 private:
  using ConnectionPtr = std::shared_ptr<HttpConnection>;

  void Listen() {
    const HttpServerOptions& o = shared_->options;
    error_code error;
    tcp::resolver resolver(context_);
    const auto found =
        resolver.resolve(o.host, std::to_string(o.port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      throw Error(ErrorCode::kUsage, fmt::format("--host {} is no address of this machine: {}",
                                                 o.host, error.message()));
    }
    const tcp::endpoint wanted = found.begin()->endpoint();
    const auto check = [&](const error_code& e) {
      if (!e) return;
      throw Error(ErrorCode::kIo, fmt::format("cannot listen on {} port {}: {} (--host, --port)",
                                              o.host, o.port, e.message()));
    };
    check(acceptor_.open(wanted.protocol(), error));
    check(acceptor_.set_option(tcp::acceptor::reuse_address(true), error));
    check(acceptor_.bind(wanted, error));
    check(acceptor_.listen(asio::socket_base::max_listen_connections, error));
    endpoint_ = acceptor_.local_endpoint();
  }

  asio::awaitable<void> Accept() {
    const auto self = shared_from_this();
    while (acceptor_.is_open()) {
      error_code error;
      HttpConnection::Socket socket(asio::make_strand(context_));
      co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (!acceptor_.is_open()) break;
      if (error) {  // no more descriptors, most likely
        LogWarn(fmt::format("a connection could not be accepted: {}", error.message()));
        pause_.expires_after(std::chrono::milliseconds(100));
        co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      Begin(std::move(socket));
    }
  }

  void Begin(HttpConnection::Socket socket) {
    const HttpServerOptions& o = shared_->options;
    ++shared_->accepted;
    if (shared_->connections >= o.limits.connections) {
      ++shared_->refused;
      const std::string sentence = "there are too many connections (--max-connections)";
      HttpRefusal refusal{503, {}, sentence};
      if (o.make_error) refusal = o.make_error(503, "", sentence);
      refusal.headers.push_back({"Retry-After", "1"});
      const std::string text = WriteHead(503, refusal.headers, {}, "", BodyFraming::kLength,
                                         refusal.body.size(), false) +
                               refusal.body;
      error_code error;
      socket.non_blocking(true, error);
      socket.write_some(asio::buffer(text), error);
      socket.close(error);
      return;
    }
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), shared_);
    connections_.insert(connection);
    asio::co_spawn(connection->strand(), connection->Serve(),
                   [self = shared_from_this(), connection](std::exception_ptr failure) {
                     if (failure) self->NoteFailure(failure, *connection);
                     asio::post(self->strand_, [self, connection] { self->Forget(connection); });
                   });
  }

  void NoteFailure(const std::exception_ptr& failure, HttpConnection& connection) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      LogError(fmt::format("a connection ended unexpectedly: {}", error.what()));
    }
    connection.Close();
  }

  void Forget(const ConnectionPtr& connection) {
    connections_.erase(connection);
    if (shared_->is_stopping && connections_.empty()) grace_.cancel();
  }

  void StopHere(std::chrono::milliseconds grace) {
    shared_->is_stopping = true;
    error_code error;
    acceptor_.close(error);
    pause_.cancel();
    for (const ConnectionPtr& connection : connections_) {
      asio::post(connection->strand(), [connection] { connection->EndWhenIdle(); });
    }
    if (connections_.empty()) return;
    grace_.expires_after(grace);
    grace_.async_wait([self = shared_from_this()](error_code aborted) {
      if (aborted) return;
      for (const ConnectionPtr& connection : self->connections_) {
        asio::post(connection->strand(), [connection] { connection->Close(); });
      }
    });
  }

  asio::io_context context_;
  const std::shared_ptr<HttpShared> shared_;
  HttpConnection::Strand strand_;
  asio::basic_socket_acceptor<tcp, HttpConnection::Strand> acceptor_;
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, HttpConnection::Strand>
      pause_, grace_;
  tcp::endpoint endpoint_;
  std::set<ConnectionPtr> connections_;
};

HttpServer::HttpServer(HttpServerOptions options, HttpHandler handler)
    : core_(std::make_shared<Core>(std::move(options), std::move(handler))) {}

HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return core_->endpoint().port(); }

std::string HttpServer::address() const { return EndpointText(core_->endpoint()); }

void HttpServer::Run(int num_threads) { core_->Run(num_threads); }
void HttpServer::Stop(std::chrono::milliseconds grace) { core_->Stop(grace); }

HttpCounts HttpServer::counts() const {
  const HttpShared& s = core_->shared();
  return {s.connections, s.accepted, s.refused, s.requests, s.bytes_in, s.bytes_out};
}

}  // namespace hillstar
