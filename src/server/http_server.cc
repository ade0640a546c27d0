#include "server/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
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

namespace {

std::string TextOf(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "no reason is given";
  }
}

// A machine without IPv6 may still have names for its addresses.
bool IsOfNoInterface(const error_code& error) {
  return error == asio::error::address_family_not_supported ||
         error == boost::system::errc::address_not_available;
}

}  // namespace

// Runs on a strand of its own but for what is atomic.
class HttpServer::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(HttpServerOptions options, HttpHandler handler)
      : shared_(std::make_shared<HttpShared>()),
        strand_(asio::make_strand(shared_->context)),
        pause_(strand_),
        grace_(strand_) {
    shared_->options = std::move(options);
    shared_->handler = std::move(handler);
    Listen();
  }

  tcp::endpoint endpoint() const { return endpoint_; }
  const HttpShared& shared() const { return *shared_; }

  void Run(int num_threads) {
    for (Acceptor& acceptor : acceptors_) {
      asio::co_spawn(strand_, Accept(acceptor), asio::detached);
    }
    std::vector<std::thread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back([this] { Work(); });
    Work();
    for (std::thread& thread : threads) thread.join();
  }

  void Stop(std::chrono::milliseconds grace) {
    asio::post(strand_, [weak = weak_from_this(), grace] {
      if (const auto self = weak.lock()) self->StopHere(grace);
    });
  }

 private:
  using ConnectionPtr = std::shared_ptr<HttpConnection>;
  using Acceptor = asio::basic_socket_acceptor<tcp, HttpConnection::Strand>;

  // A fault of one connection that nobody has caught leaves the others alone.
  void Work() {
    for (bool has_ended = false; !has_ended;) {
      try {
        shared_->context.run();
        has_ended = true;
      } catch (...) {
        LogError("a fault between connections: " + TextOf(std::current_exception()));
      }
    }
  }

  // A name may have addresses of both kinds, of which clients take either.
  void Listen() {
    const HttpServerOptions& o = shared_->options;
    error_code error;
    tcp::resolver resolver(shared_->context);
    const auto found =
        resolver.resolve(o.host, std::to_string(o.port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      throw Error(ErrorCode::kUsage, fmt::format("--host {} is no address of this machine: {}",
                                                 o.host, error.message()));
    }
    const auto check = [&](bool is_right) {
      if (is_right) return;
      throw Error(ErrorCode::kIo, fmt::format("cannot listen on {} port {}: {} (--host, --port)",
                                              o.host, o.port, error.message()));
    };
    std::set<asio::ip::address> addresses;  // IPv4 first
    for (const auto& entry : found) addresses.insert(entry.endpoint().address());
    for (const asio::ip::address& address : addresses) {
      error = ListenAt({address, acceptors_.empty() ? o.port : endpoint_.port()});
      check(!error || IsOfNoInterface(error));
    }
    check(!acceptors_.empty());
  }

  error_code ListenAt(const tcp::endpoint& wanted) {
    Acceptor acceptor(strand_);
    error_code error;
    if (acceptor.open(wanted.protocol(), error)) return error;
    if (acceptor.set_option(tcp::acceptor::reuse_address(true), error)) return error;
    if (acceptor.bind(wanted, error)) return error;
    if (acceptor.listen(asio::socket_base::max_listen_connections, error)) return error;
    if (acceptors_.empty()) endpoint_ = acceptor.local_endpoint();
    acceptors_.push_back(std::move(acceptor));
    return {};
  }

  asio::awaitable<void> Accept(Acceptor& acceptor) {
    const auto self = shared_from_this();
    bool has_warned = false;
    while (acceptor.is_open()) {
      error_code error;
      HttpConnection::Socket socket(asio::make_strand(shared_->context));
      co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
      if (!acceptor.is_open()) break;
      if (error) {  // no more descriptors, most likely
        if (!std::exchange(has_warned, true)) {
          LogWarn(fmt::format("connections cannot be accepted: {}", error.message()));
        }
        pause_.expires_after(std::chrono::milliseconds(100));
        co_await pause_.async_wait(asio::redirect_error(asio::use_awaitable, error));
        continue;
      }
      has_warned = false;
      Begin(std::move(socket));
    }
  }

  void Begin(HttpConnection::Socket socket) {
    constexpr uint64_t kMaxTurnedAway = 64;  // at once; more are not even told
    const uint64_t most = shared_->options.limits.connections;
    ++shared_->accepted;
    const bool has_room = shared_->connections < most;
    if (!has_room) ++shared_->refused;
    if (shared_->connections >= most + kMaxTurnedAway) return;
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), shared_);
    connections_.insert(connection);
    asio::co_spawn(connection->strand(), has_room ? connection->Serve() : connection->TurnAway(),
                   [self = shared_from_this(), connection](const std::exception_ptr& failure) {
                     if (failure) {
                       LogError("a connection ended unexpectedly: " + TextOf(failure));
                       connection->Close();
                     }
                     asio::post(self->strand_, [self, connection] { self->Forget(connection); });
                   });
  }

  void Forget(const ConnectionPtr& connection) {
    connections_.erase(connection);
    if (shared_->is_stopping && connections_.empty()) grace_.cancel();
  }

  void StopHere(std::chrono::milliseconds grace) {
    shared_->is_stopping = true;
    error_code error;
    for (Acceptor& acceptor : acceptors_) acceptor.close(error);
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

  const std::shared_ptr<HttpShared> shared_;
  HttpConnection::Strand strand_;
  asio::basic_waitable_timer<std::chrono::steady_clock,
                             asio::wait_traits<std::chrono::steady_clock>, HttpConnection::Strand>
      pause_, grace_;
  std::vector<Acceptor> acceptors_;
  tcp::endpoint endpoint_;  // of the first
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
  HttpCounts counts{s.connections, s.accepted, s.refused, s.requests, s.bytes_in, s.bytes_out, {}};
  std::ranges::copy(s.answers, counts.answers.begin());
  return counts;
}

}  // namespace hillstar
