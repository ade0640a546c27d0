#include "model/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/check.h"

namespace hillstar {
namespace {

// What of a step is replayed as a whole.
enum StepPart { kLayers, kHead, kLikeliest, kDrawn };

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
      whole_(config, ops, limits.max_tokens, limits.context_tokens, limits.mode, ops.is_host()),
      w_(whole_),
      row_layout_(limits.row),
      index_layout_(limits.index),
      rope_(ops, config.qk_rope_dim, config.rope_theta, limits.context_tokens) {
  MakeExpertTables();
}

void ForwardPass::MakeExpertTables() {
  ops_.Clear(whole_.expert_uses, ExpertUsesBytes());
  const auto make = [&](const LayerWeights& layer, int64_t index) {
    if (!layer.moe) return;
    const MoeWeights& moe = *layer.moe;
    std::vector<const uint8_t*> images;
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      images.push_back(moe.images + size_t(e) * moe.image_bytes);
    }
    const size_t num_bytes = images.size() * sizeof(images[0]);
    uint8_t* table = ops_.Alloc(num_bytes);
    ops_.Write(table, images.data(), num_bytes);
    experts_[&moe] = {reinterpret_cast<const uint8_t* const*>(table),
                      moe.shape,
                      c_.num_experts,
                      c_.num_experts_per_token,
                      whole_.expert_uses + int64_t(moe_layers_.size()) * c_.num_experts,
                      moe.shared.gate,
                      moe.shared.up,
                      moe.shared.down};
    moe_layers_.push_back(index);
  };
  const auto num_layers = int64_t(weights_.layers.size());
  for (int64_t l = 0; l < num_layers; ++l) make(weights_.layers[size_t(l)], l);
  if (weights_.mtp) make(weights_.mtp->layer, num_layers);
  CHECK(int64_t(moe_layers_.size()) <= whole_.num_moe_layers);
}

size_t ForwardPass::ExpertUsesBytes() const {
  return size_t(whole_.num_moe_layers * c_.num_experts) * sizeof(uint64_t);
}

void ForwardPass::ReadExpertUses(EngineActivity* activity) {
  activity->moe_layers = moe_layers_;
  activity->num_experts = c_.num_experts;
  activity->expert_uses.resize(moe_layers_.size() * size_t(c_.num_experts));
  ops_.Read(activity->expert_uses.data(), whole_.expert_uses,
            activity->expert_uses.size() * sizeof(uint64_t));
}

int64_t ForwardPass::Run(std::span<const BatchToken> tokens, int64_t first_wanted,
                         const LayerTap& tap) {
  CHECK(first_wanted == 0 || !tap);
  Begin(tokens, first_wanted == 0 && !tap && !router_tap_);
  if (tokens_.empty()) return 0;
  const auto num_begun = int64_t(tokens_.size());
  ops_.RunStep(step_, is_repeated_, kLayers, [&] { RunLayers(first_wanted, tap); });
  return num_begun;
}

void ForwardPass::RunNext(std::span<const BatchToken> tokens) {
  Begin(tokens, /*is_repeated=*/true, /*is_next=*/true);
  ops_.RunStep(step_, is_repeated_, kLayers, [&] { RunLayers(0, {}); });
}

void ForwardPass::Draw(int64_t first, std::span<const DrawParams> draws, float* logits) {
  CHECK(first + int64_t(draws.size()) == int64_t(tokens_.size()));
  const bool is_greedy = ops_.SetDraws(first, draws);
  const bool is_whole = is_repeated_ && first_row_ == 0 && first == 0;
  const int64_t end = is_whole ? step_.num_tokens : int64_t(tokens_.size());
  ops_.RunStep(step_, is_whole, is_greedy ? kLikeliest : kDrawn, [&] {
    const int64_t at_once = std::min(kHeadRows, max_tokens_);
    float* y = w_.logits ? w_.logits : logits;
    for (int64_t row = first; row < end; row += at_once) {
      const int64_t rows = std::min(at_once, end - row);
      HeadRows(weights_.norm, row, rows, y);
      ops_.EnterStage(Stage::kDraw);
      ops_.Draw(step_, row, rows, y, c_.vocab_size);
      if (ops_.is_host()) NoteBadTokens();
    }
  });
  ops_.AskDrawn();
}

std::vector<int32_t> ForwardPass::TakeDrawn(std::span<const BatchToken> given) {
  Ops::Drawn drawn = ops_.TakeDrawn();
  for (const BadToken& bad : drawn.bad) {
    const BatchToken& token = given[size_t(bad.row)];
    NoteOutcome(bad, *token.sequence, token.position);
  }
  return std::move(drawn.ids);
}

void ForwardPass::RunLayers(int64_t first_wanted, const LayerTap& tap) {
  std::vector<float> tapped;
  const auto call_tap = [&](int64_t layer, const float* x) {
    if (!tap) return;
    tapped.resize(size_t(num_tokens() * c_.hidden_size));
    ops_.Read(tapped.data(), x, tapped.size() * sizeof(float));
    tap(layer, tapped.data());
  };
  ops_.EnterLayer(0);
  ops_.Clear(w_.selection.counts, size_t(num_tokens()) * sizeof(int32_t));
  if (mode_ == AttentionMode::kFullList) ops_.ListAll(step_, w_.selection);
  ops_.Embed(weights_.embed, step_, w_.x);
  const int64_t num_layers = int64_t(weights_.layers.size());
  for (int64_t l = 0; l < num_layers; ++l) {
    LetLeave();
    call_tap(l, w_.x);
    const LayerWeights& layer = weights_.layers[size_t(l)];
    if (l + 1 == num_layers && first_wanted > 0) {
      CompleteResidual();
      if (!tokens_.empty()) KeysOfLayer(layer, l);
      if (ops_.is_host()) NoteBadTokens();
      DropRowsBefore(std::ranges::lower_bound(places_, int32_t(first_wanted)) - places_.begin());
    }
    if (!tokens_.empty()) Layer(layer, l);
    // Rows are whole where they may leave or be looked at, and at the end.
    if (ops_.is_host() || tap || l + 1 == num_layers) CompleteResidual();
    if (ops_.is_host()) NoteBadTokens();
  }
  LetLeave();
  if (!tap) return;
  call_tap(num_layers, w_.x);
  ops_.Norm(w_.x, {weights_.norm, c_.rms_norm_eps}, num_tokens(), c_.hidden_size, w_.normed);
  call_tap(num_layers + 1, w_.normed);
}

void ForwardPass::SetRouterTap(RouterTap tap) {
  router_tap_ = std::move(tap);
  if (router_tap_) take_other_ = std::make_unique<bool[]>(size_t(max_tokens_));
}

void ForwardPass::Begin(std::span<const BatchToken> tokens, bool is_repeated, bool is_next) {
  CHECK(int64_t(tokens.size()) <= max_tokens_);
  batch_.clear();
  places_.clear();
  for (const BatchToken& token : tokens) {
    StepSequence& s = *token.sequence;
    if (s.cancel && s.cancel->load(std::memory_order_relaxed)) {
      s.outcome = StepSequence::Outcome::kCancelled;
    }
    if (s.outcome != StepSequence::Outcome::kDone) continue;
    places_.push_back(int32_t(&token - tokens.data()));
    batch_.push_back(token);
  }
  tokens_ = batch_;
  w_ = whole_;
  const size_t n = tokens_.size();
  ids_.resize(n);
  positions_.resize(n);
  pages_.resize(n);
  first_row_ = 0;
  is_repeated_ = is_repeated;
  int64_t end = 0;
  for (size_t t = 0; t < n; ++t) {
    ids_[t] = tokens_[t].id;
    positions_[t] = tokens_[t].position;
    pages_[t] = tokens_[t].sequence->kv->page_list();
    end = std::max(end, positions_[t] + 1);
  }
  rope_.Reserve(end);
  if (n > 0) BeginStep(is_next);
}

void ForwardPass::CompleteResidual() {
  const Ops::Addend addend = TakeAddend();
  if (!addend.is_empty()) ops_.Add(addend, num_tokens(), c_.hidden_size, w_.x);
}

void ForwardPass::BeginStep(bool is_next) {
  const auto first = size_t(first_row_);
  StepInput input;
  input.num_tokens = int64_t(tokens_.size());
  input.ids = ids_.data() + first;
  input.positions = positions_.data() + first;
  input.pages = pages_.data() + first;
  input.memory = any_kv().page_addresses();
  step_ = is_next ? ops_.NextStep(input) : ops_.BeginStep(input, is_repeated_);
  step_.rope_rows = rope_.rows();
  step_.half_rope = c_.qk_rope_dim / 2;
  given_ = tokens_;
}

void ForwardPass::DropRowsBefore(int64_t first) {
  if (first == 0) return;
  tokens_ = tokens_.subspan(size_t(first));
  places_.erase(places_.begin(), places_.begin() + first);
  first_row_ += first;
  step_ = ops_.DropRowsBefore(step_, first);
  w_.x += first * c_.hidden_size;
  w_.selection.lists += first * w_.selection.max_keys;
  w_.selection.counts += first;
}

// A GPU that runs ahead is followed only for the sake of somebody who may be cancelled.
bool ForwardPass::CanLeave() const {
  if (ops_.is_host()) return true;
  const auto has_flag = [](const BatchToken& token) { return token.sequence->cancel != nullptr; };
  return !is_repeated_ && std::ranges::any_of(tokens_, has_flag);
}

void ForwardPass::ListKept() {
  using Outcome = StepSequence::Outcome;
  kept_.clear();
  for (const BatchToken& token : tokens_) {
    StepSequence& s = *token.sequence;
    const bool cancelled = s.cancel && s.cancel->load(std::memory_order_relaxed);
    if (s.outcome == Outcome::kDone && cancelled) s.outcome = Outcome::kCancelled;
    if (s.outcome == Outcome::kDone) kept_.push_back(int32_t(&token - tokens_.data()));
  }
}

void ForwardPass::LetLeave() {
  if (!CanLeave()) return;
  ops_.Follow();
  ListKept();
  if (kept_.size() == tokens_.size()) return;
  // On a host both are done.
  CompleteResidual();
  NoteBadTokens();
  ops_.KeepRows(w_.x, c_.hidden_size * int64_t(sizeof(float)), kept_);
  ops_.KeepRows(w_.selection.counts, sizeof(int32_t), kept_);
  if (w_.selection.lists) {
    ops_.KeepRows(w_.selection.lists, w_.selection.max_keys * int64_t(sizeof(int32_t)), kept_);
  }
  const auto first = size_t(first_row_);
  for (size_t i = 0; i < kept_.size(); ++i) {
    const auto from = size_t(kept_[i]);
    tokens_[i] = tokens_[from];
    places_[i] = places_[from];
    ids_[first + i] = ids_[first + from];
    positions_[first + i] = positions_[first + from];
    pages_[first + i] = pages_[first + from];
  }
  tokens_ = tokens_.first(kept_.size());
  places_.resize(kept_.size());
  if (!tokens_.empty()) BeginStep();
}

void ForwardPass::NoteBadTokens() {
  for (const BadToken& bad : ops_.TakeBadTokens()) {
    const BatchToken& token = given_[size_t(bad.row)];
    NoteOutcome(bad, *token.sequence, token.position);
  }
}

void ForwardPass::NoteOutcome(const BadToken& bad, StepSequence& sequence, int64_t position) {
  if (sequence.outcome != StepSequence::Outcome::kDone) return;
  sequence.outcome = StepSequence::Outcome::kNonFinite;
  sequence.bad_layer = bad.layer;
  sequence.bad_position = position;
}

void ForwardPass::Finish() {
  if (!tokens_.empty()) NoteBadTokens();
}

void ForwardPass::ReadResidual(int64_t count, float* out) {
  ops_.Read(out, w_.x, size_t(count * c_.hidden_size) * sizeof(float));
}

void ForwardPass::Logits(int64_t first, int64_t count, float* out) {
  HeadLogits(weights_.norm, first, count, out);
}

void ForwardPass::HeadLogits(const float* norm, int64_t first, int64_t count, float* out) {
  const int64_t at_once = std::min(kHeadRows, max_tokens_);
  for (int64_t done = 0; done < count; done += at_once) {
    const int64_t rows = std::min(at_once, count - done);
    float* to = out + done * c_.vocab_size;
    // Of a whole step that is replayed, the head is too.
    const bool is_whole = is_repeated_ && count == int64_t(tokens_.size()) &&
                          step_.num_tokens <= at_once && norm == weights_.norm;
    float* y = w_.logits ? w_.logits : to;
    ops_.RunStep(step_, is_whole, kHead, [&] {
      HeadRows(norm, first + done, is_whole && w_.logits ? step_.num_tokens : rows, y);
    });
    if (ops_.is_host()) {
      NoteBadTokens();
    } else {
      ops_.Read(to, w_.logits, size_t(rows * c_.vocab_size) * sizeof(float));
    }
  }
}

void ForwardPass::HeadRows(const float* norm, int64_t first, int64_t rows, float* y) {
  ops_.EnterLayer(StepSequence::kHead, first);
  ops_.EnterStage(Stage::kHead);
  ops_.NormPlanes(w_.x + first * c_.hidden_size, {}, {norm, c_.rms_norm_eps}, rows, c_.hidden_size,
                  nullptr, w_.normed_planes);
  ops_.Linear(std::array{WholeLayer(weights_.head, w_.normed_planes, rows, y)});
}

LinearSlice ForwardPass::Matrix(const WeightView& w, const ActivationPlanes& x, float* y) const {
  return WholeLayer(w, x, num_tokens(), y);
}

}  // namespace hillstar
