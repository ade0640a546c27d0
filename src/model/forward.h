// The forward pass of glm_moe_dsa, written once against the operations of a backend.
// docs/one_token.md follows a token through it. Used by one thread at a time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
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

  // Asks for the step; the rows of `residual()` will be the residual streams after the last layer
  // of tokens first_wanted and later (of a prompt's other tokens, only the KV rows matter, and the
  // last layer computes nothing else). The pages must be writable (SequenceKv::Prepare). A sequence
  // that is cancelled before the step, or before a layer unless the step is replayed, or that meets
  // a value that is not finite leaves the step, which its outcome tells after Finish; the others go
  // on. On a GPU the host looks when the layer before that one begins. REQUIRES:
  // first_wanted is 0 with a tap; outcomes are kDone. Returns how many tokens it began with.
  int64_t Run(std::span<const BatchToken> tokens, int64_t first_wanted, const LayerTap& tap);
  // The tokens, by their places in the step, whose rows residual() holds.
  std::span<const int32_t> rows() const { return places_; }
  // Logits of rows [first, first + count) of residual(): f32 [count, vocab] on the host.
  void Logits(int64_t first, int64_t count, float* out);
  // Draws the tokens behind rows [first, first + draws.size()) of residual(), the last of them,
  // each at the position after its own. TakeDrawn, once for each call and in their order, waits for
  // the tokens, of all rows (of others anything), and notes the outcomes of the tokens of that step
  // as Finish does; `given`: given() of that step. `logits`: f32 [min(rows, kHeadRows), vocab] of
  // the host, where that computes; else unused. REQUIRES on a GPU: nothing is asked of the step
  // between the two that may find a value that is not finite.
  void Draw(int64_t first, std::span<const DrawParams> draws, float* logits);
  std::vector<int32_t> TakeDrawn(std::span<const BatchToken> given);
  // The tokens that the step began with: all but those of cancelled sequences.
  std::span<const BatchToken> given() const { return given_; }
  // The step after one whose rows were all drawn from: `tokens` are of the same sequences, each a
  // position further; their ids are what was drawn, and what `tokens` says of them is ignored.
  // REQUIRES a backend that runs ahead: !Ops::is_host().
  void RunNext(std::span<const BatchToken> tokens);
  // Rows [0, count) of residual(), to the host.
  void ReadResidual(int64_t count, float* out);
  // Waits for what was asked for and notes outcomes.
  void Finish();

  void SetRouterTap(RouterTap tap);

  // Sets moe_layers, num_experts and expert_uses. Waits for what was asked for.
  void ReadExpertUses(EngineActivity* activity);

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
  void ProjectDown(const AttentionWeights& attention);
  void FinishProjections(const AttentionWeights& attention, int64_t layer);
  Ops::IndexKeyNorm IndexNorm(const IndexerWeights& indexer) const;
  void StoreKeys(const AttentionWeights& attention, int64_t layer);
  void ProjectQueries(const AttentionWeights& attention);
  void SelectKeys(int64_t layer);
  void AttendAndProject(const AttentionWeights& attention, int64_t layer);
  // moe.cc
  void DenseMlp(const MlpWeights& mlp);
  void MixtureOfExperts(const MoeWeights& moe, int64_t layer);
  void TapRouter(const RouterChoice& choice, int64_t layer);
  void RoutedExperts(const ExpertLayer& layer);
  // forward.cc
  // The images' addresses of every MoE layer, where the backend reads them, and its counts.
  void MakeExpertTables();
  size_t ExpertUsesBytes() const;
  void Begin(std::span<const BatchToken> tokens, bool is_repeated, bool is_next = false);
  // From the arrays of the tokens that are left.
  void BeginStep(bool is_next = false);
  void RunLayers(int64_t first_wanted, const LayerTap& tap);
  void DropRowsBefore(int64_t first);
  // Cancelled sequences and those with an outcome leave the step.
  void LetLeave();
  // Whether they may.
  bool CanLeave() const;
  // Sets the outcome of those that are cancelled; kept_: the places of the others' tokens.
  void ListKept();
  // Of the layer that was entered; on a GPU, of the step.
  void NoteBadTokens();
  static void NoteOutcome(const BadToken& bad, StepSequence& sequence, int64_t position);
  void HeadLogits(const float* norm, int64_t first, int64_t count, float* out);
  // What the last layer left to be added to x; there is nothing after it.
  Ops::Addend TakeAddend() { return std::exchange(addend_, {}); }
  // Adds it now.
  void CompleteResidual();
  // Final norm, planes and head of some rows, to y.
  void HeadRows(const float* norm, int64_t first, int64_t rows, float* y);
  // y = W x for this step's tokens.
  LinearSlice Matrix(const WeightView& w, const ActivationPlanes& x, float* y) const;

  int64_t num_tokens() const { return step_.num_tokens; }
  // Whether a token of the step may see more keys than it attends to.
  bool scores_keys() const { return w_.scores_keys && step_.max_positions > c_.index_topk; }
  // Of a layer's bytes in a page.
  int64_t LatentOffset(int64_t layer) const { return any_kv().latents(layer).offset; }
  int64_t IndexOffset(int64_t layer) const { return any_kv().index_keys(layer).offset; }
  const SequenceKv& any_kv() const { return *tokens_[0].sequence->kv; }

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

  std::map<const MoeWeights*, ExpertLayer> experts_;
  std::vector<int64_t> moe_layers_;  // of each row of expert_uses

  // The step in work.
  StepTokens step_;
  bool is_repeated_ = false;  // a GPU may replay it
  std::vector<BatchToken> batch_;
  std::span<BatchToken> tokens_;  // of batch_, those still in the step
  std::span<BatchToken> given_;   // to the operations, when the step began
  std::vector<int32_t> places_;   // of tokens_ in the step as it was given
  int64_t first_row_ = 0;         // of tokens_ in the arrays below
  std::vector<int32_t> ids_;
  std::vector<int64_t> positions_;
  std::vector<PageList> pages_;
  std::vector<int32_t> kept_;
  Ops::Addend addend_;  // joins x with the next norm
  RouterTap router_tap_;
  std::unique_ptr<bool[]> take_other_;  // [max_tokens], with a tap
  // Layers that run side by side; kept, so that a step allocates nothing.
  std::vector<LinearSlice> slices_;
};

}  // namespace hillstar
