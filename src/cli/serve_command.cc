// hillstar serve. The main thread loads the model and computes; others talk to clients and wait for
// signals.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <thread>

#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/request.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "core/log.h"
#include "server/api_server.h"
#include "server/http_gate.h"

namespace hillstar {
namespace {

// Room for so many tokens of each answer at once, where the memory has it.
constexpr int64_t kKvTokensEach = 2048;
constexpr size_t kMegabyte = 1'000'000;
// For clients to read how their answers ended.
constexpr std::chrono::seconds kLastWords{2};

std::vector<std::string> ReadKeys(const Options& options) {
  std::vector<std::string> keys = options.api_key;
  if (!options.api_key_file.empty()) {
    std::istringstream lines(ReadTextFile(options.api_key_file));
    const size_t before = keys.size();
    for (std::string line; std::getline(lines, line);) {
      const size_t end = line.find_last_not_of(" \t\r");
      if (end != std::string::npos && line[0] != '#') keys.push_back(line.substr(0, end + 1));
    }
    if (keys.size() == before) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("{} holds no key (--api-key-file)", options.api_key_file));
    }
  }
  for (const std::string& key : keys) {
    if (key.empty()) throw Error(ErrorCode::kUsage, "--api-key is empty");
  }
  return keys;
}

AnswerDefaults DefaultsFrom(const Options& options, const OpenedModel& model) {
  AnswerDefaults defaults;
  const GenerateRequest request = RequestFrom(options, *model.engine);
  defaults.sampling = request.sampling;
  if (options.is_given("seed")) defaults.seed = request.sampling.seed;
  defaults.max_tokens = options.max_tokens;
  defaults.chat = ChatOptionsFrom(options, model.is_built_in);
  return defaults;
}

// Takes SIGINT and SIGTERM on a thread of its own. To be made before other threads, which inherit
// that the signals are blocked.
class SignalWatch {
 public:
  SignalWatch() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] { Watch(); });
  }
  ~SignalWatch() {
    ends_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  // Called at the first signal from now on; without it, a signal ends the program.
  void OnSignal(std::function<void()> callback) {
    const std::lock_guard lock(mutex_);
    callback_ = std::move(callback);
  }

 private:
  void Watch() {
    for (int number = 0; sigwait(&signals_, &number) == 0;) {
      if (ends_) return;
      std::function<void()> callback;
      {
        const std::lock_guard lock(mutex_);
        callback.swap(callback_);
      }
      if (!callback) _exit(128 + number);
      callback();
    }
  }

  sigset_t signals_;
  std::atomic<bool> ends_{false};
  std::mutex mutex_;
  std::function<void()> callback_;
  std::thread thread_;
};

HttpRefusal MakeHttpError(int status, std::string_view path, const std::string& sentence) {
  return {status,
          {{"Content-Type", "application/json"}},
          ErrorBody(StyleOfPath(path), ApiError(status, sentence), "")};
}

bool NeedsKey(std::string_view path) {
  return path.starts_with("/v1/") || path.starts_with("/api/") || path == "/metrics";
}

HttpServerOptions HttpOptionsFrom(const Options& options, const HttpGate& gate) {
  HttpServerOptions http;
  http.host = options.host;
  http.port = uint16_t(options.port);
  http.limits.body_bytes = size_t(options.max_body) * kMegabyte;
  http.limits.connections = size_t(options.max_connections);
  http.make_error = MakeHttpError;
  http.check_head = [&gate](const HttpRequest& head) { return gate.Check(head); };
  http.extra_headers = [&gate](const HttpRequest& head) { return gate.MoreHeaders(head); };
  return http;
}

// Answers while the model loads.
void SayLoading(const HttpRequest& request, HttpReply& reply) {
  const bool is_health = request.path == "/health";
  reply.Send(503, {{"Content-Type", "application/json"}, {"Retry-After", "5"}},
             is_health ? "{\"status\":\"loading\"}"
                       : ErrorBody(StyleOfPath(request.path),
                                   {503, "the model is being loaded", {}, "loading"}, request.id));
}

std::string ServedName(const Options& options, const OpenedModel& model) {
  if (!options.served_name.empty()) return options.served_name;
  const auto folder = std::filesystem::weakly_canonical(model.folder);
  return folder.has_filename() ? folder.filename().string()
                               : folder.parent_path().filename().string();
}

// Talks to clients until it is stopped, or goes.
class NetworkThread {
 public:
  explicit NetworkThread(HttpServer& http) : http_(http), thread_([&http] { http.Run(1); }) {}
  ~NetworkThread() { Stop(); }
  NetworkThread(const NetworkThread&) = delete;
  NetworkThread& operator=(const NetworkThread&) = delete;

  void Stop() {
    if (!thread_.joinable()) return;
    http_.Stop(kLastWords);
    thread_.join();
  }

 private:
  HttpServer& http_;
  std::thread thread_;
};

// The parts that need the model, and their way to an end.
class Serving {
 public:
  Serving(const Options& options, const OpenedModel& model, bool needs_key)
      : service_(*model.engine, {.max_waiting = options.max_queue,
                                 .batch = {.mixed_prompt_tokens = options.mixed_prompt_tokens,
                                           .park_folder = options.park_folder}}),
        api_(*model.engine, service_,
             {.model = ServedName(options, model),
              .device = DeviceText(*model.engine),
              .defaults = DefaultsFrom(options, model),
              .needs_key = needs_key,
              .max_body_bytes = size_t(options.max_body) * kMegabyte}) {}

  ApiServer& api() { return api_; }

  // Until a signal, and then until running answers have ended.
  void Run(SignalWatch& signals, std::chrono::seconds grace) {
    signals.OnSignal([&, grace] {
      LogInfo(
          fmt::format("shutting down: running answers have {} s to end; another signal ends "
                      "them at once",
                      grace.count()));
      signals.OnSignal([&] { service_.Stop(std::chrono::seconds(0)); });
      service_.Stop(grace);
    });
    service_.Run();
    signals.OnSignal({});
  }

 private:
  AnswerService service_;
  ApiServer api_;
};

void SayReady(const Options& options, const OpenedModel& model, const HttpServer& http,
              bool needs_key) {
  std::printf("hillstar serves %s at http://%s/\n", ServedName(options, model).c_str(),
              http.address().c_str());
  std::fflush(stdout);
  const bool is_loopback =
      options.host == "127.0.0.1" || options.host == "::1" || options.host == "localhost";
  if (is_loopback || needs_key) return;
  LogWarn(fmt::format("whoever reaches {} may use the server: no key is asked for (--api-key-file)",
                      http.address()));
}

}  // namespace

int ServeCommand(const Options& options) {
  if (!options.is_given("log-level")) SetLogLevel("info");
  ShowLogTimes();
  const std::vector<std::string> keys = ReadKeys(options);
  SignalWatch signals;
  const HttpGate gate({keys, options.allowed_host, options.cors_origin, NeedsKey, MakeHttpError});
  OpenedModel model;
  std::optional<Serving> serving;
  std::atomic<ApiServer*> api{nullptr};
  HttpServer http(HttpOptionsFrom(options, gate), [&](HttpRequest request, auto reply) {
    ApiServer* const ready = api.load();
    if (ready == nullptr) return SayLoading(request, *reply);
    ready->Handle(std::move(request), std::move(reply));
  });
  NetworkThread network(http);  // stops before what it talks to goes
  model = OpenModel(options, /*load_mtp=*/false,
                    {.for_chat = true,
                     .max_sequences = options.max_sequences,
                     .kv_tokens = options.max_sequences * kKvTokensEach,
                     .may_take_less_kv = true});
  serving.emplace(options, model, !keys.empty());
  api = &serving->api();
  SayReady(options, model, http, !keys.empty());
  serving->Run(signals, std::chrono::seconds(options.grace));
  return 0;
}

}  // namespace hillstar
