// A reply between the threads that write it and the connection that sends it. Any thread.
#pragma once

#include <functional>
#include <mutex>
#include <string>

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
  // `wake` tells the connection that there is something to send; called without a lock.
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
    KeepAlive keep_alive;
  };
  Pending Take();
  // More waits to be sent than may: the client reads too slowly.
  bool overflows() const;
  void NoteSent(size_t num_bytes);
  // A stream's sign of life.
  void WriteKeepAlive();
  // The client is gone, or the connection ends for another reason.
  void Leave();

 private:
  void Append(std::string bytes);

  const Request request_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;  // for what follows
  std::string pending_;
  size_t sending_ = 0;  // taken and not yet sent
  KeepAlive keep_alive_;
  bool has_started_ = false, has_ended_ = false, is_gone_ = false, overflows_ = false;
  std::function<void()> on_gone_;
};

}  // namespace hillstar
