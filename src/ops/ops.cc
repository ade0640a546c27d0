#include "ops/ops.h"

#include "core/check.h"

namespace hillstar {

// What only a backend that runs ahead has, and what only one that computes at once has.
StepTokens Ops::NextStep(const StepInput&) {
  CHECK(!is_host());
  return {};
}
void Ops::KeepRows(void*, int64_t, std::span<const int32_t>) { CHECK(is_host()); }

void Ops::Route(const RouterChoice& first_token, const StepTokens& step, const ExpertLayer& layer,
                const ExpertGroups& groups) {
  Choose(first_token, step.num_tokens);
  GroupByExpert(first_token.experts, step, layer, groups);
}

void Ops::QuantiseExperts(const ExpertGroups& groups, int64_t num_tokens, int64_t num_chosen,
                          const float* hidden, const ActivationPlanes& hidden_planes,
                          const float* shared, const ActivationPlanes& shared_planes) {
  Quantise(hidden, num_tokens * num_chosen, hidden_planes, {1, groups.slot_tokens});
  Quantise(shared, num_tokens, shared_planes);
}

void Ops::FinishProjections(const StepTokens& step, const Projections& p) {
  NormPlanes(p.q_a, {}, p.q_a_norm, step.num_tokens, p.q_lora, nullptr, p.q_a_planes);
  AppendLatents(step, p.kv, p.kv_norm.weight, p.kv_norm.eps, p.row, p.latents);
  if (p.index_k) AppendIndexKeys(step, p.index_k, p.index_norm, p.index, p.index_keys);
}

}  // namespace hillstar
