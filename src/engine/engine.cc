#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "core/log.h"
#include "engine/engine_sequence.h"
#include "engine/memory_plan.h"
#include "engine/open_device.h"
#include "engine/work_estimate.h"
#include "formats/container_checksum.h"
#include "hillstar/engine.h"
#include "tokenizer/chat_format.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

// Refuses a model whose chat template's tokens a conversation could not reach it by.
void CheckChatTokens(const ChatFormat& format, const Tokenizer& tokenizer, int64_t vocab_size,
                     const std::string& model) {
  const std::vector<std::string> missing = MissingControlTokens(format, tokenizer);
  if (!missing.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} cannot chat: its chat template writes {}, which its tokenizer does "
                            "not have as added tokens; run --raw continues a text without them",
                            model, fmt::join(missing, ", ")));
  }
  if (tokenizer.vocab_size() <= vocab_size) return;
  const auto largest = int32_t(tokenizer.vocab_size() - 1);
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{} cannot chat: its tokenizer has ids up to {} (\"{}\"), but the model's "
                  "vocabulary has {} tokens (vocab_size in config.json)",
                  model, largest, tokenizer.TokenBytes(largest), vocab_size));
}

// Runs in this process, on the CPU or a GPU.
class LocalEngine : public Engine {
 public:
  LocalEngine(const EngineOptions& options, const ProgressFn& progress) : s_(options) {
    const DeviceChoice choice = ParseDevice(options);
    const auto source = ModelSource::Open(options.model, options.weights, options.load_mtp);
    s_.config = source->config();
    s_.sizes = ResolveSizes(options, s_.config);
    const ModelFiles& files = source->files();
    tokenizer_ = Tokenizer::FromJson(files.tokenizer);
    chat_format_ = ChatFormat::Create(files.chat_template, files.tokenizer_config);
    if (options.for_chat) {
      CheckChatTokens(*chat_format_, *tokenizer_, s_.config.vocab_size, options.model);
    }
    ReadSamplingDefaults(files.generation_config);
    OpenedDevice device = OpenDevice(choice, options, *source, s_.sizes);
    s_.backend = std::move(device.backend);
    s_.sizes.kv_tokens = device.kv_tokens;
    memory_ = device.plan;
    identity_ = source->Identity();
    summary_ = DescribeFormats(source->table());
    work_ = WorkEstimate(*source);

    try {
      Load(*source, progress);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBudget || s_.ops().is_host()) throw;
      // Somebody else took of the GPU's memory what the plan was found to fit in.
      throw Error(ErrorCode::kBudget,
                  fmt::format("{}; --device cpu computes without the GPU", error.what()));
    }
  }

  std::unique_ptr<Sequence> NewSequence(const SequenceOptions& options) override {
    return std::make_unique<EngineSequence>(s_, options);
  }
  void Step(std::span<const StepPart> parts, std::span<StepResult> results) override {
    CHECK(int64_t(parts.size()) <= s_.sizes.max_sequences);
    EngineSequence::Step(s_, parts, results);
  }
  void Decode(std::span<const DecodePart> parts, const NextTokensFn& on_next) override {
    CHECK(int64_t(parts.size()) <= s_.sizes.max_sequences && !parts.empty());
    EngineSequence::Decode(s_, parts, on_next);
  }
  std::vector<KernelTime> ProfileStep(Sequence& sequence, int32_t id) override {
    if (s_.ops().is_host()) return {};
    const int64_t before = sequence.num_tokens();
    const EngineState::Work work = s_.work;
    s_.ops().BeginProfile();
    try {
      sequence.Append({&id, 1}, LogitsMode::kLast);
    } catch (...) {
      s_.ops().EndProfile();
      throw;
    }
    sequence.Truncate(before);
    s_.work = work;
    const std::vector<KernelTime> times = s_.ops().EndProfile();
    profile_.emplace();
    for (const KernelTime& time : times) profile_->at(size_t(time.stage)) += time.microseconds;
    return times;
  }
  EngineActivity activity() override {
    CHECK(!s_.tells_tokens);
    EngineActivity activity;
    s_.forward->ReadExpertUses(&activity);
    activity.step_seconds = s_.work.step_seconds;
    activity.steps = s_.work.steps;
    activity.tokens = s_.work.tokens;
    AddStages(&activity);
    return activity;
  }
  DevicePeaks MeasureDevicePeaks() override { return s_.ops().MeasurePeaks(); }
  int64_t max_step_tokens() const override { return s_.sizes.step_tokens; }
  int64_t max_sequences() const override { return s_.sizes.max_sequences; }
  KvUse kv_use() const override {
    return {s_.kv->pool().max_pages(), s_.kv->num_available(), s_.kv->index().num_nodes()};
  }
  const std::string& identity() const override { return identity_; }
  const KvShape& kv_shape() const override { return s_.kv->pool().shape(); }
  int64_t page_bytes() const override { return s_.kv->pool().shape().page_bytes(); }
  void SetResidualTap(ResidualTap tap) override { s_.tap = std::move(tap); }
  void SetRouterTap(RouterTap tap) override {
    if (tap && !s_.ops().is_host()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} chooses experts without telling anybody; to look at the router "
                              "or change its choice, let the CPU compute (--device cpu)",
                              device().id));
    }
    s_.forward->SetRouterTap(std::move(tap));
  }

  const ModelConfig& config() const override { return s_.config; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatFormat& chat_format() const override { return *chat_format_; }
  int64_t context_tokens() const override { return s_.sizes.context_tokens; }
  const DeviceInfo& device() const override { return s_.backend->info(); }
  int num_threads() const override { return s_.sizes.num_threads; }
  std::string_view simd_level() const override { return s_.backend->ops().name(); }
  std::string_view weight_summary() const override { return summary_; }
  std::string_view kv_format() const override { return KvFormatName(s_.sizes.kv_format); }
  bool selects_keys() const override {
    return Selects(s_.sizes.attention) && s_.kv->pool().shape().num_index_layers() > 0;
  }
  MemoryPlan memory() const override { return memory_; }
  uint64_t weight_bytes_per_token() const override { return work_.weight_bytes_per_token(); }
  double prompt_products(int64_t num_tokens) const override {
    return work_.PromptProducts(num_tokens);
  }
  std::vector<std::span<const uint8_t>> weight_memory() const override {
    if (!s_.backend->memory().is_host()) return {};
    const DeviceBuffer& dense = s_.weights.dense_memory;
    std::vector<std::span<const uint8_t>> memory = {{dense.data(), dense.size()}};
    for (const DeviceBuffer& b : s_.weights.expert_memory) memory.push_back({b.data(), b.size()});
    return memory;
  }
  SamplingDefaults sampling_defaults() const override { return sampling_; }

 private:
  // Weights and pages, and what a step computes in. Errors: kBudget.
  void Load(const ModelSource& source, const ProgressFn& progress) {
    s_.weights = LoadWeights(source, s_.memory(), s_.sizes.num_threads, progress);
    const KvShape shape = KvShapeOf(source, s_.sizes.kv_format);
    const std::string rows = identity_ + s_.options.kv_format;
    s_.kv = std::make_unique<KvCache>(shape, s_.memory(), NumPages(shape, s_.sizes),
                                      Checksum(rows.data(), rows.size()));
    s_.ops().Prepare(OpsLimits(s_.config, shape, s_.sizes));
    s_.forward =
        std::make_unique<ForwardPass>(s_.config, s_.weights, s_.ops(),
                                      StepLimits{s_.sizes.step_tokens, s_.sizes.context_tokens,
                                                 shape.row, shape.index, s_.sizes.attention});
  }

  void AddStages(EngineActivity* activity) {
    const std::span<const double> seen = s_.ops().stage_seconds();
    if (seen.empty() && !profile_) return;
    const std::span<const double> parts = seen.empty() ? std::span<const double>(*profile_) : seen;
    const double all = std::accumulate(parts.begin(), parts.end(), 0.0);
    const double scale = seen.empty() ? activity->step_seconds / all : 1;
    for (size_t i = 0; i < kNumStages; ++i) {
      activity->stages.push_back({std::string(kStageNames[i]), parts[i] * scale});
    }
  }

  void ReadSamplingDefaults(const std::string& generation_config) {
    const auto json = nlohmann::json::parse(generation_config, nullptr, false);
    const auto read = [&](const char* key, float low, float high, float* value) {
      if (!json.is_object() || !json.contains(key) || json[key].is_null()) return;
      const double v = json[key].is_number() ? json[key].get<double>() : -1;
      if (v >= double(low) && v <= double(high)) {
        *value = float(v);
        return;
      }
      LogWarn(
          fmt::format("generation_config.json of {}: {} is not a number from {} to {} and is "
                      "left out; {} serves",
                      s_.options.model, key, low, high, *value));
    };
    read("temperature", 0.0f, 10.0f, &sampling_.temperature);
    read("top_p", 0.0f, 1.0f, &sampling_.top_p);
  }

  EngineState s_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatFormat> chat_format_;
  MemoryPlan memory_;
  std::string identity_;
  std::string summary_;
  WorkEstimate work_;
  std::optional<std::array<double, kNumStages>> profile_;  // of ProfileStep: microseconds by stage
  SamplingDefaults sampling_{1.0f, 0.95f};
};

}  // namespace

std::unique_ptr<Engine> Engine::Open(const EngineOptions& options, const ProgressFn& progress) {
  return std::make_unique<LocalEngine>(options, progress);
}

}  // namespace hillstar
