// For tests only: a reply that keeps what it was told, and a server over a scripted engine.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "engine/fake_engine.h"
#include "server/api_server.h"

namespace hillstar {

class FakeReply : public HttpReply {
 public:
  void Send(int status, HttpHeaders headers, std::string body) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    headers_ = std::move(headers);
    text_ += body;
    Finish();
  }
  void Start(int status, HttpHeaders headers, KeepAlive) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    headers_ = std::move(headers);
  }
  void Write(std::string bytes) override {
    const std::lock_guard lock(mutex_);
    text_ += bytes;
  }
  void End() override {
    const std::lock_guard lock(mutex_);
    Finish();
  }
  bool is_gone() const override { return false; }
  size_t unsent_bytes() const override { return 0; }
  void OnGone(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    if (!ended_) on_gone_ = std::move(callback);
  }

  // As if the client had closed its connection.
  void GoAway() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      callback.swap(on_gone_);
    }
    if (callback) callback();
  }
  // Waits for the end of the answer.
  std::string Text() {
    std::unique_lock lock(mutex_);
    has_ended_.wait(lock, [&] { return ended_; });
    return text_;
  }
  int status() {
    Text();
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  void Finish() {
    ended_ = true;
    on_gone_ = nullptr;
    has_ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable has_ended_;
  int status_ = 0;
  HttpHeaders headers_;
  std::string text_;
  std::function<void()> on_gone_;
  bool ended_ = false;
};

// Serves an engine, which outlives it, until it is destroyed.
class FakeServer {
 public:
  explicit FakeServer(Engine& engine, AnswerDefaults defaults = WithoutThinking(),
                      int64_t max_waiting = 512)
      : service_(engine, {.max_waiting = max_waiting, .batch = {}}),
        api_(std::make_unique<ApiServer>(engine, service_, OptionsWith(std::move(defaults)))),
        computing_([this] { service_.Run(); }) {}
  ~FakeServer() {
    service_.Stop(std::chrono::milliseconds(0));
    computing_.join();
    api_.reset();
  }

  std::shared_ptr<FakeReply> Ask(const std::string& method, const std::string& path,
                                 const std::string& body = "") {
    auto reply = std::make_shared<FakeReply>();
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    request.id = "id";
    request.headers = {{"content-type", "application/json"}};
    api_->Handle(std::move(request), reply);
    return reply;
  }
  std::shared_ptr<FakeReply> Post(const std::string& path, const OrderedJson& body) {
    return Ask("POST", path, body.dump());
  }
  AnswerService& service() { return service_; }

  static AnswerDefaults WithoutThinking() {
    AnswerDefaults defaults;
    defaults.chat.thinking = false;
    return defaults;
  }

 private:
  static ApiServer::Options OptionsWith(AnswerDefaults defaults) {
    return {.model = "fake",
            .device = "none",
            .defaults = std::move(defaults),
            .max_body_bytes = 1 << 20};
  }

  AnswerService service_;
  std::unique_ptr<ApiServer> api_;
  std::thread computing_;
};

}  // namespace hillstar
