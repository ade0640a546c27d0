#include "ops/ops.h"

#include "core/check.h"

namespace hillstar {

// What only a backend that runs ahead has.
StepTokens Ops::NextStep(const StepInput&) {
  CHECK(!is_host());
  return {};
}

void Ops::Route(const FloatLinearSlice& router, const RouterChoice& first_token,
                const StepTokens& step, const ExpertLayer& layer, const ExpertGroups& groups) {
  FloatLinear(router);
  Choose(first_token, step.num_tokens);
  GroupByExpert(first_token.experts, step, layer, groups);
}

void Ops::LinearOfFloats(const float* x, const LinearSlice& layer) {
  Quantise(x, layer.num_tokens, layer.x);
  Linear({&layer, 1});
}

void Ops::LinearByHeadOfFloats(const HeadMatrices& heads, const HeadRows& x,
                               const ActivationPlanes& planes, int64_t num_tokens, float* y) {
  QuantiseHeads(x, num_tokens, heads.num_heads, planes);
  LinearByHead(heads, planes, num_tokens, y);
}

void Ops::ExpertsDownOfFloats(const ExpertLayer& layer, const ExpertGroups& groups,
                              const HiddenRows& hidden, const HiddenRows& shared,
                              int64_t num_tokens, float* rows, float* out) {
  Quantise(hidden.floats, num_tokens * layer.num_chosen, hidden.planes, {1, groups.slot_tokens});
  Quantise(shared.floats, num_tokens, shared.planes);
  ExpertsDown(layer, groups, hidden.planes, shared.planes, num_tokens, rows, out);
}

void Ops::FinishProjections(const StepTokens& step, const Projections& p) {
  NormPlanes(p.q_a, {}, p.q_a_norm, step.num_tokens, p.q_lora, nullptr, p.q_a_planes);
  AppendLatents(step, p.kv, p.kv_norm.weight, p.kv_norm.eps, p.row, p.latents);
  if (p.index_k) AppendIndexKeys(step, p.index_k, p.index_norm, p.index, p.index_keys);
}

}  // namespace hillstar
