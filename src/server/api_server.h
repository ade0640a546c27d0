// The routes of the server: which path is answered how. Handlers are called on threads that do
// network input and output; requests for answers are read and rendered on a thread of their own.
#pragma once

#include <memory>
#include <string>

#include "server/answer_service.h"
#include "server/api_error.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/reply_writer.h"
#include "server/response_store.h"

namespace hillstar {

class ApiServer {
 public:
  struct Options {
    std::string model;   // the name that answers carry
    std::string device;  // what computes, for people
    AnswerDefaults defaults;
    bool needs_key = false;  // told by /health
    size_t max_body_bytes = 0;
  };
  // `engine` and `service` outlive the object.
  ApiServer(Engine& engine, AnswerService& service, Options options);
  ~ApiServer();

  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply);

 private:
  struct Route;
  using RequestPtr = std::shared_ptr<HttpRequest>;
  using ReplyPtr = std::shared_ptr<HttpReply>;
  static std::span<const Route> Routes();
  static std::string RouteName(std::string_view path);

  void Run(const Route& route, const RequestPtr& request, const ReplyPtr& reply);
  void Health(const RequestPtr& request, const ReplyPtr& reply);
  void Metrics(const RequestPtr& request, const ReplyPtr& reply);
  void Live(const RequestPtr& request, const ReplyPtr& reply);
  void Models(const RequestPtr& request, const ReplyPtr& reply);
  void Model(const RequestPtr& request, const ReplyPtr& reply);
  void ChatCompletions(const RequestPtr& request, const ReplyPtr& reply);
  void Completions(const RequestPtr& request, const ReplyPtr& reply);
  void Messages(const RequestPtr& request, const ReplyPtr& reply);
  void CountTokens(const RequestPtr& request, const ReplyPtr& reply);
  void Responses(const RequestPtr& request, const ReplyPtr& reply);
  void KeptResponse(const RequestPtr& request, const ReplyPtr& reply);
  void DeleteResponse(const RequestPtr& request, const ReplyPtr& reply);

  // Takes the body out of the request, which may live as long as its answer.
  OrderedJson TakeBody(HttpRequest& request) const;
  ReplyContext Context(const HttpRequest& request, const ReplyPtr& reply) const;
  OrderedJson ModelObject(ApiStyle style) const;
  void Submit(const RequestPtr& request, const ReplyPtr& reply, AnswerRequest answer,
              std::unique_ptr<AnswerWriter> writer);
  void Report(const HttpRequest& request, const JobReport& report);
  void SendError(const HttpRequest& request, HttpReply& reply, const ApiError& error);

  Engine& engine_;
  AnswerService& service_;
  const Options options_;
  const int64_t created_;
  const std::string fingerprint_;
  ServerMetrics metrics_;
  const std::shared_ptr<ResponseStore> responses_;
  TaskQueue preparing_{1};
};

}  // namespace hillstar
