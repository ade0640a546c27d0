#include "server/http_connection.h"

#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/none.hpp>

#include "core/log.h"

namespace hillstar {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;

namespace {

// Of requests behind the one that is being answered.
constexpr size_t kReadAheadBytes = 16384;
// What Beast may read beyond a head, and all that may stand between two pieces of a body.
constexpr size_t kReadBytes = 65536;
constexpr size_t kFirstBytes = 512;
constexpr milliseconds kLookAgain{20};
constexpr milliseconds kCancelAgain{20};

bool HasEnded(int descriptor) {
  pollfd polled{descriptor, POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0 && (polled.revents & (POLLRDHUP | POLLERR | POLLHUP)) != 0;
}

}  // namespace

std::string EndpointText(const asio::ip::tcp::endpoint& end) {
  const std::string address = end.address().to_string();
  return fmt::format("{}:{}", end.address().is_v6() ? "[" + address + "]" : address, end.port());
}

HttpRefusal HttpShared::RefusalFor(const HttpFault& fault, const HttpRequest& request) const {
  try {
    if (options.make_error) return options.make_error(fault.status, request.path, fault.sentence);
  } catch (const std::exception& failure) {
    LogError(fmt::format("a refusal could not be written: {}", failure.what()));
  }
  return {fault.status, {{"Content-Type", "text/plain"}}, fault.sentence + "\n"};
}

HttpConnection::HttpConnection(Socket socket, std::shared_ptr<HttpShared> shared)
    : shared_(std::move(shared)),
      socket_(std::move(socket)),
      buffer_(shared_->options.limits.header_bytes + kReadAheadBytes + kReadBytes),
      watchdog_(socket_.get_executor()),
      changed_(socket_.get_executor()),
      look_again_(socket_.get_executor()) {
  ++shared_->connections;
  error_code error;
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  socket_.non_blocking(true, error);
  const auto end = socket_.remote_endpoint(error);
  if (!error) peer_ = EndpointText(end);
}

HttpConnection::~HttpConnection() { --shared_->connections; }

void HttpConnection::SetDeadline(milliseconds from_now) {
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
    socket_.cancel(error);
    // An operation that was just between two reads goes on with the next: until it has noticed.
    deadline_ = Clock::now() + kCancelAgain;
  }
}

void HttpConnection::Close() {
  if (is_closed_) return;
  is_closed_ = true;
  error_code error;
  socket_.close(error);
  watchdog_.cancel();
  changed_.cancel();
  look_again_.cancel();
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
    co_await Answer();
    shared_->CountAnswer(reply_->status());
    reply_.reset();
  }
  if (!is_closed_) co_await CloseGently();
  Close();
}

asio::awaitable<void> HttpConnection::TurnAway() {
  const auto self = shared_from_this();
  asio::co_spawn(socket_.get_executor(), Watchdog(), asio::detached);
  is_idle_ = false;
  const HttpRequest unread;
  HttpRefusal refusal =
      shared_->RefusalFor({503, "there are too many connections (--max-connections)"}, unread);
  refusal.headers.push_back({"Retry-After", "1"});
  co_await Send(refusal, unread);
  if (!is_closed_) co_await CloseGently();
  Close();
}

// An idle connection holds no memory to read into.
void HttpConnection::FreeBuffer() {
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
}

// Passes over one empty line: old clients send one behind a body.
asio::awaitable<bool> HttpConnection::WaitForFirstByte() {
  is_idle_ = true;
  for (bool may_pass_over = true; !is_closed_;) {
    const auto got = buffer_.data();
    const std::string_view ahead(static_cast<const char*>(got.data()), got.size());
    const bool is_empty_line = ahead.substr(0, 2) == "\r\n";
    if (!ahead.empty() && !(is_empty_line && may_pass_over)) break;
    if (is_empty_line) {
      buffer_.consume(2);
      may_pass_over = false;
      continue;
    }
    if (!keeps_alive_ || shared_->is_stopping) co_return false;
    FreeBuffer();
    SetDeadline(shared_->options.limits.idle_time);
    error_code error;
    co_await socket_.async_wait(Socket::wait_read,
                                asio::redirect_error(asio::use_awaitable, error));
    if (error || has_timed_out_ || !ReadWhatIsThere(kFirstBytes)) co_return false;
  }
  is_idle_ = false;
  co_return !is_closed_;
}

asio::awaitable<void> HttpConnection::Send(const HttpRefusal& refusal, const HttpRequest& request) {
  keeps_alive_ = false;
  shared_->CountAnswer(refusal.status);
  const BodyFraming framing = refusal.status == 204 ? BodyFraming::kNone : BodyFraming::kLength;
  const std::string id = request.id.empty() ? RequestId("") : request.id;
  std::string text =
      WriteHead(refusal.status, refusal.headers, {}, id, framing, refusal.body.size(), false);
  if (request.method != "HEAD" && framing == BodyFraming::kLength) text += refusal.body;
  co_await WriteAll(text);
}

asio::awaitable<void> HttpConnection::Refuse(const HttpFault& fault, const HttpRequest& request) {
  HttpRefusal refusal = shared_->RefusalFor(fault, request);
  if (shared_->options.extra_headers && !request.path.empty()) {
    for (auto& header : shared_->options.extra_headers(request)) {
      refusal.headers.push_back(std::move(header));
    }
  }
  co_await Send(refusal, request);
}

std::optional<HttpRefusal> HttpConnection::CheckHead(const HttpRequest& request) const {
  if (!shared_->options.check_head) return std::nullopt;
  try {
    return shared_->options.check_head(request);
  } catch (const std::exception& failure) {
    LogError(fmt::format("request={} failed before its body: {}", request.id, failure.what()));
    return shared_->RefusalFor({500, "the server failed at this request"}, request);
  }
}

asio::awaitable<bool> HttpConnection::TakeHead(Parser& parser, HttpRequest* request) {
  const HttpLimits& limits = shared_->options.limits;
  SetDeadline(limits.header_time);
  parser.header_limit(uint32_t(limits.header_bytes));
  parser.body_limit(boost::none);  // who may ask is looked at first
  error_code error;
  // Read by read: where bytes are always there no read is ever waiting, to be cut off in time.
  while (!error && !has_timed_out_ && !parser.is_header_done()) {
    shared_->bytes_in += co_await http::async_read_some(
        socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
  }
  request->peer = peer_;
  request->received = Clock::now();
  std::optional<HttpFault> fault;
  if (!error && parser.is_header_done()) {
    fault = ReadHead(parser.get(), limits, request);
  } else {
    fault = has_timed_out_ ? TooSlow() : FaultOf(error, limits);
    if (!fault) Close();
  }
  if (is_closed_) co_return false;
  if (fault) {
    co_await Refuse(*fault, *request);
    co_return false;
  }
  if (const std::optional<HttpRefusal> refusal = CheckHead(*request)) {
    co_await Send(*refusal, *request);
    co_return false;
  }
  const HttpFault too_long = TooLong(limits);
  if (parser.content_length().value_or(0) > limits.body_bytes) {
    co_await Refuse(too_long, *request);
    co_return false;
  }
  parser.body_limit(limits.body_bytes);
  co_return true;
}

asio::awaitable<bool> HttpConnection::TakeBody(Parser& parser, HttpRequest* request) {
  const HttpLimits& limits = shared_->options.limits;
  const auto began = Clock::now();
  size_t num_bytes = 0;
  while (!parser.is_done()) {
    const milliseconds earned(1000 * num_bytes / limits.body_bytes_per_second);
    const auto end = began + limits.body_time + earned;
    SetDeadline(std::chrono::duration_cast<milliseconds>(end - Clock::now()));
    error_code error;
    const size_t taken = co_await http::async_read_some(
        socket_, buffer_, parser, asio::redirect_error(asio::use_awaitable, error));
    num_bytes += taken;
    shared_->bytes_in += taken;
    if (!error && !has_timed_out_) continue;
    const std::optional<HttpFault> fault = has_timed_out_ ? TooSlow() : FaultOf(error, limits);
    if (!fault) Close();
    if (!is_closed_) co_await Refuse(*fault, *request);
    co_return false;
  }
  request->body = std::move(parser.get().body());
  co_return true;
}

asio::awaitable<bool> HttpConnection::TakeRequest() {
  if (!co_await WaitForFirstByte()) co_return false;
  Parser parser;
  HttpRequest request;
  if (!co_await TakeHead(parser, &request)) co_return false;
  const bool is_old = parser.get().version() < 11;
  if (!is_old && !request.Header("expect").empty() && !parser.is_done()) {
    if (!co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  }
  if (!co_await TakeBody(parser, &request)) co_return false;
  SetNoDeadline();
  keeps_alive_ = keeps_alive_ && parser.keep_alive() && !shared_->is_stopping;
  ++shared_->requests;
  Handle(std::move(request), is_old);
  co_return true;
}

// A reply may be the last to go, so the strand goes before what it runs on.
struct HttpConnection::Waker {
  std::shared_ptr<HttpShared> shared;
  Strand strand;
  std::weak_ptr<HttpConnection> connection;

  void operator()() const {
    asio::post(strand, [weak = connection] {
      if (const auto self = weak.lock()) self->TakeWake();
    });
  }
};

std::shared_ptr<HttpStreamReply> HttpConnection::MakeReply(const HttpRequest& request,
                                                           bool is_old) {
  const HttpServerOptions& options = shared_->options;
  HttpStreamReply::Request expected;
  expected.id = request.id;
  if (options.extra_headers) expected.more_headers = options.extra_headers(request);
  expected.is_head = request.method == "HEAD";
  expected.is_old = is_old;
  expected.keeps_alive = keeps_alive_;
  expected.max_unsent_bytes = options.limits.unsent_bytes;
  return std::make_shared<HttpStreamReply>(std::move(expected),
                                           Waker{shared_, strand(), weak_from_this()});
}

void HttpConnection::Handle(HttpRequest request, bool is_old) {
  HttpRequest told;  // what stays of it
  told.id = request.id;
  told.path = request.path;
  reply_ = MakeReply(request, is_old);
  const auto fail = [shared = shared_, reply = reply_, told] {
    const HttpRefusal failed = shared->RefusalFor({500, "the server failed at this request"}, told);
    reply->Send(failed.status, failed.headers, failed.body);
  };
  const std::shared_ptr<HttpReply> given(reply_.get(), [reply = reply_, fail, told](HttpReply*) {
    if (!reply->IsAbandoned()) return;
    LogError(fmt::format("request={} was left without an answer", told.id));
    fail();
  });
  try {
    shared_->handler(std::move(request), given);
  } catch (const std::exception& failure) {
    LogError(fmt::format("request={} failed: {}", told.id, failure.what()));
    fail();
  }
}

void HttpConnection::TakeWake() {
  changed_.cancel();
  if (is_closed_ || !reply_ || reply_->fault().empty()) return;
  LogWarn(fmt::format("{} {} and is dropped", peer_, reply_->fault()));
  Close();
}

asio::awaitable<bool> HttpConnection::WriteAll(std::string_view bytes, HttpStreamReply* reply) {
  while (!bytes.empty()) {
    SetDeadline(shared_->options.limits.write_time);
    error_code error;
    const size_t sent = co_await socket_.async_write_some(
        asio::buffer(bytes.data(), bytes.size()), asio::redirect_error(asio::use_awaitable, error));
    shared_->bytes_out += sent;
    if (reply != nullptr) reply->NoteSent(sent);
    if (error) co_return false;
    bytes.remove_prefix(sent);
  }
  SetNoDeadline();
  co_return true;
}

void HttpConnection::Watch() {
  if (is_closed_) return;
  is_watching_ = true;
  const auto look = [self = shared_from_this()](const error_code& error) {
    self->is_watching_ = false;
    if (self->ends_watch_) {
      self->changed_.cancel();  // EndWatch waits for this; what has come is the next request's
    } else if (error) {
      self->Close();
    } else {
      self->LookAhead();
    }
  };
  if (buffer_.size() < kReadAheadBytes) {
    socket_.async_wait(Socket::wait_read, look);
  } else {  // an end behind so much would not be read
    look_again_.expires_after(kLookAgain);
    look_again_.async_wait(look);
  }
}

bool HttpConnection::ReadWhatIsThere(size_t max_bytes) {
  error_code error;
  // Room for what is there: thousands of streams wait with none.
  const size_t num_bytes = std::max<size_t>(socket_.available(error), 1);
  const auto room = buffer_.prepare(std::min(num_bytes, max_bytes - buffer_.size()));
  buffer_.commit(socket_.read_some(room, error));
  return !error || error == asio::error::would_block;
}

void HttpConnection::LookAhead() {
  const bool has_ended = buffer_.size() < kReadAheadBytes ? !ReadWhatIsThere(kReadAheadBytes)
                                                          : HasEnded(socket_.native_handle());
  if (has_ended) {
    Close();
  } else {
    Watch();
  }
}

asio::awaitable<void> HttpConnection::EndWatch() {
  error_code error;
  ends_watch_ = true;
  if (is_watching_) {
    socket_.cancel(error);
    look_again_.cancel();
  }
  while (is_watching_ && !is_closed_) {
    changed_.expires_at(Clock::time_point::max());
    co_await changed_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
}

asio::awaitable<void> HttpConnection::WaitForMore(milliseconds keep_alive_interval) {
  const bool has_sign = keep_alive_interval.count() > 0;
  changed_.expires_at(has_sign ? Clock::now() + keep_alive_interval : Clock::time_point::max());
  error_code error;
  co_await changed_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  if (!error && has_sign) reply_->WriteKeepAlive();
}

asio::awaitable<void> HttpConnection::Answer() {
  FreeBuffer();
  ends_watch_ = false;
  Watch();
  while (!is_closed_) {
    const HttpStreamReply::Pending pending = reply_->Take();
    if (!co_await WriteAll(pending.bytes, reply_.get())) break;
    if (pending.has_ended) {
      keeps_alive_ = keeps_alive_ && pending.keeps_alive;
      co_return co_await EndWatch();
    }
    if (pending.bytes.empty()) co_await WaitForMore(pending.keep_alive_interval);
  }
  Close();
}

// The client may still be sending what was refused: to close at once would reset the connection
// before it has read the answer.
asio::awaitable<void> HttpConnection::CloseGently() {
  constexpr milliseconds kPatience{1000}, kMostPatience{5000};  // more where bytes come in numbers
  constexpr size_t kBytesForMs = 1024;
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error || is_idle_) co_return;
  const auto began = Clock::now();
  size_t num_bytes = 0;
  has_timed_out_ = false;
  char bytes[4096];
  while (!error && !is_closed_ && !has_timed_out_) {
    const milliseconds patience = kPatience + milliseconds(num_bytes / kBytesForMs);
    const auto end = began + std::min(patience, kMostPatience);
    SetDeadline(std::chrono::duration_cast<milliseconds>(end - Clock::now()));
    num_bytes += co_await socket_.async_read_some(asio::buffer(bytes),
                                                  asio::redirect_error(asio::use_awaitable, error));
  }
}

}  // namespace hillstar
