#include "cli/request.h"

#include <fmt/format.h>

#include <random>

#include "cli/terminal.h"
#include "formats/container.h"
#include "model/config.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

std::string EndText(const GenerateResult& result) {
  switch (result.finish_reason) {
    case FinishReason::kLength: return "ended by the length limit";
    case FinishReason::kCancelled: return "stopped by Ctrl-C";
    case FinishReason::kStop: break;
  }
  if (result.stop.empty()) return "ended by the model";
  return fmt::format("ended by the stop string \"{}\"", EscapeControls(result.stop));
}

}  // namespace

EngineOptions EngineOptionsFrom(const Options& options, const std::string& folder, bool load_mtp) {
  if (options.is_typed("weights") && Container::IsContainer(folder)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--weights is of no use here: {} is a container and brings its formats",
                            folder));
  }
  EngineOptions engine;
  engine.model = folder;
  engine.num_threads = int(options.threads);
  engine.simd = options.simd;
  engine.device = options.device;
  engine.eager = options.eager;
  engine.context_tokens = options.context;
  engine.prefill_chunk = options.prefill_chunk;
  engine.attention = options.attention;
  engine.kv_bytes = uint64_t(options.kv_memory) * 1'000'000;
  engine.weights = options.weights;
  engine.kv_format = options.kv_format;
  engine.load_mtp = load_mtp;
  return engine;
}

bool IsCpu(const Engine& engine) { return engine.device().id == "cpu"; }

std::string DeviceText(const Engine& engine) {
  const DeviceInfo& device = engine.device();
  if (!IsCpu(engine)) return fmt::format("{} ({})", device.id, device.name);
  return fmt::format("{}, {}, {}", device.id, CountText(engine.num_threads(), "thread"),
                     engine.simd_level());
}

GenerateRequest RequestFrom(const Options& options, const Engine& engine) {
  const Engine::SamplingDefaults defaults = engine.sampling_defaults();
  GenerateRequest request;
  SamplingParams& s = request.sampling;
  s.temperature =
      options.is_given("temperature") ? options.temperature : double(defaults.temperature);
  s.top_p = options.is_given("top-p") ? options.top_p : double(defaults.top_p);
  s.top_k = options.top_k;
  s.min_p = options.min_p;
  s.repetition_penalty = options.repetition_penalty;
  s.presence_penalty = options.presence_penalty;
  s.frequency_penalty = options.frequency_penalty;
  // 31 bits, so that the seed that --stats prints is short enough to be typed.
  s.seed = options.is_given("seed") ? uint64_t(options.seed) : std::random_device()() >> 1;
  request.max_tokens = options.max_tokens;
  request.context_tokens = engine.context_tokens();
  request.stops = options.stop;
  return request;
}

ChatOptions ChatOptionsFrom(const Options& options, bool is_built_in) {
  ChatOptions chat;
  chat.thinking = options.thinking == "auto" ? !is_built_in : options.thinking == "on";
  chat.reasoning_effort = options.reasoning_effort;
  if (options.reasoning_effort == "auto") chat.reasoning_effort = is_built_in ? "high" : "";
  return chat;
}

std::string StatsText(const GenerateResult& result) {
  return fmt::format("prompt {} ({} reused), {:.0f} tok/s; answer {}, {:.1f} tok/s; {}",
                     CountText(result.prompt_tokens, "token"), result.reused_tokens,
                     result.prefill_rate(), CountText(int64_t(result.ids.size()), "token"),
                     result.decode_rate(), EndText(result));
}

}  // namespace hillstar
