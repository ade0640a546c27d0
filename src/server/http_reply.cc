#include "server/http_reply.h"

#include <fmt/format.h>

#include "core/log.h"

namespace hillstar {

HttpStreamReply::HttpStreamReply(Request request, std::function<void()> wake)
    : request_(std::move(request)), wake_(std::move(wake)) {}

bool HttpStreamReply::Append(std::string bytes) {
  if (!fault_.empty()) return false;  // the connection ends
  if (pending_.empty()) {
    pending_ = std::move(bytes);
  } else {
    pending_ += bytes;
  }
  if (has_started_ && fault_.empty() && pending_.size() + sending_ > request_.max_unsent_bytes) {
    fault_ = "reads its answer too slowly";
    return true;  // the connection may be waiting for the socket, and never come
  }
  return MustWake();
}

void HttpStreamReply::Send(int status, HttpHeaders headers, std::string body) {
  std::function<void()> forgotten;
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (has_started_ || has_ended_ || is_gone_) return;
    const bool has_body = status != 204 && status != 304;
    std::string text = WriteHead(status, headers, request_.more_headers, request_.id,
                                 has_body ? BodyFraming::kLength : BodyFraming::kNone, body.size(),
                                 request_.keeps_alive);
    if (has_body && !request_.is_head) text += body;
    status_ = status;
    has_ended_ = true;
    wakes = Append(std::move(text));
    on_gone_.swap(forgotten);
  }
  if (wakes) wake_();
}

void HttpStreamReply::Start(int status, HttpHeaders headers, KeepAlive keep_alive) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (has_started_ || has_ended_ || is_gone_) return;
    status_ = status;
    has_started_ = true;
    keep_alive_ = std::move(keep_alive);
    const BodyFraming framing = request_.is_old ? BodyFraming::kUntilClose : BodyFraming::kChunked;
    wakes = Append(WriteHead(status, headers, request_.more_headers, request_.id, framing, 0,
                             request_.keeps_alive && !request_.is_old));
  }
  if (wakes) wake_();
}

void HttpStreamReply::Write(std::string bytes) {
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (!has_started_ || has_ended_ || is_gone_ || bytes.empty() || request_.is_head) return;
    wakes = Append(request_.is_old ? std::move(bytes) : WriteChunk(bytes));
  }
  if (wakes) wake_();
}

void HttpStreamReply::End() {
  std::function<void()> forgotten;
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (!has_started_ || has_ended_ || is_gone_) return;
    has_ended_ = true;
    wakes = !request_.is_old && !request_.is_head ? Append("0\r\n\r\n") : MustWake();
    on_gone_.swap(forgotten);
  }
  if (wakes) wake_();
}

bool HttpStreamReply::is_gone() const {
  const std::lock_guard lock(mutex_);
  return is_gone_;
}

size_t HttpStreamReply::unsent_bytes() const {
  const std::lock_guard lock(mutex_);
  return pending_.size() + sending_;
}

void HttpStreamReply::OnGone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_gone_) {
      if (!has_ended_) on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

std::string_view HttpStreamReply::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

int HttpStreamReply::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

HttpStreamReply::Pending HttpStreamReply::Take() {
  const std::lock_guard lock(mutex_);
  is_woken_ = false;
  Pending pending;
  pending.bytes.swap(pending_);
  sending_ += pending.bytes.size();
  pending.has_ended = has_ended_;
  pending.keeps_alive = request_.keeps_alive && !(request_.is_old && has_started_);
  if (has_started_ && !has_ended_) pending.keep_alive_interval = keep_alive_.interval;
  return pending;
}

void HttpStreamReply::NoteSent(size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  sending_ -= num_bytes;
}

void HttpStreamReply::WriteKeepAlive() {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    text = keep_alive_.text;
  }
  Write(std::move(text));
}

void HttpStreamReply::Leave() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (is_gone_) return;
    is_gone_ = true;
    on_gone_.swap(callback);
    pending_.clear();
  }
  if (!callback) return;
  try {
    callback();
  } catch (const std::exception& failure) {
    LogError(fmt::format("request={} failed as its client went: {}", request_.id, failure.what()));
  }
}

bool HttpStreamReply::IsAbandoned() {
  {
    const std::lock_guard lock(mutex_);
    if (has_ended_ || is_gone_) return false;
    if (!has_started_) return true;
    fault_ = "has an answer that was given up halfway";
  }
  wake_();
  return false;
}

}  // namespace hillstar
