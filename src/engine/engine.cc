#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/log.h"
#include "engine/memory_plan.h"
#include "engine/sampler.h"
#include "engine/work_estimate.h"
#include "hillstar/engine.h"
#include "model/forward.h"
#include "model/weights.h"
#include "ops/cpu_ops.h"
#include "tokenizer/chat_format.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

// Logits of one call: a caller who wants more asks in pieces.
constexpr uint64_t kMaxLogitBytes = uint64_t{8} << 30;
// Logits that stay allocated between calls.
constexpr size_t kKeptLogits = size_t{16} << 20;
// Rows of MTP logits that are computed at once.
constexpr int64_t kMtpRows = 64;

struct Shared {
  explicit Shared(const EngineOptions& o) : options(o) {}

  EngineOptions options;
  MemoryBudget budget;
  ModelConfig config;
  EngineSizes sizes;
  ModelWeights weights;
  std::unique_ptr<CpuOps> ops;
  std::unique_ptr<ForwardPass> forward;
  std::unique_ptr<PagePool> pages;
  std::vector<float> logits;
  ResidualTap tap;

  void ResizeLogits(size_t n) {
    if (logits.capacity() > std::max(n, kKeptLogits)) std::vector<float>().swap(logits);
    logits.resize(n);
  }
};

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

MtpToken Largest(std::span<const float> logits) {
  const int32_t best = Argmax(logits);
  float second = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (int32_t(i) != best) second = std::max(second, logits[i]);
  }
  return {best, logits[size_t(best)] - second};
}

class EngineSequence : public Sequence {
 public:
  EngineSequence(Shared& shared, bool keep_hidden)
      : s_(shared), kv_(*shared.pages), keep_hidden_(keep_hidden) {}

  int64_t num_tokens() const override { return int64_t(ids_.size()); }
  std::span<const int32_t> ids() const override { return ids_; }

  std::span<const float> Append(std::span<const int32_t> ids, LogitsMode mode,
                                const std::atomic<bool>* cancel) override {
    CheckIds(ids, mode);
    kv_.Reserve(num_tokens() + int64_t(ids.size()));
    const size_t before = ids_.size();
    try {
      return AppendChunks(ids, mode, cancel);
    } catch (const Error& e) {
      Truncate(int64_t(before));
      failed_ = e.code() == ErrorCode::kNonFinite;
      throw;
    } catch (...) {
      Truncate(int64_t(before));
      throw;
    }
  }

  std::vector<MtpToken> MtpArgmax(int64_t first) override {
    if (!s_.weights.mtp) {
      throw Error(ErrorCode::kUnsupported, s_.options.model + " has no MTP layer loaded");
    }
    CHECK(keep_hidden_);
    std::vector<MtpToken> result;
    const int64_t chunk = s_.sizes.prefill_chunk, end = num_tokens() - 1;
    for (int64_t at = 0; at < end; at += chunk) {
      const int64_t n = std::min(chunk, end - at);
      s_.forward->RunMtp(Tokens(std::span(ids_).subspan(size_t(at) + 1, size_t(n)), at),
                         hidden_.data() + at * s_.config.hidden_size);
      AppendMtp(std::max<int64_t>(0, first - at), n, &result);
    }
    return result;
  }

  void Truncate(int64_t num_tokens) override {
    CHECK(num_tokens >= 0 && num_tokens <= this->num_tokens());
    ids_.resize(size_t(num_tokens));
    if (keep_hidden_) hidden_.resize(size_t(num_tokens * s_.config.hidden_size));
  }

 private:
  void CheckIds(std::span<const int32_t> ids, LogitsMode mode) const {
    if (failed_) {
      throw Error(ErrorCode::kNonFinite, "the sequence ended at a value that is not finite");
    }
    const int64_t total = num_tokens() + int64_t(ids.size());
    if (total > s_.sizes.context_tokens) {
      throw Error(ErrorCode::kBudget,
                  fmt::format("{} tokens do not fit the context of {} (--context)", total,
                              s_.sizes.context_tokens));
    }
    for (int32_t id : ids) {
      if (id >= 0 && id < s_.config.vocab_size) continue;
      throw Error(ErrorCode::kBadRequest, fmt::format("token id {} is outside the vocabulary of {}",
                                                      id, s_.config.vocab_size));
    }
    const uint64_t bytes = ids.size() * uint64_t(s_.config.vocab_size) * sizeof(float);
    if (mode == LogitsMode::kAll && bytes > kMaxLogitBytes) {
      throw Error(
          ErrorCode::kBudget,
          fmt::format("logits of {} tokens are {:.1f} GB; ask for at most {:.1f} GB at once",
                      ids.size(), double(bytes) / 1e9, double(kMaxLogitBytes) / 1e9));
    }
  }

  std::span<const float> AppendChunks(std::span<const int32_t> ids, LogitsMode mode,
                                      const std::atomic<bool>* cancel) {
    const int64_t vocab = s_.config.vocab_size, chunk = s_.sizes.prefill_chunk;
    const int64_t num_ids = int64_t(ids.size());
    const int64_t num_rows = mode == LogitsMode::kAll ? num_ids : mode == LogitsMode::kLast ? 1 : 0;
    s_.ResizeLogits(size_t(num_rows * vocab));
    for (int64_t at = 0; at < num_ids; at += chunk) {
      const int64_t n = std::min(chunk, num_ids - at), position = num_tokens();
      LayerTap tap;
      if (s_.tap) {
        tap = [&](int64_t layer, const float* x) { s_.tap(layer, position, n, x); };
      }
      const std::span<const int32_t> part = ids.subspan(size_t(at), size_t(n));
      const bool last_wanted = mode == LogitsMode::kLast && at + n == num_ids;
      const bool all_wanted = mode == LogitsMode::kAll || keep_hidden_ || s_.tap;
      const int64_t first_wanted = all_wanted ? 0 : last_wanted ? n - 1 : n;
      s_.forward->Run(Tokens(part, position), first_wanted, cancel, tap);
      if (mode == LogitsMode::kAll) s_.forward->Logits(0, n, s_.logits.data() + at * vocab);
      if (last_wanted) s_.forward->Logits(n - 1 - first_wanted, 1, s_.logits.data());
      ids_.insert(ids_.end(), part.begin(), part.end());
      if (keep_hidden_) {
        const float* x = s_.forward->residual();
        hidden_.insert(hidden_.end(), x, x + n * s_.config.hidden_size);
      }
    }
    return {s_.logits.data(), num_ids == 0 ? 0 : s_.logits.size()};
  }

  // The MTP head's tokens of rows [first, end) of the step.
  void AppendMtp(int64_t first, int64_t end, std::vector<MtpToken>* result) {
    const auto vocab = size_t(s_.config.vocab_size);
    for (int64_t row = first; row < end; row += kMtpRows) {
      const int64_t n = std::min(kMtpRows, end - row);
      s_.ResizeLogits(size_t(n) * vocab);
      s_.forward->MtpLogits(row, n, s_.logits.data());
      for (int64_t i = 0; i < n; ++i) {
        result->push_back(Largest(std::span(s_.logits).subspan(size_t(i) * vocab, vocab)));
      }
    }
  }

  std::span<const BatchToken> Tokens(std::span<const int32_t> ids, int64_t position) {
    batch_.clear();
    for (int32_t id : ids) batch_.push_back({id, position++, &kv_});
    return batch_;
  }

  Shared& s_;
  SequenceKv kv_;
  bool keep_hidden_;
  bool failed_ = false;
  std::vector<int32_t> ids_;
  std::vector<float> hidden_;  // [tokens, hidden] after the last layer, if kept
  std::vector<BatchToken> batch_;
};

class CpuEngine : public Engine {
 public:
  CpuEngine(const EngineOptions& options, const ProgressFn& progress) : s_(options) {
    const CpuKernels& kernels = ChooseKernels(options.simd);
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
    memory_ = PlanMemory(*source, s_.sizes);
    CheckFits(memory_, s_.sizes, AvailableMemoryBytes());
    summary_ = DescribeFormats(source->table());
    work_ = WorkEstimate(*source);

    s_.weights = LoadWeights(*source, s_.budget, s_.sizes.num_threads, progress);
    s_.ops = std::make_unique<CpuOps>(kernels, s_.sizes.num_threads, s_.budget);
    const KvShape shape = KvShapeOf(*source, s_.sizes.kv_format);
    s_.pages =
        std::make_unique<PagePool>(shape, s_.budget, 2 * KvShape::PagesOf(s_.sizes.context_tokens));
    s_.ops->Prepare(OpsLimits(s_.config, shape, s_.sizes));
    s_.forward = std::make_unique<ForwardPass>(s_.config, s_.weights, *s_.ops, shape,
                                               s_.sizes.prefill_chunk, s_.sizes.context_tokens);
  }

  std::unique_ptr<Sequence> NewSequence(bool keep_hidden) override {
    return std::make_unique<EngineSequence>(s_, keep_hidden);
  }
  void SetResidualTap(ResidualTap tap) override { s_.tap = std::move(tap); }
  void SetRouterTap(RouterTap tap) override { s_.forward->SetRouterTap(std::move(tap)); }

  const ModelConfig& config() const override { return s_.config; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatFormat& chat_format() const override { return *chat_format_; }
  int64_t context_tokens() const override { return s_.sizes.context_tokens; }
  int num_threads() const override { return s_.ops->num_threads(); }
  std::string_view simd_level() const override { return s_.ops->name(); }
  std::string_view weight_summary() const override { return summary_; }
  std::string_view kv_format() const override { return KvFormatName(s_.sizes.kv_format); }
  MemoryPlan memory() const override { return memory_; }
  uint64_t weight_bytes_per_token() const override { return work_.weight_bytes_per_token(); }
  double prompt_products(int64_t num_tokens) const override {
    return work_.PromptProducts(num_tokens);
  }
  double MeasurePeakProducts() override { return s_.ops->MeasurePeakProducts(); }
  std::vector<std::span<const uint8_t>> weight_memory() const override {
    const HostBuffer& dense = s_.weights.dense_memory;
    std::vector<std::span<const uint8_t>> memory = {{dense.data(), dense.size()}};
    for (const HostBuffer& b : s_.weights.expert_memory) memory.push_back({b.data(), b.size()});
    return memory;
  }
  SamplingDefaults sampling_defaults() const override { return sampling_; }

 private:
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

  Shared s_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatFormat> chat_format_;
  MemoryPlan memory_;
  std::string summary_;
  WorkEstimate work_;
  SamplingDefaults sampling_{1.0f, 0.95f};
};

}  // namespace

std::unique_ptr<Engine> Engine::Open(const EngineOptions& options, const ProgressFn& progress) {
  return std::make_unique<CpuEngine>(options, progress);
}

}  // namespace hillstar
