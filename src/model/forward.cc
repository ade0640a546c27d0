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
constexpr int64_t kHead = -1;  // in place of a layer's number

}  // namespace

ForwardPass::ForwardPass(const ModelConfig& config, const ModelWeights& weights, Ops& ops,
                         const KvShape& shape, int64_t max_tokens, int64_t context_tokens)
    : c_(config),
      weights_(weights),
      ops_(ops),
      max_tokens_(max_tokens),
      whole_(config, ops, max_tokens, context_tokens),
      w_(whole_),
      row_layout_(shape.row),
      index_layout_(shape.index),
      rope_(ops, config.qk_rope_dim, config.rope_theta, context_tokens) {}

void ForwardPass::Run(std::span<const BatchToken> tokens, int64_t first_wanted,
                      const std::atomic<bool>* cancel, const LayerTap& tap) {
  CHECK(first_wanted == 0 || !tap);
  Begin(tokens);
  ops_.Embed(weights_.embed, step_, w_.x);
  const int64_t num_layers = int64_t(weights_.layers.size());
  for (int64_t l = 0; l < num_layers; ++l) {
    if (cancel && cancel->load(std::memory_order_relaxed)) {
      throw Error(ErrorCode::kCancelled, "stopped on request");
    }
    if (tap) {
      ops_.Finish();
      tap(l, w_.x);
    }
    const LayerWeights& layer = weights_.layers[size_t(l)];
    if (l + 1 == num_layers && first_wanted > 0) {
      KeysOfLayer(layer, l);
      DropRowsBefore(first_wanted);
    }
    if (num_tokens() > 0) Layer(layer, l);
  }
  if (!tap) return;
  tap(num_layers, w_.x);
  ops_.Norm(w_.x, {weights_.norm, c_.rms_norm_eps}, num_tokens(), c_.hidden_size, w_.normed);
  ops_.Finish();
  tap(num_layers + 1, w_.normed);
}

void ForwardPass::Begin(std::span<const BatchToken> tokens) {
  CHECK(int64_t(tokens.size()) <= max_tokens_);
  tokens_ = tokens;
  w_ = whole_;
  const size_t n = tokens.size();
  ids_.resize(n);
  positions_.resize(n);
  for (size_t t = 0; t < n; ++t) {
    ids_[t] = tokens[t].id;
    positions_[t] = tokens[t].position;
    rope_.Reserve(positions_[t] + 1);
  }
  step_ = {int64_t(n), ids_.data(), positions_.data(), rope_.rows(), c_.qk_rope_dim / 2};
  for (size_t t = 0; t < n; ++t) w_.selection.counts[t] = 0;
  ops_.TakeFirstBadToken();
}

void ForwardPass::DropRowsBefore(int64_t first) {
  tokens_ = tokens_.subspan(size_t(first));
  step_.num_tokens -= first;
  step_.ids += first;
  step_.positions += first;
  w_.x += first * c_.hidden_size;
  w_.selection.lists += first * w_.selection.max_keys;
  w_.selection.counts += first;
}

void ForwardPass::CheckFinite(int64_t layer, int64_t first_row) {
  ops_.Finish();
  const int64_t bad = ops_.TakeFirstBadToken();
  if (bad < 0) return;
  throw Error(ErrorCode::kNonFinite,
              fmt::format("a value left the range of finite numbers; it was first seen in {}, "
                          "position {}",
                          layer == kHead ? "the head" : fmt::format("layer {}", layer),
                          step_.positions[first_row + bad]));
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
    CheckFinite(kHead, first + done);
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
  for (const BatchToken& t : tokens_) pages_.push_back(t.kv->latents(layer));
  return pages_;
}

TokenPages ForwardPass::IndexPages(int64_t layer) {
  pages_.clear();
  for (const BatchToken& t : tokens_) pages_.push_back(t.kv->index_keys(layer));
  return pages_;
}

}  // namespace hillstar
