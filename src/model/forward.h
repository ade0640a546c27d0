// The forward pass of glm_moe_dsa, written once against the operations of a backend.
// docs/one_token.md follows a token through it. Used by one thread at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hillstar/engine.h"
#include "kv/sequence_kv.h"
#include "model/attention_mode.h"
#include "model/config.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "ops/ops.h"

namespace hillstar {

// One sequence's part in a step.
struct StepSequence {
  SequenceKv* kv = nullptr;
  const std::atomic<bool>* cancel = nullptr;  // takes its tokens out of the step; may be null

  enum class Outcome { kDone, kCancelled, kNonFinite };
  Outcome outcome = Outcome::kDone;         // set by the step
  int64_t bad_layer = 0, bad_position = 0;  // of kNonFinite
  static constexpr int64_t kHead = -1;      // as bad_layer
};
// The sentence for an outcome that is not kDone.
Error StepError(const StepSequence& sequence);

// One token of a step: of whichever sequence, at whichever position. Tokens of one sequence come in
// ascending order of position, and all earlier positions are in its pages or in this step.
struct BatchToken {
  int32_t id = 0;
  int64_t position = 0;
  StepSequence* sequence = nullptr;
};

// What steps may hold, and how.
struct StepLimits {
  int64_t max_tokens = 0;
  int64_t context_tokens = 0;  // positions are below
  KvRowLayout row;             // of the sequences' pages
  IndexKeyLayout index;
  AttentionMode mode = AttentionMode::kAuto;
};

// Called with the residual stream of the step's tokens; see ResidualTap.
using LayerTap = std::function<void(int64_t layer, const float* residual)>;

class ForwardPass {
 public:
  // Everything passed but `limits` outlives the object.
  ForwardPass(const ModelConfig& config, const ModelWeights& weights, Ops& ops,
              const StepLimits& limits);

  // Computes the step; the rows of `residual()` are then the residual streams after the last layer
  // of tokens first_wanted and later (of a prompt's other tokens, only the KV rows matter, and the
  // last layer computes nothing else). The pages must be writable (SequenceKv::Prepare).
  // A sequence that is cancelled before a layer or meets a value that is not finite leaves the
  // step, which its outcome tells; the others go on.
  // REQUIRES: first_wanted is 0 with a tap; outcomes are kDone.
  void Run(std::span<const BatchToken> tokens, int64_t first_wanted, const LayerTap& tap);
  const float* residual() const { return w_.x; }
  // The tokens, by their places in the step, whose rows residual() holds.
  std::span<const int32_t> rows() const { return places_; }

  void SetRouterTap(RouterTap tap);

  // Logits of rows [first, first + count) of residual(): f32 [count, vocab]. Outcomes as in Run.
  void Logits(int64_t first, int64_t count, float* out);

  // The MTP layer over a step: `hidden` f32 [T, D] are the residual streams after the last layer at
  // the tokens' positions, ids[t] is the token that follows token t. Writes the rows of the MTP
  // layer's KV; logits of rows as above through MtpLogits.
  void RunMtp(std::span<const BatchToken> following, const float* hidden);
  void MtpLogits(int64_t first, int64_t count, float* out);

 private:
  // layer.cc
  void Layer(const LayerWeights& layer, int64_t index);
  void KeysOfLayer(const LayerWeights& layer, int64_t index);
  // attention.cc
  void Attention(const AttentionWeights& attention, int64_t layer);
  // To slices_.
  void AddKeyProjections(const AttentionWeights& attention);
  // y[t, head] = W_head x[t * heads + head], head_rows values each: one matrix a head.
  void LinearByHead(const WeightView& w, int64_t head_rows, const ActivationPlanes& x, float* y);
  void ProjectDown(const AttentionWeights& attention);
  void StoreKeys(const AttentionWeights& attention, int64_t layer);
  void ProjectQueries(const AttentionWeights& attention);
  void SelectKeys(int64_t layer);
  void AttendAndProject(const AttentionWeights& attention, int64_t layer);
  // moe.cc
  void DenseMlp(const MlpWeights& mlp);
  void MixtureOfExperts(const MoeWeights& moe, int64_t layer);
  void TapRouter(const RouterChoice& choice, int64_t layer);
  void GroupByExpert(int64_t num_experts);
  void RoutedExperts(const MoeWeights& moe);
  // forward.cc
  void Begin(std::span<const BatchToken> tokens);
  void DropRowsBefore(int64_t first);
  // Cancelled sequences and those with an outcome leave the step.
  void LetLeave();
  void NoteBadTokens(int64_t layer, int64_t first_row = 0);
  void HeadLogits(const float* norm, int64_t first, int64_t count, float* out);
  // y = W x for this step's tokens.
  LinearSlice Matrix(const WeightView& w, const ActivationPlanes& x, float* y) const;

  int64_t num_tokens() const { return step_.num_tokens; }
  TokenPages LatentPages(int64_t layer);
  TokenPages IndexPages(int64_t layer);

  const ModelConfig& c_;
  const ModelWeights& weights_;
  Ops& ops_;
  const int64_t max_tokens_;
  const AttentionMode mode_;
  const Workspace whole_;
  Workspace w_;  // whole_, or its rows from some token on
  const KvRowLayout row_layout_;
  const IndexKeyLayout index_layout_;
  RopeTable rope_;

  // The step in work.
  StepTokens step_;
  std::vector<BatchToken> batch_;
  std::span<BatchToken> tokens_;  // of batch_, those still in the step
  std::vector<int32_t> places_;   // of tokens_ in the step as it was given
  std::vector<int32_t> kept_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> positions_;
  std::vector<PageTable> pages_;
  RouterTap router_tap_;
  std::unique_ptr<bool[]> take_other_;  // [max_tokens], with a tap
  std::vector<int32_t> expert_begin_;   // [experts + 1]: first slot of each
  std::vector<int32_t> next_slot_;      // [experts]
  // Layers that run side by side; kept, so that a step allocates nothing.
  std::vector<LinearSlice> slices_;
  std::vector<SwiGluSlice> gates_;
};

}  // namespace hillstar
