#include "server/api_server.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "core/log.h"
#include "core/version.h"
#include "formats/json_scan.h"
#include "model/config.h"
#include "ops/backend.h"
#include "server/chat_completion_request.h"
#include "server/chat_completion_writer.h"
#include "server/completion_request.h"
#include "server/completion_writer.h"
#include "server/message_request.h"
#include "server/message_writer.h"
#include "server/response_query.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"
#include "server/web_files.h"

namespace hillstar {
namespace {

int64_t UnixSeconds() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

// Scripts, styles and connections of this server only.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const WebFile* FindWebFile(std::string_view path) {
  if (path == "/") path = "/index.html";
  for (const WebFile& file : WebFiles()) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

void SendWebFile(const HttpRequest& request, HttpReply& reply, const WebFile& file) {
  HttpHeaders headers{{"Content-Type", std::string(file.content_type)},
                      {"ETag", std::string(file.etag)},
                      {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", kPagePolicy},
                      {"Referrer-Policy", "no-referrer"}};
  if (request.Header("if-none-match") == file.etag) return reply.Send(304, headers, "");
  reply.Send(200, headers, std::string(file.content));
}

bool IsJson(std::string_view content_type) {
  const std::string_view kind = content_type.substr(0, content_type.find(';'));
  const size_t end = kind.find_last_not_of(" \t");
  std::string lower(kind.substr(0, end == std::string_view::npos ? 0 : end + 1));
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return lower == "application/json";
}

void AddActivity(const EngineActivity& activity, OrderedJson* body) {
  (*body)["steps"] = activity.steps;
  (*body)["step_seconds"] = activity.step_seconds;
  OrderedJson& stages = (*body)["stages"] = OrderedJson::array();
  for (const EngineActivity::StageTime& stage : activity.stages) {
    stages.push_back({{"name", stage.name}, {"seconds", stage.seconds}});
  }
  const auto experts = size_t(activity.num_experts);
  OrderedJson uses = OrderedJson::array();
  for (size_t layer = 0; layer < activity.moe_layers.size(); ++layer) {
    const auto row = std::span(activity.expert_uses).subspan(layer * experts, experts);
    uses.push_back(std::vector<uint64_t>(row.begin(), row.end()));
  }
  (*body)["experts"] = {
      {"layers", activity.moe_layers}, {"num_experts", experts}, {"uses", std::move(uses)}};
}

// Anthropic's clients are known by this header where their paths are OpenAI's too.
ApiStyle StyleOf(const HttpRequest& request) {
  return request.Header("anthropic-version").empty() ? StyleOfPath(request.path)
                                                     : ApiStyle::kAnthropic;
}

// What a path says behind /v1/responses/.
std::string ResponseOf(const HttpRequest& request) {
  return request.path.substr(std::string_view("/v1/responses/").size());
}

ResponseStore::Turns FindResponse(const ResponseStore& store, const std::string& id) {
  ResponseStore::Turns turns = store.Find(id);
  if (!turns.empty()) return turns;
  throw ApiError(404, fmt::format("there is no response {} here", Quoted(id)), "response_id");
}

const char* OutcomeName(JobReport::Outcome outcome) {
  switch (outcome) {
    case JobReport::Outcome::kDone: return "done";
    case JobReport::Outcome::kCancelled: return "cancelled";
    case JobReport::Outcome::kFailed: return "failed";
  }
  return "";
}

}  // namespace

struct ApiServer::Route {
  const char* method;
  std::string_view path;  // one that ends in '/' stands for all that lies below it
  void (ApiServer::*handle)(const RequestPtr&, const ReplyPtr&);
  bool Takes(std::string_view given) const {
    return given == path || (path.ends_with('/') && given.starts_with(path));
  }
};

std::span<const ApiServer::Route> ApiServer::Routes() {
  static constexpr Route kRoutes[] = {
      {"GET", "/health", &ApiServer::Health},
      {"GET", "/metrics", &ApiServer::Metrics},
      {"GET", "/api/live", &ApiServer::Live},
      {"GET", "/v1/models", &ApiServer::Models},
      {"GET", "/v1/models/", &ApiServer::Model},
      {"POST", "/v1/chat/completions", &ApiServer::ChatCompletions},
      {"POST", "/v1/completions", &ApiServer::Completions},
      {"POST", "/v1/messages", &ApiServer::Messages},
      {"POST", "/v1/messages/count_tokens", &ApiServer::CountTokens},
      {"POST", "/v1/responses", &ApiServer::Responses},
      {"GET", "/v1/responses/", &ApiServer::KeptResponse},
      {"DELETE", "/v1/responses/", &ApiServer::DeleteResponse},
  };
  return kRoutes;
}

// For metrics: what clients make up is one route, so that they cannot make the text grow.
std::string ApiServer::RouteName(std::string_view path) {
  for (const Route& route : Routes()) {
    if (route.Takes(path)) return std::string(route.path);
  }
  return "other";
}

ApiServer::ApiServer(Engine& engine, AnswerService& service, Options options)
    : engine_(engine),
      service_(service),
      options_(std::move(options)),
      created_(UnixSeconds()),
      fingerprint_("fp_" + engine.identity().substr(0, 12)),
      responses_(std::make_shared<ResponseStore>()) {}

ApiServer::~ApiServer() = default;

void ApiServer::Handle(HttpRequest given, std::shared_ptr<HttpReply> reply) {
  const auto request = std::make_shared<HttpRequest>(std::move(given));
  const std::string method = request->method == "HEAD" ? "GET" : request->method;
  const Route* found = nullptr;
  std::string allowed;
  for (const Route& route : Routes()) {
    if (!route.Takes(request->path)) continue;
    allowed += (allowed.empty() ? "" : " and ") + std::string(route.method);
    if (method == route.method) found = &route;
  }
  if (const WebFile* file = method == "GET" && !found ? FindWebFile(request->path) : nullptr) {
    metrics_.CountReply("web", 200);
    return SendWebFile(*request, *reply, *file);
  }
  if (found == nullptr) {
    const ApiError error =
        allowed.empty()
            ? ApiError(404, fmt::format("there is no {} here; docs/api.md lists what there is",
                                        Quoted(request->path)))
            : ApiError(405, fmt::format("{} takes {}", request->path, allowed));
    return SendError(*request, *reply, error);
  }
  // A page of another site may send any request that is no JSON without asking first.
  if (method == "POST" && !IsJson(request->Header("content-type"))) {
    return SendError(*request, *reply,
                     {415, "the request has to say Content-Type: application/json"});
  }
  // What takes no time does not wait for requests that do.
  if (method == "GET") return Run(*found, request, reply);
  preparing_.Post([this, request, reply, found] {
    if (!reply->is_gone()) Run(*found, request, reply);
  });
}

void ApiServer::Run(const Route& route, const RequestPtr& request, const ReplyPtr& reply) {
  try {
    (this->*route.handle)(request, reply);
  } catch (const ApiError& error) {
    SendError(*request, *reply, error);
  } catch (const Error& error) {
    SendError(*request, *reply, ApiErrorOf(error));
  } catch (const std::exception& error) {
    LogError(fmt::format("request {}: {}", request->id, error.what()));
    SendError(*request, *reply, {500, "the server failed at this request; its log says how"});
  }
}

void ApiServer::SendError(const HttpRequest& request, HttpReply& reply, const ApiError& error) {
  HttpHeaders headers{{"Content-Type", "application/json"}};
  if (error.status() == 429 || error.status() == 503) headers.push_back({"Retry-After", "1"});
  metrics_.CountReply(RouteName(request.path), error.status());
  LogInfo(fmt::format("request={} peer={} route=\"{} {}\" status={} error={}", request.id,
                      request.peer, request.method, Quoted(request.path), error.status(),
                      Quoted(error.what())));
  reply.Send(error.status(), headers, ErrorBody(StyleOf(request), error, request.id));
}

OrderedJson ApiServer::TakeBody(HttpRequest& request) const {
  const std::string body = std::exchange(request.body, {});
  if (body.empty()) throw BadRequest("the request has no body");
  return ParseOrderedJson(body, "the request's body", options_.max_body_bytes);
}

ReplyContext ApiServer::Context(const HttpRequest& request, const ReplyPtr& reply) const {
  ReplyContext context;
  context.reply = reply;
  context.tokenizer = &engine_.tokenizer();
  context.model = options_.model;
  context.fingerprint = fingerprint_;
  context.request_id = request.id;
  context.created = UnixSeconds();
  return context;
}

void ApiServer::Submit(const RequestPtr& request, const ReplyPtr& reply, AnswerRequest answer,
                       std::unique_ptr<AnswerWriter> writer) {
  const auto job =
      service_.Submit(std::move(answer), std::move(writer),
                      [this, request](const JobReport& report) { Report(*request, report); });
  metrics_.CountReply(request->path, 200);
  reply->OnGone([this, job] { service_.Cancel(job); });
}

void ApiServer::Report(const HttpRequest& request, const JobReport& report) {
  metrics_.AddReport(report);
  const auto milliseconds = [](const std::optional<double>& seconds) {
    return seconds ? fmt::format("{:.1f}", 1e3 * *seconds) : std::string("-");
  };
  LogInfo(fmt::format(
      "request={} peer={} route=\"{} {}\" outcome={} prompt_tokens={} cached_tokens={} "
      "answer_tokens={} queue_ms={} first_token_ms={} total_ms={:.1f}{}",
      request.id, request.peer, request.method, request.path, OutcomeName(report.outcome),
      report.usage.prompt, report.usage.cached, report.usage.completion,
      milliseconds(report.queue_seconds), milliseconds(report.first_token_seconds),
      1e3 * report.seconds, report.error.empty() ? "" : " error=" + Quoted(report.error)));
}

void ApiServer::ChatCompletions(const RequestPtr& request, const ReplyPtr& reply) {
  ChatCompletionRequest read = ReadChatCompletion(TakeBody(*request), engine_, options_.defaults);
  ReplyContext context = Context(*request, reply);
  context.streams = read.streams;
  context.includes_usage = read.includes_usage;
  auto writer =
      std::make_unique<ChatCompletionWriter>(std::move(context), read.answer.num_answers());
  Submit(request, reply, std::move(read.answer), std::move(writer));
}

void ApiServer::Completions(const RequestPtr& request, const ReplyPtr& reply) {
  CompletionRequest read = ReadCompletion(TakeBody(*request), engine_, options_.defaults);
  ReplyContext context = Context(*request, reply);
  context.streams = read.streams;
  context.includes_usage = read.includes_usage;
  context.answers_each = read.answer.answers_each;
  context.echoes = std::move(read.echoes);
  auto writer = std::make_unique<CompletionWriter>(std::move(context), read.answer.num_answers());
  Submit(request, reply, std::move(read.answer), std::move(writer));
}

void ApiServer::Messages(const RequestPtr& request, const ReplyPtr& reply) {
  MessageRequest read = ReadMessage(TakeBody(*request), engine_, options_.defaults);
  ReplyContext context = Context(*request, reply);
  context.streams = read.streams;
  const auto prompt_tokens = int64_t(read.answer.prompts[0].ids.size());
  auto writer = std::make_unique<MessageWriter>(std::move(context), prompt_tokens);
  Submit(request, reply, std::move(read.answer), std::move(writer));
}

void ApiServer::CountTokens(const RequestPtr& request, const ReplyPtr& reply) {
  const int64_t count = CountMessageTokens(TakeBody(*request), engine_, options_.defaults);
  metrics_.CountReply(request->path, 200);
  SendJson(*reply, 200, {{"input_tokens", count}});
}

void ApiServer::Responses(const RequestPtr& request, const ReplyPtr& reply) {
  const std::string id = ResponseStore::NewId();
  ResponsesRequest read =
      ReadResponses(TakeBody(*request), id, engine_, options_.defaults, *responses_);
  ReplyContext context = Context(*request, reply);
  context.streams = read.streams;
  ResponsesWriter::Options options{.id = id,
                                   .settings = std::move(read.settings),
                                   .starts_thinking = read.answer.prompts[0].starts_thinking,
                                   .reads_calls = read.answer.reads_calls,
                                   .clock = UnixSeconds,
                                   .keep = {}};
  if (read.is_stored) {
    options.keep = [store = responses_, id, earlier = std::move(read.earlier),
                    input = JsonText(read.input_items)](const OrderedJson& response) {
      store->Add(id, earlier, {input, JsonText(response)});
    };
  }
  auto writer = std::make_unique<ResponsesWriter>(std::move(context), std::move(options));
  Submit(request, reply, std::move(read.answer), std::move(writer));
}

void ApiServer::KeptResponse(const RequestPtr& request, const ReplyPtr& reply) {
  std::string id = ResponseOf(*request);
  constexpr std::string_view kInput = "/input_items";
  const bool wants_input = id.ends_with(kInput);
  if (wants_input) id.resize(id.size() - kInput.size());
  const ResponseStore::Turns turns = FindResponse(*responses_, id);
  if (!wants_input) CheckResponseQuery(request->query);
  std::string body = wants_input ? JsonText(ListInputItems(*turns.back(), request->query))
                                 : turns.back()->response;
  metrics_.CountReply(RouteName(request->path), 200);
  reply->Send(200, {{"Content-Type", "application/json"}}, std::move(body));
}

void ApiServer::DeleteResponse(const RequestPtr& request, const ReplyPtr& reply) {
  const std::string id = ResponseOf(*request);
  FindResponse(*responses_, id);
  responses_->Remove(id);
  metrics_.CountReply(RouteName(request->path), 200);
  SendJson(*reply, 200, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

OrderedJson ApiServer::ModelObject(ApiStyle style) const {
  if (style == ApiStyle::kAnthropic) {
    return {{"type", "model"},
            {"id", options_.model},
            {"display_name", options_.model},
            {"created_at", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time_t(created_)))},
            {"max_input_tokens", engine_.context_tokens()},
            {"max_tokens", engine_.context_tokens()}};
  }
  return {{"id", options_.model},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "hillstar"},
          {"max_model_len", engine_.context_tokens()}};
}

void ApiServer::Models(const RequestPtr& request, const ReplyPtr& reply) {
  metrics_.CountReply(RouteName(request->path), 200);
  const ApiStyle style = StyleOf(*request);
  OrderedJson body{{"object", "list"}};
  if (style == ApiStyle::kAnthropic) {
    body = {{"has_more", false}, {"first_id", options_.model}, {"last_id", options_.model}};
  }
  body["data"] = OrderedJson::array({ModelObject(style)});
  SendJson(*reply, 200, body);
}

void ApiServer::Model(const RequestPtr& request, const ReplyPtr& reply) {
  const std::string name = request->path.substr(std::string_view("/v1/models/").size());
  if (name != options_.model) {
    throw ApiError(
        404,
        fmt::format("there is no model {} here; there is {}", Quoted(name), Quoted(options_.model)),
        "model", "model_not_found");
  }
  metrics_.CountReply(RouteName(request->path), 200);
  SendJson(*reply, 200, ModelObject(StyleOf(*request)));
}

void ApiServer::Health(const RequestPtr&, const ReplyPtr& reply) {
  const ChatOptions& chat = options_.defaults.chat;
  SendJson(*reply, 200,
           {{"status", "ok"},
            {"model", options_.model},
            {"device", options_.device},
            {"thinking", chat.thinking ? "on" : "off"},
            {"needs_key", options_.needs_key},
            {"context_tokens", engine_.context_tokens()},
            {"version", ProgramVersion()}});
}

void ApiServer::Metrics(const RequestPtr&, const ReplyPtr& reply) {
  reply->Send(200, {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
              metrics_.Text(service_.snapshot(), *service_.activity(), engine_.memory()));
}

void ApiServer::Live(const RequestPtr&, const ReplyPtr& reply) {
  const ServiceSnapshot now = service_.snapshot();
  const ServerMetrics::Totals totals = metrics_.totals();
  const double time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  OrderedJson body{{"time", time},
                   {"uptime_seconds", now.seconds},
                   {"model", options_.model},
                   {"device", options_.device}};
  body["tokens"] = {{"prompt", now.counts.prompt_tokens},
                    {"cached", int64_t(totals.cached)},
                    {"answer", now.counts.answer_tokens}};
  body["requests"] = {{"done", int64_t(totals.done)},
                      {"failed", int64_t(totals.failed)},
                      {"cancelled", int64_t(totals.cancelled)}};
  body["sequences"] = {{"running", now.phases.running},
                       {"waiting", now.phases.waiting},
                       {"paused", now.phases.paused},
                       {"limit", engine_.max_sequences()}};
  body["pages"] = {{"total", now.kv.total_pages},
                   {"used", now.kv.total_pages - now.kv.available_pages},
                   {"prefix", now.kv.prefix_pages}};
  AddActivity(*service_.activity(), &body);
  SendJson(*reply, 200, body);
}

}  // namespace hillstar
