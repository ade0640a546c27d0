// A reply between the threads that write it and the connection that sends it. Any thread.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "server/http_message.h"
#include "server/http_server.h"

namespace hillstar {

class HttpStreamReply : public HttpReply {
 public:
  struct Request {
    std::string id;
    HttpHeaders more_headers;  // of every answer to it
    bool is_head = false;      // HEAD: no body is sent
    bool is_old = false;       // HTTP/1.0: no chunks
    bool keeps_alive = true;
    size_t max_unsent_bytes = 0;
  };
  // `wake` tells the connection that there is something to send, or that it has to end; called
  // without a lock, and not again before the connection has taken what there is.
  HttpStreamReply(Request request, std::function<void()> wake);

  void Send(int status, HttpHeaders headers, std::string body) override;
  void Start(int status, HttpHeaders headers, KeepAlive keep_alive) override;
  void Write(std::string bytes) override;
  void End() override;
  bool is_gone() const override;
  size_t unsent_bytes() const override;
  void OnGone(std::function<void()> callback) override;

  // For the connection.
  struct Pending {
    std::string bytes;
    bool has_ended = false;   // nothing comes behind these bytes
    bool keeps_alive = true;  // the connection, after the end
    std::chrono::milliseconds keep_alive_interval{0};
  };
  Pending Take();
  // Why the connection has to end now; "" where it need not.
  std::string_view fault() const;
  int status() const;  // 0 while there is no answer
  void NoteSent(size_t num_bytes);
  // A stream's sign of life.
  void WriteKeepAlive();
  // The client is gone, or the connection ends for another reason.
  void Leave();
  // Nobody will write any more. True where that is too early: no answer was begun, and one is due.
  bool IsAbandoned();

 private:
  // With the lock. True where the connection has to be woken.
  bool Append(std::string bytes);
  bool MustWake() { return !std::exchange(is_woken_, true); }

  const Request request_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;  // for what follows
  std::string pending_;
  size_t sending_ = 0;  // taken and not yet sent
  KeepAlive keep_alive_;
  int status_ = 0;
  bool has_started_ = false, has_ended_ = false, is_gone_ = false;
  bool is_woken_ = false;  // the connection will come and take what there is
  std::string_view fault_;
  std::function<void()> on_gone_;
};

}  // namespace hillstar
