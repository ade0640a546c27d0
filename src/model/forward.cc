#include "model/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"

namespace hillstar {
namespace {

// Rows whose logits are computed at once: enough to share a pass over the head's weights.
constexpr int64_t kHeadRows = 64;

}  // namespace

Error StepError(const StepSequence& sequence) {
  if (sequence.outcome == StepSequence::Outcome::kCancelled) {
    return {ErrorCode::kCancelled, "stopped on request"};
  }
  const std::string where = sequence.bad_layer == StepSequence::kHead
                                ? "the head"
                                : fmt::format("layer {}", sequence.bad_layer);
  return {ErrorCode::kNonFinite,
          fmt::format("a value left the range of finite numbers; it was first seen in {}, position "
                      "{}",
                      where, sequence.bad_position)};
}

ForwardPass::ForwardPass(const ModelConfig& config, const ModelWeights& weights, Ops& ops,
                         const StepLimits& limits)
    : c_(config),
      weights_(weights),
      ops_(ops),
      max_tokens_(limits.max_tokens),
      mode_(limits.mode),
      whole_(config, ops, limits.max_tokens, limits.context_tokens, limits.mode),
      w_(whole_),
      row_layout_(limits.row),
      index_layout_(limits.index),
      rope_(ops, config.qk_rope_dim, config.rope_theta, limits.context_tokens) {}

void ForwardPass::Run(std::span<const BatchToken> tokens, int64_t first_wanted,
                      const LayerTap& tap) {
  CHECK(first_wanted == 0 || !tap);
  Begin(tokens);
  ops_.Embed(weights_.embed, step_, w_.x);
  const int64_t num_layers = int64_t(weights_.layers.size());
  for (int64_t l = 0; l < num_layers; ++l) {
    LetLeave();
    if (tap) {
      ops_.Finish();
      tap(l, w_.x);
    }
    const LayerWeights& layer = weights_.layers[size_t(l)];
    if (l + 1 == num_layers && first_wanted > 0) {
      if (num_tokens() > 0) KeysOfLayer(layer, l);
      DropRowsBefore(std::ranges::lower_bound(places_, int32_t(first_wanted)) - places_.begin());
    }
    if (num_tokens() > 0) Layer(layer, l);
  }
  LetLeave();
  if (!tap) return;
  tap(num_layers, w_.x);
  ops_.Norm(w_.x, {weights_.norm, c_.rms_norm_eps}, num_tokens(), c_.hidden_size, w_.normed);
  ops_.Finish();
  tap(num_layers + 1, w_.normed);
}

void ForwardPass::SetRouterTap(RouterTap tap) {
  router_tap_ = std::move(tap);
  if (router_tap_) take_other_ = std::make_unique<bool[]>(size_t(max_tokens_));
}

void ForwardPass::Begin(std::span<const BatchToken> tokens) {
  CHECK(int64_t(tokens.size()) <= max_tokens_);
  batch_.assign(tokens.begin(), tokens.end());
  tokens_ = batch_;
  w_ = whole_;
  const size_t n = tokens.size();
  ids_.resize(n);
  positions_.resize(n);
  places_.resize(n);
  for (size_t t = 0; t < n; ++t) {
    ids_[t] = tokens[t].id;
    positions_[t] = tokens[t].position;
    places_[t] = int32_t(t);
    rope_.Reserve(positions_[t] + 1);
  }
  step_ = {int64_t(n), ids_.data(), positions_.data(), rope_.rows(), c_.qk_rope_dim / 2};
  for (size_t t = 0; t < n; ++t) w_.selection.counts[t] = 0;
  if (mode_ == AttentionMode::kFullList) ops_.ListAll(step_, w_.selection);
  ops_.TakeBadTokens();
}

void ForwardPass::DropRowsBefore(int64_t first) {
  tokens_ = tokens_.subspan(size_t(first));
  places_.erase(places_.begin(), places_.begin() + first);
  step_.num_tokens -= first;
  step_.ids += first;
  step_.positions += first;
  w_.x += first * c_.hidden_size;
  w_.selection.lists += first * w_.selection.max_keys;
  w_.selection.counts += first;
}

void ForwardPass::LetLeave() {
  using Outcome = StepSequence::Outcome;
  kept_.clear();
  for (const BatchToken& token : tokens_) {
    StepSequence& s = *token.sequence;
    const bool cancelled = s.cancel && s.cancel->load(std::memory_order_relaxed);
    if (s.outcome == Outcome::kDone && cancelled) s.outcome = Outcome::kCancelled;
    if (s.outcome == Outcome::kDone) kept_.push_back(int32_t(&token - tokens_.data()));
  }
  if (kept_.size() == tokens_.size()) return;
  ops_.KeepRows(w_.x, c_.hidden_size * int64_t(sizeof(float)), kept_);
  ops_.KeepRows(w_.selection.counts, sizeof(int32_t), kept_);
  if (w_.selection.lists) {
    ops_.KeepRows(w_.selection.lists, w_.selection.max_keys * int64_t(sizeof(int32_t)), kept_);
  }
  const auto first = size_t(step_.ids - ids_.data());
  for (size_t i = 0; i < kept_.size(); ++i) {
    const auto from = size_t(kept_[i]);
    tokens_[i] = tokens_[from];
    places_[i] = places_[from];
    ids_[first + i] = ids_[first + from];
    positions_[first + i] = positions_[first + from];
  }
  tokens_ = tokens_.first(kept_.size());
  places_.resize(kept_.size());
  step_.num_tokens = int64_t(kept_.size());
}

void ForwardPass::NoteBadTokens(int64_t layer, int64_t first_row) {
  ops_.Finish();
  for (int64_t row : ops_.TakeBadTokens()) {
    const BatchToken& token = tokens_[size_t(first_row + row)];
    StepSequence& s = *token.sequence;
    if (s.outcome != StepSequence::Outcome::kDone) continue;
    s.outcome = StepSequence::Outcome::kNonFinite;
    s.bad_layer = layer;
    s.bad_position = token.position;
  }
}

void ForwardPass::Logits(int64_t first, int64_t count, float* out) {
  HeadLogits(weights_.norm, first, count, out);
}

void ForwardPass::HeadLogits(const float* norm, int64_t first, int64_t count, float* out) {
  const int64_t at_once = std::min(kHeadRows, max_tokens_);
  for (int64_t done = 0; done < count; done += at_once) {
    const int64_t rows = std::min(at_once, count - done);
    const float* x = w_.x + (first + done) * c_.hidden_size;
    ops_.Norm(x, {norm, c_.rms_norm_eps}, rows, c_.hidden_size, w_.normed);
    ops_.Quantise(w_.normed, rows, w_.normed_planes);
    LinearSlice head = Matrix(weights_.head, w_.normed_planes, out + done * c_.vocab_size);
    head.num_tokens = rows;
    ops_.Linear(std::array{head});
    NoteBadTokens(StepSequence::kHead, first + done);
  }
}

LinearSlice ForwardPass::Matrix(const WeightView& w, const ActivationPlanes& x, float* y) const {
  LinearSlice s;
  s.w = w;
  s.x = x;
  s.num_tokens = num_tokens();
  s.y = y;
  s.y_stride = w.rows;
  return s;
}

TokenPages ForwardPass::LatentPages(int64_t layer) {
  pages_.clear();
  for (const BatchToken& t : tokens_) pages_.push_back(t.sequence->kv->latents(layer));
  return pages_;
}

TokenPages ForwardPass::IndexPages(int64_t layer) {
  pages_.clear();
  for (const BatchToken& t : tokens_) pages_.push_back(t.sequence->kv->index_keys(layer));
  return pages_;
}

}  // namespace hillstar
