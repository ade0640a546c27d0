// The second half of a layer: a dense MLP, or routed experts and a shared one.
#include <algorithm>
#include <array>
#include <functional>

#include "model/forward.h"
#include "numerics/elementary.h"

namespace hillstar {
namespace {

// A bias that no score makes up for.
constexpr float kOutOfReach = 1e30f;

}  // namespace

// x += down(silu(gate x) * up x), which the next norm adds.
void ForwardPass::DenseMlp(const MlpWeights& mlp) {
  ops_.EnterStage(Stage::kDenseMlp);
  ops_.SwiGlu(std::array{SwiGluSlice{Matrix(mlp.gate, w_.normed_planes, w_.hidden), mlp.up}});
  ops_.LinearOfFloats(w_.hidden, Matrix(mlp.down, w_.dense_planes, w_.out));
  addend_ = {w_.out};
}

void ForwardPass::MixtureOfExperts(const MoeWeights& moe, int64_t layer) {
  ops_.EnterStage(Stage::kRouter);
  const FloatLinearSlice router{moe.router, w_.normed,      c_.hidden_size,   num_tokens(),
                                0,          c_.num_experts, w_.router_logits, c_.num_experts};
  RouterChoice choice;
  choice.logits = w_.router_logits;
  choice.bias = moe.router_bias;
  choice.num_experts = c_.num_experts;
  choice.num_chosen = c_.num_experts_per_token;
  choice.normalise = c_.norm_topk_prob;
  choice.scaling = c_.routed_scaling_factor;
  choice.experts = w_.expert_ids;
  choice.weights = w_.expert_weights;
  const ExpertLayer experts = experts_.at(&moe);
  if (router_tap_) {
    ops_.FloatLinear(router);
    ops_.Choose(choice, num_tokens());
    TapRouter(choice, layer);
    ops_.GroupByExpert(w_.expert_ids, step_, experts, w_.groups);
  } else {
    ops_.Route(router, choice, step_, experts, w_.groups);
  }
  RoutedExperts(experts);
  addend_ = {
      nullptr,
      {w_.expert_rows, w_.groups.slots, w_.expert_weights, c_.num_experts_per_token, w_.out}};
}

void ForwardPass::TapRouter(const RouterChoice& choice, int64_t layer) {
  const auto tokens = size_t(num_tokens());
  const int64_t num_experts = c_.num_experts, chosen = c_.num_experts_per_token;
  std::vector<float> gaps, scores;
  for (int64_t t = 0; t < num_tokens(); ++t) {
    const float* logits = choice.logits + t * num_experts;
    scores.clear();
    for (int64_t e = 0; e < num_experts; ++e) scores.push_back(Sigmoid(logits[e]) + choice.bias[e]);
    std::sort(scores.begin(), scores.end(), std::greater<float>());
    const size_t last = size_t(chosen) - 1;
    gaps.push_back(chosen < num_experts ? scores[last] - scores[last + 1] : 1.0f);
  }
  const std::span<bool> take_other(take_other_.get(), tokens);
  std::ranges::fill(take_other, false);
  router_tap_(layer, step_.positions[0], gaps, take_other);
  for (int64_t t = 0; t < num_tokens(); ++t) {
    if (!take_other[size_t(t)] || chosen == num_experts) continue;
    // The same choice with its last expert out of reach.
    std::vector<float> bias(choice.bias, choice.bias + num_experts);
    bias[size_t(choice.experts[(t + 1) * chosen - 1])] = -kOutOfReach;
    RouterChoice other = choice;
    other.logits += t * num_experts;
    other.bias = bias.data();
    other.experts += t * chosen;
    other.weights += t * chosen;
    ops_.Choose(other, 1);
  }
}

void ForwardPass::RoutedExperts(const ExpertLayer& layer) {
  ops_.EnterStage(Stage::kExperts);
  ops_.ExpertsUp(layer, w_.groups, w_.normed_planes, num_tokens(), w_.hidden, w_.shared_hidden);
  ops_.ExpertsDownOfFloats(layer, w_.groups, {w_.hidden, w_.expert_planes},
                           {w_.shared_hidden, w_.shared_planes}, num_tokens(), w_.expert_rows,
                           w_.out);
}

}  // namespace hillstar
