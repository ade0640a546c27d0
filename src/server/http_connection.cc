#include "server/http_connection.h"

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "core/log.h"

namespace hillstar {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadAheadBytes = 16384;

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return lower;
}

// The status for what Beast found wrong; 0: the client has gone.
int StatusOf(const error_code& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::bad_version) return 505;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  const bool is_message =
      error.category() == make_error_code(http::error::bad_line_ending).category();
  return is_message ? 400 : 0;
}

std::string SentenceOf(int status, const HttpLimits& limits) {
  switch (status) {
    case 408: return "the request came too slowly";
    case 413: return fmt::format("the request's body is larger than {} bytes", limits.body_bytes);
    case 431:
      return fmt::format("the request's headers are larger than {} bytes", limits.header_bytes);
    case 505: return "the request is not of HTTP/1.0 or HTTP/1.1";
    default: return "the request is not understood: it breaks HTTP's rules";
  }
}

}  // namespace

std::string EndpointText(const asio::ip::tcp::endpoint& end) {
  const std::string address = end.address().to_string();
  return fmt::format("{}:{}", end.address().is_v6() ? "[" + address + "]" : address, end.port());
}

HttpConnection::HttpConnection(Socket socket, std::shared_ptr<HttpShared> shared)
    : socket_(std::move(socket)),
      shared_(std::move(shared)),
      watchdog_(socket_.get_executor()),
      changed_(socket_.get_executor()) {
  ++shared_->connections;
  error_code error;
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  const auto end = socket_.remote_endpoint(error);
  if (!error) {
    peer_ = EndpointText(end);
  }
}

HttpConnection::~HttpConnection() { --shared_->connections; }

void HttpConnection::SetDeadline(std::chrono::milliseconds from_now) {
  deadline_ = Clock::now() + from_now;
  if (deadline_ < watchdog_.expiry()) watchdog_.expires_at(deadline_);
}

void HttpConnection::SetNoDeadline() { deadline_ = Clock::time_point::max(); }

// One timer for all deadlines: it looks again when the one that it knew is over.
asio::awaitable<void> HttpConnection::Watchdog() {
  const auto self = shared_from_this();
  constexpr std::chrono::seconds kLongest{3600};
  while (!is_closed_) {
    watchdog_.expires_at(std::min(deadline_, Clock::now() + kLongest));
    error_code error;
    co_await watchdog_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (is_closed_ || Clock::now() < deadline_) continue;
    has_timed_out_ = true;
    SetNoDeadline();
    socket_.cancel(error);
  }
}

void HttpConnection::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  error_code error;
  socket_.close(error);
  watchdog_.cancel();
  changed_.cancel();
  if (reply_) reply_->Leave();
}

void HttpConnection::EndWhenIdle() {
  keeps_alive_ = false;
  if (is_idle_) Close();
}

asio::awaitable<void> HttpConnection::Serve() {
  const auto self = shared_from_this();
  asio::co_spawn(socket_.get_executor(), Watchdog(), asio::detached);
  while (keeps_alive_ && !is_closed_) {
    if (!co_await TakeRequest()) break;
    co_await Answer(reply_);
    reply_.reset();
  }
  if (!is_closed_) co_await CloseGently();
  Close();
}

asio::awaitable<bool> HttpConnection::WaitForFirstByte() {
  if (buffer_.size() > 0) co_return true;
  is_idle_ = true;
  if (!keeps_alive_ || shared_->is_stopping) co_return false;
  SetDeadline(shared_->options.limits.idle_time);
  error_code error;
  co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(asio::use_awaitable, error));
  co_return !error && !has_timed_out_;
}

HttpRefusal HttpConnection::Refusal(int status, std::string_view path,
                                    const std::string& sentence) const {
  if (shared_->options.make_error) return shared_->options.make_error(status, path, sentence);
  return {status, {{"Content-Type", "text/plain"}}, sentence + "\n"};
}

asio::awaitable<void> HttpConnection::Refuse(const HttpRefusal& refusal, const std::string& id) {
  keeps_alive_ = false;
  const bool has_body = refusal.status != 204;
  const std::string text =
      WriteHead(refusal.status, refusal.headers, {}, id,
                has_body ? BodyFraming::kLength : BodyFraming::kNone, refusal.body.size(), false) +
      refusal.body;
  co_await WriteAll(text);
}

std::optional<HttpRequest> HttpConnection::TakeHead(const Parser& parser, HttpRefusal* refusal) {
  const auto& head = parser.get();
  HttpRequest request;
  request.received = Clock::now();
  request.peer = peer_;
  request.method = std::string(head.method_string());
  for (const auto& field : head) {
    request.headers.emplace_back(LowerCase(field.name_string()), std::string(field.value()));
  }
  request.id = RequestId(request.Header("x-request-id"));
  const auto fail = [&](int status, const std::string& sentence) {
    *refusal = Refusal(status, request.path, sentence);
    return std::nullopt;
  };
  if (head.target().size() > shared_->options.limits.target_bytes) {
    return fail(414, fmt::format("the request's target has {} bytes; {} are the most",
                                 head.target().size(), shared_->options.limits.target_bytes));
  }
  if (request.method == "CONNECT" || request.method == "TRACE") {
    return fail(405, request.method + " is not served");
  }
  const std::optional<HttpTarget> target = ParseTarget(head.target());
  if (!target) return fail(400, "the request's target is no path that could be here");
  request.path = target->path;
  request.query = target->query;
  const auto num_hosts = head.count(http::field::host);
  if (head.version() >= 11 && num_hosts == 0) return fail(400, "the request has no Host");
  if (num_hosts > 1) return fail(400, "the request has more than one Host");
  if (!target->host.empty()) {  // of an absolute target; it counts, not the header
    for (auto& [name, value] : request.headers) value = name == "host" ? target->host : value;
  }
  const std::string coding = LowerCase(request.Header("transfer-encoding"));
  if (!coding.empty() && coding != "chunked") {
    return fail(501, "the only transfer encoding that is understood is chunked");
  }
  if (!coding.empty() && !request.Header("content-length").empty()) {
    return fail(400, "the request has both Content-Length and Transfer-Encoding");
  }
  const std::string expected = LowerCase(request.Header("expect"));
  if (!expected.empty() && expected != "100-continue") {
    return fail(417, "the only expectation that is met is 100-continue");
  }
  return request;
}

asio::awaitable<bool> HttpConnection::ReadBody(Parser& parser, HttpRequest* request) {
  const HttpLimits& limits = shared_->options.limits;
  const auto began = Clock::now();
  size_t num_bytes = 0;
  while (!parser.is_done()) {
    const std::chrono::milliseconds earned(1000 * num_bytes / limits.body_bytes_per_second);
    deadline_ = began + limits.body_time + earned;
    SetDeadline(std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()));
    error_code error;
    num_bytes += co_await http::async_read_some(socket_, buffer_, parser,
                                                asio::redirect_error(asio::use_awaitable, error));
    if (!error) continue;
    const int status = has_timed_out_ ? 408 : StatusOf(error);
    const HttpRefusal refusal = Refusal(status, request->path, SentenceOf(status, limits));
    if (status != 0) co_await Refuse(refusal, request->id);
    co_return false;
  }
  shared_->bytes_in += num_bytes;
  request->body = std::move(parser.get().body());
  co_return true;
}

asio::awaitable<bool> HttpConnection::TakeRequest() {
  const HttpLimits& limits = shared_->options.limits;
  if (!co_await WaitForFirstByte()) co_return false;
  is_idle_ = false;
  SetDeadline(limits.header_time);
  Parser parser;
  parser.header_limit(uint32_t(limits.header_bytes));
  parser.body_limit(limits.body_bytes);
  error_code error;
  shared_->bytes_in += co_await http::async_read_header(
      socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    const int status = has_timed_out_ ? 408 : StatusOf(error);
    const auto target = ParseTarget(parser.get().target());  // of a head with too long a body
    const HttpRefusal refusal =
        Refusal(status, target ? target->path : "", SentenceOf(status, limits));
    if (status != 0) co_await Refuse(refusal, "");
    co_return false;
  }
  HttpRefusal refusal;
  std::optional<HttpRequest> request = TakeHead(parser, &refusal);
  if (!request) {
    co_await Refuse(refusal, "");
    co_return false;
  }
  if (shared_->options.check_head) {
    if (const auto refused = shared_->options.check_head(*request)) {
      co_await Refuse(*refused, request->id);
      co_return false;
    }
  }
  if (!request->Header("expect").empty() && !parser.is_done()) {
    if (!co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  }
  if (!co_await ReadBody(parser, &*request)) co_return false;
  SetNoDeadline();
  keeps_alive_ = keeps_alive_ && parser.keep_alive() && !shared_->is_stopping;
  ++shared_->requests;
  Handle(std::move(*request), parser.get().version() < 11);
  co_return true;
}

void HttpConnection::Handle(HttpRequest request, bool is_old) {
  const HttpServerOptions& options = shared_->options;
  const std::string id = request.id, path = request.path;
  HttpStreamReply::Request expected;
  expected.id = id;
  if (options.extra_headers) expected.more_headers = options.extra_headers(request);
  expected.is_head = request.method == "HEAD";
  expected.is_old = is_old;
  expected.keeps_alive = keeps_alive_;
  expected.max_unsent_bytes = options.limits.unsent_bytes;
  const auto wake = [weak = weak_from_this(), strand = socket_.get_executor()] {
    asio::post(strand, [weak] {
      if (const auto self = weak.lock()) self->TakeWake();
    });
  };
  reply_ = std::make_shared<HttpStreamReply>(std::move(expected), wake);
  try {
    shared_->handler(std::move(request), reply_);
  } catch (const std::exception& failure) {
    LogError(fmt::format("request={} failed: {}", id, failure.what()));
    const HttpRefusal failed = Refusal(500, path, "the server failed at this request");
    reply_->Send(failed.status, failed.headers, failed.body);
  }
}

void HttpConnection::TakeWake() {
  changed_.cancel();
  if (is_closed_ || !reply_ || !reply_->overflows()) return;
  LogWarn(fmt::format("{} reads its answer too slowly and is dropped", peer_));
  Close();
}

asio::awaitable<bool> HttpConnection::WriteAll(std::string_view bytes) {
  while (!bytes.empty()) {
    SetDeadline(shared_->options.limits.write_time);
    error_code error;
    const size_t sent = co_await socket_.async_write_some(
        asio::buffer(bytes.data(), bytes.size()), asio::redirect_error(asio::use_awaitable, error));
    shared_->bytes_out += sent;
    if (error) co_return false;
    bytes.remove_prefix(sent);
  }
  SetNoDeadline();
  co_return true;
}

void HttpConnection::Watch() {
  if (is_closed_ || buffer_.size() >= kReadAheadBytes) return;
  is_watching_ = true;
  const auto room = buffer_.prepare(kReadAheadBytes - buffer_.size());
  socket_.async_read_some(room, [self = shared_from_this()](error_code error, size_t num_bytes) {
    self->is_watching_ = false;
    self->buffer_.commit(num_bytes);
    if (self->ends_watch_) {
      self->changed_.cancel();  // EndWatch waits for this; bytes that came are the next request's
    } else if (error) {
      self->Close();
    } else {
      self->Watch();
    }
  });
}

asio::awaitable<void> HttpConnection::EndWatch() {
  error_code error;
  ends_watch_ = true;
  if (is_watching_) socket_.cancel(error);
  while (is_watching_ && !is_closed_) {
    changed_.expires_at(Clock::time_point::max());
    co_await changed_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

asio::awaitable<void> HttpConnection::Answer(const std::shared_ptr<HttpStreamReply>& given) {
  const std::shared_ptr<HttpStreamReply> reply = given;
  ends_watch_ = false;
  Watch();
  while (!is_closed_) {
    const HttpStreamReply::Pending pending = reply->Take();
    if (!pending.bytes.empty()) {
      const bool is_sent = co_await WriteAll(pending.bytes);
      reply->NoteSent(pending.bytes.size());
      if (!is_sent) break;
      if (!pending.has_ended) continue;
    }
    if (pending.has_ended) {
      keeps_alive_ = keeps_alive_ && pending.keeps_alive;
      co_await EndWatch();
      co_return;
    }
    const bool has_sign = pending.keep_alive.interval.count() > 0;
    const auto silent_until =
        has_sign ? Clock::now() + pending.keep_alive.interval : Clock::time_point::max();
    changed_.expires_at(silent_until);
    error_code error;
    co_await changed_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    if (!error && has_sign) reply->WriteKeepAlive();
  }
  Close();
  reply->Leave();
}

// The client may still be sending what was refused: to close at once would reset the connection
// before it has read the answer.
asio::awaitable<void> HttpConnection::CloseGently() {
  constexpr size_t kMaxDrainedBytes = size_t{1} << 20;
  constexpr std::chrono::milliseconds kPatience{1000};
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error || is_idle_) co_return;
  SetDeadline(kPatience);
  char bytes[4096];
  for (size_t drained = 0; drained < kMaxDrainedBytes && !error && !is_closed_;) {
    drained += co_await socket_.async_read_some(asio::buffer(bytes),
                                                asio::redirect_error(asio::use_awaitable, error));
  }
}

}  // namespace hillstar
