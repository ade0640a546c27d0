// The second half of a layer: a dense MLP, or routed experts and a shared one.
#include <algorithm>
#include <array>
#include <functional>

#include "model/forward.h"
#include "numerics/elementary.h"

namespace hillstar {

// x += down(silu(gate x) * up x).
void ForwardPass::DenseMlp(const MlpWeights& mlp) {
  ops_.SwiGlu(std::array{SwiGluSlice{Matrix(mlp.gate, w_.normed_planes, w_.hidden), mlp.up}});
  ops_.Quantise(w_.hidden, num_tokens(), w_.dense_planes);
  ops_.Linear(std::array{Matrix(mlp.down, w_.dense_planes, w_.out)});
  ops_.AddRows(w_.x, w_.out, num_tokens(), c_.hidden_size);
}

void ForwardPass::MixtureOfExperts(const MoeWeights& moe, int64_t layer) {
  ops_.FloatLinear({moe.router, w_.normed, c_.hidden_size, num_tokens(), 0, c_.num_experts,
                    w_.router_logits, c_.num_experts});
  RouterChoice choice;
  choice.logits = w_.router_logits;
  choice.bias = moe.router_bias;
  choice.num_experts = c_.num_experts;
  choice.num_chosen = c_.num_experts_per_token;
  choice.normalise = c_.norm_topk_prob;
  choice.scaling = c_.routed_scaling_factor;
  choice.experts = w_.expert_ids;
  choice.weights = w_.expert_weights;
  ops_.Choose(choice, num_tokens());
  ops_.Finish();
  if (router_tap_) TapRouter(moe, layer);
  GroupByExpert(c_.num_experts);
  RoutedExperts(moe);
  const bool has_shared = c_.num_shared_experts > 0;
  ops_.Mix({w_.expert_rows, w_.slots, w_.expert_weights, c_.num_experts_per_token,
            has_shared ? w_.out : nullptr},
           num_tokens(), c_.hidden_size, w_.x);
}

void ForwardPass::TapRouter(const MoeWeights& moe, int64_t layer) const {
  std::vector<float> gaps, scores(size_t(c_.num_experts));
  for (int64_t t = 0; t < num_tokens(); ++t) {
    const float* logits = w_.router_logits + t * c_.num_experts;
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      scores[size_t(e)] = Sigmoid(logits[e]) + moe.router_bias[e];
    }
    std::sort(scores.begin(), scores.end(), std::greater<float>());
    const size_t chosen = size_t(c_.num_experts_per_token);
    gaps.push_back(chosen < scores.size() ? scores[chosen - 1] - scores[chosen] : 1.0f);
  }
  router_tap_(layer, step_.positions[0], num_tokens(), gaps.data());
}

// Gives every (token, rank) a row so that an expert's rows lie together, in order of tokens.
void ForwardPass::GroupByExpert(int64_t num_experts) {
  const int64_t k = c_.num_experts_per_token, count = num_tokens() * k;
  expert_begin_.assign(size_t(num_experts) + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++expert_begin_[size_t(w_.expert_ids[i]) + 1];
  for (size_t e = 0; e < size_t(num_experts); ++e) expert_begin_[e + 1] += expert_begin_[e];
  std::vector<int32_t> next(expert_begin_.begin(), expert_begin_.end() - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t slot = next[size_t(w_.expert_ids[i])]++;
    w_.slots[i] = slot;
    w_.slot_tokens[slot] = int32_t(i / k);
  }
}

// Each chosen expert over its tokens, and the shared expert over all, side by side.
void ForwardPass::RoutedExperts(const MoeWeights& moe) {
  const bool has_shared = c_.num_shared_experts > 0;
  const int64_t width = c_.moe_intermediate_size;
  std::vector<SwiGluSlice> in;
  std::vector<LinearSlice> out;
  if (has_shared) {
    in.push_back({Matrix(moe.shared.gate, w_.normed_planes, w_.shared_hidden), moe.shared.up});
    out.push_back(Matrix(moe.shared.down, w_.shared_planes, w_.out));
  }
  for (int64_t e = 0; e < c_.num_experts; ++e) {
    const int64_t first = expert_begin_[size_t(e)];
    const int64_t count = expert_begin_[size_t(e) + 1] - first;
    if (count == 0) continue;
    const ExpertViews expert = moe.expert(e);
    LinearSlice gate = Matrix(expert.gate, w_.normed_planes, w_.hidden + first * width);
    gate.x_rows = w_.slot_tokens + first;
    gate.num_tokens = count;
    in.push_back({gate, expert.up});
    LinearSlice down =
        Matrix(expert.down, w_.expert_planes, w_.expert_rows + first * c_.hidden_size);
    down.x_first = first;
    down.num_tokens = count;
    out.push_back(down);
  }
  ops_.SwiGlu(in);
  ops_.Quantise(w_.hidden, num_tokens() * c_.num_experts_per_token, w_.expert_planes,
                {1, w_.slot_tokens});
  if (has_shared) ops_.Quantise(w_.shared_hidden, num_tokens(), w_.shared_planes);
  ops_.Linear(out);
}

}  // namespace hillstar
