#include "server/http_reply.h"

namespace hillstar {

HttpStreamReply::HttpStreamReply(Request request, std::function<void()> wake)
    : request_(std::move(request)), wake_(std::move(wake)) {}

void HttpStreamReply::Append(std::string bytes) {
  if (pending_.empty()) {
    pending_ = std::move(bytes);
  } else {
    pending_ += bytes;
  }
  overflows_ |= pending_.size() + sending_ > request_.max_unsent_bytes && has_started_;
}

void HttpStreamReply::Send(int status, HttpHeaders headers, std::string body) {
  std::function<void()> forgotten;
  {
    const std::lock_guard lock(mutex_);
    if (has_started_ || has_ended_ || is_gone_) return;
    const bool has_body = status != 204 && status != 304;
    std::string text = WriteHead(status, headers, request_.more_headers, request_.id,
                                 has_body ? BodyFraming::kLength : BodyFraming::kNone, body.size(),
                                 request_.keeps_alive);
    if (has_body && !request_.is_head) text += body;
    Append(std::move(text));
    has_ended_ = true;
    on_gone_.swap(forgotten);
  }
  wake_();
}

void HttpStreamReply::Start(int status, HttpHeaders headers, KeepAlive keep_alive) {
  {
    const std::lock_guard lock(mutex_);
    if (has_started_ || has_ended_ || is_gone_) return;
    has_started_ = true;
    keep_alive_ = std::move(keep_alive);
    const BodyFraming framing = request_.is_old ? BodyFraming::kUntilClose : BodyFraming::kChunked;
    Append(WriteHead(status, headers, request_.more_headers, request_.id, framing, 0,
                     request_.keeps_alive && !request_.is_old));
  }
  wake_();
}

void HttpStreamReply::Write(std::string bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_started_ || has_ended_ || is_gone_ || bytes.empty() || request_.is_head) return;
    Append(request_.is_old ? std::move(bytes) : WriteChunk(bytes));
  }
  wake_();
}

void HttpStreamReply::End() {
  std::function<void()> forgotten;
  {
    const std::lock_guard lock(mutex_);
    if (!has_started_ || has_ended_ || is_gone_) return;
    if (!request_.is_old && !request_.is_head) Append("0\r\n\r\n");
    has_ended_ = true;
    on_gone_.swap(forgotten);
  }
  wake_();
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

bool HttpStreamReply::overflows() const {
  const std::lock_guard lock(mutex_);
  return overflows_;
}

HttpStreamReply::Pending HttpStreamReply::Take() {
  const std::lock_guard lock(mutex_);
  Pending pending;
  pending.bytes.swap(pending_);
  sending_ += pending.bytes.size();
  pending.has_ended = has_ended_;
  pending.keeps_alive = request_.keeps_alive && !(request_.is_old && has_started_);
  if (has_started_ && !has_ended_) pending.keep_alive = keep_alive_;
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
  if (callback) callback();
}

}  // namespace hillstar
