// For tests only: an engine whose answers are scripted and whose tokenizer has one token a byte, so
// that the code around an engine can be tested without a model. One thread at a time.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "hillstar/engine.h"
#include "kv/kv_shape.h"
#include "model/config.h"
#include "ops/backend.h"
#include "ops/sample/sample.h"
#include "tokenizer/chat_format.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

// Ids 0..255 are bytes; from 256 on the added tokens given, the special ones marked.
class FakeTokenizer : public Tokenizer {
 public:
  struct Added {
    std::string content;
    bool is_special;
  };
  explicit FakeTokenizer(std::vector<Added> added) : added_(std::move(added)) {
    for (int byte = 0; byte < 256; ++byte) bytes_.push_back(std::string(1, char(byte)));
    for (const Added& a : added_) bytes_.push_back(a.content);
  }
  std::vector<int32_t> Encode(std::string_view text, AddedTokens mode) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      size_t which = added_.size();
      for (size_t a = 0; mode == AddedTokens::kParse && a < added_.size(); ++a) {
        if (text.starts_with(added_[a].content)) which = a;
      }
      const bool is_added = which < added_.size();
      ids.push_back(is_added ? int32_t(256 + which) : int32_t(uint8_t(text[0])));
      text.remove_prefix(is_added ? added_[which].content.size() : 1);
    }
    return ids;
  }
  std::vector<int32_t> EncodeMarked(std::string_view text,
                                    std::span<const TextRange>) const override {
    return Encode(text, AddedTokens::kParse);
  }
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!(skip_special && IsSpecial(id))) text += TokenBytes(id);
    }
    return text;
  }
  std::string_view TokenBytes(int32_t id) const override { return bytes_.at(size_t(id)); }
  bool IsSpecial(int32_t id) const override {
    return id >= 256 && added_.at(size_t(id) - 256).is_special;
  }
  std::optional<int32_t> AddedTokenId(std::string_view content) const override {
    for (size_t a = 0; a < added_.size(); ++a) {
      if (added_[a].content == content) return int32_t(256 + a);
    }
    return std::nullopt;
  }
  int64_t vocab_size() const override { return int64_t(bytes_.size()); }

 private:
  std::vector<Added> added_;
  std::vector<std::string> bytes_;
};

// The logits [vocab] of the token after `ids`.
using FakeModel = std::function<std::vector<float>(std::span<const int32_t> ids)>;

class FakeSequence : public Sequence {
 public:
  FakeSequence(FakeModel model, int64_t vocab_size, int64_t context_tokens)
      : model_(std::move(model)), vocab_size_(vocab_size), context_tokens_(context_tokens) {}

  int64_t num_tokens() const override { return int64_t(ids_.size()); }
  std::span<const float> Append(std::span<const int32_t> ids, LogitsMode mode,
                                const std::atomic<bool>* cancel) override {
    if (num_tokens() + int64_t(ids.size()) > context_tokens_) {
      throw Error(ErrorCode::kBudget, "past the context");
    }
    if (cancel != nullptr && cancel->load()) throw Error(ErrorCode::kCancelled, "cancelled");
    logits_.clear();
    const std::vector<int32_t> copy(ids.begin(), ids.end());
    num_appended += int64_t(copy.size());
    for (size_t i = 0; i < copy.size(); ++i) {
      ids_.push_back(copy[i]);
      const bool wanted =
          mode == LogitsMode::kAll || (mode == LogitsMode::kLast && i + 1 == copy.size());
      if (!wanted) continue;
      const std::vector<float> row = model_(ids_);
      CHECK(int64_t(row.size()) == vocab_size_);
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    return logits_;
  }
  void Decode(int32_t next, const SamplingParams& sampling,
              const std::function<bool(int32_t id)>& on_next,
              const std::atomic<bool>* cancel) override {
    do {
      const auto logits = Append({&next, 1}, LogitsMode::kLast, cancel);
      next = DrawTokenByReference(logits.data(), vocab_size_, DrawParamsOf(sampling), num_tokens());
    } while (on_next(next));
  }
  // The fake MTP head proposes the token after next plus one.
  std::vector<MtpToken> MtpArgmax(int64_t first) override {
    std::vector<MtpToken> out;
    for (int64_t i = first; i + 1 < num_tokens(); ++i) out.push_back({ids_[size_t(i) + 1], 1.0f});
    return out;
  }
  void Truncate(int64_t num_tokens) override {
    CHECK(num_tokens <= int64_t(ids_.size()));
    ids_.resize(size_t(num_tokens));
  }
  std::span<const int32_t> ids() const override { return ids_; }
  int64_t AdoptPrefix(std::span<const int32_t> prompt) override {
    size_t common = 0;
    while (common < ids_.size() && common + 1 < prompt.size() && ids_[common] == prompt[common]) {
      ++common;
    }
    ids_.resize(common);
    return int64_t(common);
  }
  // A page holds its tokens' ids and zeros.
  static constexpr int64_t kPageBytes = kPageTokens * int64_t(sizeof(int32_t));
  int64_t num_pages() const override { return KvShape::PagesOf(num_tokens()); }
  int64_t num_shared_pages() const override { return 0; }
  void CopyPage(int64_t i, std::span<uint8_t> out) const override {
    std::ranges::fill(out, uint8_t{0});
    const auto first = size_t(i * kPageTokens);
    const size_t n = std::min(ids_.size() - first, size_t(kPageTokens));
    std::memcpy(out.data(), ids_.data() + first, n * sizeof(int32_t));
  }
  void Restore(std::span<const int32_t> ids, const ReadPageFn& read) override {
    ids_.clear();
    std::vector<int32_t> page(size_t{kPageTokens});
    for (size_t at = 0; at < ids.size(); at += size_t(kPageTokens)) {
      read(int64_t(at) / kPageTokens, {reinterpret_cast<uint8_t*>(page.data()), size_t(kPageBytes)},
           {});
      for (size_t i = 0; i < size_t(kPageTokens) && at + i < ids.size(); ++i) {
        CHECK(page[i] == ids[at + i]);
      }
    }
    ids_.assign(ids.begin(), ids.end());
  }

  int64_t num_appended = 0;  // tokens computed so far

 private:
  FakeModel model_;
  int64_t vocab_size_, context_tokens_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
};

// A model that answers with `script`, token after token, once `prompt_tokens` are there, and then
// with `end_id` for ever.
inline FakeModel ScriptedModel(std::vector<int32_t> script, size_t prompt_tokens, int32_t end_id,
                               int64_t vocab_size) {
  return [=](std::span<const int32_t> ids) {
    std::vector<float> logits(size_t(vocab_size), 0.0f);
    const size_t step = ids.size() - std::min(ids.size(), prompt_tokens);
    logits[size_t(step < script.size() ? script[step] : end_id)] = 10.0f;
    return logits;
  };
}

// Renders "<|role|>text" for each message and "<|assistant|>" at the end.
class FakeChatFormat : public ChatFormat {
 public:
  std::string Render(const std::vector<ChatMessage>& messages,
                     const ChatOptions& options) const override {
    std::string text;
    for (const ChatMessage& m : messages) text += "<|" + m.role + "|>" + m.content;
    if (!options.add_generation_prompt) return text;
    return text + "<|assistant|>" + (options.thinking ? "<think>" : "<think></think>");
  }
  std::vector<int32_t> RenderIds(const std::vector<ChatMessage>& messages,
                                 const ChatOptions& options,
                                 const Tokenizer& tokenizer) const override {
    return tokenizer.Encode(Render(messages, options), AddedTokens::kParse);
  }
  std::string_view source() const override { return "fake"; }
};

class FakeEngine : public Engine {
 public:
  // `more` are tokens besides those of a conversation.
  FakeEngine(FakeModel model, int64_t context_tokens = 4096,
             std::vector<FakeTokenizer::Added> more = {})
      : model_(std::move(model)), context_tokens_(context_tokens), tokenizer_(WithTags(more)) {
    config_.vocab_size = tokenizer_.vocab_size();
    config_.num_layers = 2;
    config_.hidden_size = 4;
    config_.num_mtp_layers = 1;
    config_.eos_ids = {256, 257, 258};
  }
  std::unique_ptr<Sequence> NewSequence(const SequenceOptions&) override {
    return std::make_unique<FakeSequence>(model_, tokenizer_.vocab_size(), context_tokens_);
  }
  void Step(std::span<const StepPart> parts, std::span<StepResult> results) override {
    step_logits_.resize(parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      results[p] = {};
      try {
        const bool is_drawn = parts[p].draw != nullptr;
        const auto mode = parts[p].wants_logits || is_drawn ? LogitsMode::kLast : LogitsMode::kNone;
        const auto logits = parts[p].sequence->Append(parts[p].ids, mode, parts[p].cancel);
        if (is_drawn) {
          results[p].drawn =
              DrawTokenByReference(logits.data(), int64_t(logits.size()),
                                   DrawParamsOf(*parts[p].draw), parts[p].sequence->num_tokens());
          if (results[p].drawn < 0) {
            parts[p].sequence->Truncate(parts[p].sequence->num_tokens() -
                                        int64_t(parts[p].ids.size()));
            throw Error(ErrorCode::kNonFinite, "a logit is no number");
          }
          continue;
        }
        step_logits_[p].assign(logits.begin(), logits.end());
        results[p].logits = step_logits_[p];
      } catch (const Error& error) {
        results[p].error = error;
      }
    }
  }
  void Decode(std::span<const DecodePart> parts, const NextTokensFn& on_next) override {
    std::vector<int32_t> ids;
    for (const DecodePart& part : parts) ids.push_back(part.next);
    do {
      for (size_t i = 0; i < ids.size(); ++i) {
        parts[i].sequence->Decode(
            ids[i], parts[i].sampling,
            [&](int32_t id) {
              ids[i] = id;
              return false;
            },
            parts[i].cancel);
      }
    } while (on_next(ids));
  }
  std::vector<KernelTime> ProfileStep(Sequence&, int32_t) override { return {}; }
  EngineActivity activity() override { return scripted_activity; }
  DevicePeaks MeasureDevicePeaks() override { return {0, 1e12}; }
  int64_t max_step_tokens() const override { return 512; }
  int64_t max_sequences() const override { return 512; }
  KvUse kv_use() const override { return {kNumPages, kNumPages, 0}; }
  static constexpr int64_t kNumPages = int64_t{1} << 20;
  const std::string& identity() const override { return identity_; }
  const KvShape& kv_shape() const override { return kv_shape_; }
  int64_t page_bytes() const override { return FakeSequence::kPageBytes; }
  void SetResidualTap(ResidualTap tap) override { tap_ = std::move(tap); }
  void SetRouterTap(RouterTap) override {}
  const ModelConfig& config() const override { return config_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const ChatFormat& chat_format() const override { return chat_format_; }
  int64_t context_tokens() const override { return context_tokens_; }
  const DeviceInfo& device() const override { return device_; }
  int num_threads() const override { return 1; }
  std::string_view simd_level() const override { return "fake"; }
  std::string_view weight_summary() const override { return "none"; }
  bool selects_keys() const override { return false; }
  std::string_view kv_format() const override { return "q15"; }
  MemoryPlan memory() const override { return {}; }
  uint64_t weight_bytes_per_token() const override { return 1000; }
  double prompt_products(int64_t num_tokens) const override { return 100.0 * double(num_tokens); }
  std::vector<std::span<const uint8_t>> weight_memory() const override { return {}; }
  SamplingDefaults sampling_defaults() const override { return {0.0f, 1.0f}; }
  const ResidualTap& tap() const { return tap_; }

  EngineActivity scripted_activity;  // what activity() tells

 private:
  FakeModel model_;
  int64_t context_tokens_;
  static std::vector<FakeTokenizer::Added> WithTags(std::vector<FakeTokenizer::Added> more) {
    std::vector<FakeTokenizer::Added> added = {{"<|endoftext|>", true},   {"<|user|>", true},
                                               {"<|observation|>", true}, {"<|assistant|>", true},
                                               {"<|system|>", true},      {"<think>", true},
                                               {"</think>", true},        {"<tool_call>", false}};
    added.insert(added.end(), more.begin(), more.end());
    return added;
  }

  FakeTokenizer tokenizer_;
  FakeChatFormat chat_format_;
  ModelConfig config_;
  ResidualTap tap_;
  KvShape kv_shape_;
  std::string identity_ = std::string(64, '0');
  DeviceInfo device_{"cpu", "CPU", ""};
  std::vector<std::vector<float>> step_logits_;
};

}  // namespace hillstar
