// Many clients at once against a running server: each asks for a streamed chat completion, reads it
// to its end, checks its shape, and asks for the next. Says how fast answers come, how evenly, and
// what the server's memory does.
//   serve_load --url http://127.0.0.1:8080 --streams 1,16,64,256 --seconds 20 --pid PID
// Exits 1 after any error, or where a limit (--fairness, --growth) is passed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <random>
#include <vector>

#include "chat_stream_check.h"

namespace hillstar {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

struct LoadOptions {
  std::string url = "http://127.0.0.1:8080";
  std::vector<int> streams = {1, 16, 64, 256};
  double seconds = 20;
  int64_t max_tokens = 32;
  std::vector<int> prompt_words = {8, 48, 192};
  std::vector<int> forbidden;
  std::string api_key;
  uint64_t seed = 1;
  int pid = 0;
  double fairness = 0;    // 0: no limit
  double growth_mib = 0;  // 0: no limit
  std::string host, port;
};

double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// 0 for an empty list.
double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1, size_t(q * double(values.size())))];
}

// Of the server; 0 where it cannot be read.
double ResidentMib(int pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return double(std::stoll(line.substr(6))) / 1024;
  }
  return 0;
}

// What one level of load, so many streams for so long, has shown.
struct LevelResult {
  std::vector<double> first_seconds, token_seconds;
  std::vector<double> tokens;  // of each stream, within the time
  double prompt_tokens = 0;    // within the time
  double requests = 0;
  int64_t num_errors = 0;
  std::map<std::string, int64_t> errors;  // by sentence, the first few
  std::vector<double> resident_mib;       // once a second

  void AddError(const std::string& sentence) {
    constexpr size_t kMaxKinds = 8;
    ++num_errors;
    if (errors.contains(sentence) || errors.size() < kMaxKinds) ++errors[sentence];
  }
  // The slowest stream's share: how many times as much the median one got.
  double unfairness() const {
    const double least = *std::ranges::min_element(tokens);
    return least > 0 ? Quantile(tokens, 0.5) / least : std::numeric_limits<double>::infinity();
  }
  // How much memory grew after the first half, in which pages and buffers are taken for good.
  double growth_mib() const {
    if (resident_mib.empty()) return 0;
    return resident_mib.back() - resident_mib[resident_mib.size() / 2];
  }
};

// Prompts that have nothing in common but the template, so that no rows can be taken over.
class PromptMaker {
 public:
  explicit PromptMaker(uint64_t seed) : random_(seed) {}
  std::string Make(int num_words) {
    static constexpr const char* kWords[] = {
        "river", "stone",  "green", "seven", "walk",  "paper", "north", "light", "small", "bread",
        "cloud", "metal",  "story", "quick", "music", "chair", "plant", "glass", "horse", "sugar",
        "night", "winter", "open",  "count", "table", "brown", "lake",  "wheel", "voice", "sand"};
    std::string text = fmt::format("{} tell me about", random_() % 1'000'000'007);
    for (int i = 0; i < num_words; ++i) text += fmt::format(" {}", kWords[random_() % 30]);
    return text;
  }

 private:
  std::mt19937_64 random_;
};

// One client. Keeps its connection as long as the server does.
class LoadStream {
 public:
  LoadStream(const LoadOptions& options, uint64_t number, Clock::time_point deadline,
             LevelResult* result, double* tokens)
      : options_(options),
        number_(number),
        deadline_(deadline),
        prompts_(options.seed * 1'000'003 + number),
        result_(result),
        tokens_(tokens) {}

  asio::awaitable<void> Run() {
    const auto executor = co_await asio::this_coro::executor;
    stream_.emplace(executor);
    for (uint64_t i = 0; Clock::now() < deadline_; ++i) {
      bool failed = false;
      try {
        co_await Ask(i);
      } catch (const std::exception& error) {
        failed = true;
        result_->AddError(error.what());
      }
      if (!failed) continue;
      stream_->close();
      constexpr std::chrono::milliseconds kPause{100};  // a server that refuses is not flooded
      asio::steady_timer timer(executor, kPause);
      co_await timer.async_wait(asio::use_awaitable);
    }
    stream_->close();
  }

 private:
  static constexpr std::chrono::seconds kPatience{120};  // with any single read or write

  asio::awaitable<void> Connect() {
    asio::ip::tcp::resolver resolver(co_await asio::this_coro::executor);
    const auto found =
        co_await resolver.async_resolve(options_.host, options_.port, asio::use_awaitable);
    stream_->expires_after(kPatience);
    co_await stream_->async_connect(found, asio::use_awaitable);
    stream_->socket().set_option(asio::ip::tcp::no_delay(true));
    buffer_.clear();
  }

  http::request<http::string_body> MakeRequest(uint64_t i) {
    const auto& sizes = options_.prompt_words;
    const int num_words = sizes[size_t((i + number_) % sizes.size())];
    const Json message = {{"role", "user"}, {"content", prompts_.Make(num_words)}};
    Json body = {{"model", "any"},
                 {"messages", Json::array({message})},
                 {"max_tokens", options_.max_tokens},
                 {"seed", number_ * 100'000 + i},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    for (const int id : options_.forbidden) body["logit_bias"][std::to_string(id)] = -100;
    http::request<http::string_body> request(http::verb::post, "/v1/chat/completions", 11);
    request.set(http::field::host, options_.host + ":" + options_.port);
    request.set(http::field::content_type, "application/json");
    if (!options_.api_key.empty()) {
      request.set(http::field::authorization, "Bearer " + options_.api_key);
    }
    request.body() = body.dump();
    request.prepare_payload();
    return request;
  }

  asio::awaitable<void> Ask(uint64_t i) {
    const http::request<http::string_body> request = MakeRequest(i);
    if (!stream_->socket().is_open()) co_await Connect();
    const Clock::time_point asked = Clock::now();
    stream_->expires_after(kPatience);
    co_await http::async_write(*stream_, request, asio::use_awaitable);
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read_header(*stream_, buffer_, parser, asio::use_awaitable);
    if (parser.get().result_int() != 200) {
      co_await http::async_read(*stream_, buffer_, parser, asio::use_awaitable);
      throw std::runtime_error(
          fmt::format("status {}: {}", parser.get().result_int(), parser.get().body()));
    }
    ChatStreamCheck check(options_.max_tokens);
    Clock::time_point first{}, last{};
    while (!parser.is_done()) {
      stream_->expires_after(kPatience);
      co_await http::async_read_some(*stream_, buffer_, parser, asio::use_awaitable);
      const bool has_text = check.Push(parser.get().body());
      parser.get().body().clear();
      if (!has_text) continue;
      last = Clock::now();
      if (first == Clock::time_point{}) first = last;
    }
    check.Finish();
    if (!check.fault().empty()) throw std::runtime_error(check.fault());
    Count(check, asked, first, last);
    if (!parser.keep_alive()) stream_->close();
  }

  // What ends after the deadline counts for its part before it.
  void Count(const ChatStreamCheck& check, Clock::time_point asked, Clock::time_point first,
             Clock::time_point last) {
    const Clock::time_point now = Clock::now();
    const double share =
        std::clamp(SecondsBetween(asked, deadline_) / SecondsBetween(asked, now), 0.0, 1.0);
    *tokens_ += share * double(check.answer_tokens());
    result_->prompt_tokens += share * double(check.prompt_tokens());
    result_->requests += share;
    if (first == Clock::time_point{}) return;  // an answer without text
    result_->first_seconds.push_back(SecondsBetween(asked, first));
    if (check.answer_tokens() > 1) {
      result_->token_seconds.push_back(SecondsBetween(first, last) /
                                       double(check.answer_tokens() - 1));
    }
  }

  const LoadOptions& options_;
  const uint64_t number_;
  const Clock::time_point deadline_;
  PromptMaker prompts_;
  LevelResult* const result_;
  double* const tokens_;
  std::optional<beast::tcp_stream> stream_;
  beast::flat_buffer buffer_;
};

asio::awaitable<void> WatchMemory(int pid, Clock::time_point deadline, LevelResult* result) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  while (pid > 0 && Clock::now() < deadline) {
    result->resident_mib.push_back(ResidentMib(pid));
    timer.expires_after(std::chrono::seconds(1));
    co_await timer.async_wait(asio::use_awaitable);
  }
}

LevelResult RunLevel(const LoadOptions& options, int num_streams) {
  LevelResult result;
  result.tokens.resize(size_t(num_streams));
  asio::io_context context(1);
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(options.seconds));
  std::vector<std::unique_ptr<LoadStream>> streams;
  for (int i = 0; i < num_streams; ++i) {
    streams.push_back(std::make_unique<LoadStream>(options, uint64_t(i), deadline, &result,
                                                   &result.tokens[size_t(i)]));
    asio::co_spawn(context, streams.back()->Run(), asio::detached);
  }
  asio::co_spawn(context, WatchMemory(options.pid, deadline, &result), asio::detached);
  context.run();
  return result;
}

constexpr const char* kRow =
    "{:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6} {:>6} {:>7} {:>6} {}\n";

void PrintHead() {
  fmt::print(kRow, "streams", "req/s", "tok/s", "prompt", "first", "p95", "max", "token", "p95",
             "tokens", "fair", "errors  RSS MiB");
  fmt::print(kRow, "", "", "", "tok/s", "ms", "ms", "ms", "ms", "ms", "/stream", "1:x", "");
}

void PrintRow(const LoadOptions& options, int num_streams, const LevelResult& r) {
  const auto rate = [&](double count) { return fmt::format("{:.1f}", count / options.seconds); };
  const auto ms = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
  double tokens = 0;
  for (const double t : r.tokens) tokens += t;
  std::string memory = "-";
  if (!r.resident_mib.empty()) {
    memory = fmt::format("{:.0f} .. {:.0f} .. {:.0f}", r.resident_mib.front(),
                         r.resident_mib[r.resident_mib.size() / 2], r.resident_mib.back());
  }
  fmt::print(kRow, num_streams, rate(r.requests), rate(tokens), rate(r.prompt_tokens),
             ms(Quantile(r.first_seconds, 0.5)), ms(Quantile(r.first_seconds, 0.95)),
             ms(Quantile(r.first_seconds, 1)), ms(Quantile(r.token_seconds, 0.5)),
             ms(Quantile(r.token_seconds, 0.95)), fmt::format("{:.0f}", Quantile(r.tokens, 0.5)),
             fmt::format("{:.2f}", r.unfairness()), fmt::format("{:<7} {}", r.num_errors, memory));
  for (const auto& [sentence, count] : r.errors) fmt::print("  {} x {}\n", count, sentence);
  std::fflush(stdout);
}

bool IsWithinLimits(const LoadOptions& options, const LevelResult& result) {
  bool passes = result.num_errors == 0;
  if (options.fairness > 0 && result.unfairness() > options.fairness) {
    fmt::print("  the slowest stream got less than 1/{} of the median\n", options.fairness);
    passes = false;
  }
  if (options.growth_mib > 0 && result.growth_mib() > options.growth_mib) {
    fmt::print("  memory grew by {:.1f} MiB after the first half\n", result.growth_mib());
    passes = false;
  }
  return passes;
}

void AddOptions(CLI::App& app, LoadOptions* options) {
  app.add_option("--url", options->url, "The server")->capture_default_str();
  app.add_option("--streams", options->streams, "Clients at once, one level of load after another")
      ->delimiter(',');
  app.add_option("--seconds", options->seconds, "Of each level")->capture_default_str();
  app.add_option("--max-tokens", options->max_tokens, "Of an answer")->capture_default_str();
  app.add_option("--prompt-words", options->prompt_words, "Lengths of prompts, in turn")
      ->delimiter(',');
  app.add_option(
         "--forbid", options->forbidden,
         "Token ids that answers may not hold; with a model's end tokens all answers are of "
         "--max-tokens")
      ->delimiter(',');
  app.add_option("--api-key", options->api_key, "The server's key, where it wants one");
  app.add_option("--seed", options->seed, "Of the prompts")->capture_default_str();
  app.add_option("--pid", options->pid, "The server's process, whose memory is watched");
  app.add_option("--fairness", options->fairness,
                 "Fail where the median stream got more than so many times the slowest one's "
                 "tokens");
  app.add_option("--growth", options->growth_mib,
                 "Fail where memory grew by more MiB after the first half");
}

// http://HOST:PORT or http://HOST:PORT/
bool ReadUrl(LoadOptions* options) {
  std::string_view url = options->url;
  if (!url.starts_with("http://")) return false;
  url.remove_prefix(7);
  url = url.substr(0, url.find('/'));
  const size_t colon = url.rfind(':');
  options->host = std::string(url.substr(0, colon));
  options->port = colon == std::string_view::npos ? "80" : std::string(url.substr(colon + 1));
  return !options->host.empty() && !options->port.empty();
}

int Main(int argc, char** argv) {
  LoadOptions options;
  CLI::App app("Streams chat completions from a server, many at once.");
  AddOptions(app, &options);
  CLI11_PARSE(app, argc, argv);
  if (!ReadUrl(&options) || options.prompt_words.empty()) {
    fmt::print(stderr, "--url has to be like http://127.0.0.1:8080\n");
    return 2;
  }
  bool passes = true;
  PrintHead();
  for (const int num_streams : options.streams) {
    const LevelResult result = RunLevel(options, num_streams);
    PrintRow(options, num_streams, result);
    passes = IsWithinLimits(options, result) && passes;
  }
  return passes ? 0 : 1;
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) { return hillstar::Main(argc, argv); }
