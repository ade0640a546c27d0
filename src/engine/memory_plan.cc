#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/cpu_topology.h"
#include "kv/sequence_kv.h"
#include "model/workspace.h"
#include "ops/cpu_ops.h"

namespace hillstar {
namespace {

constexpr int64_t kDefaultContext = 16384;
// Program text, libraries and heap at rest, measured with the built-in model.
constexpr uint64_t kProgramBytes = uint64_t{12} << 20;
// A tokenizer's tables for each byte of its JSON, measured likewise.
constexpr uint64_t kTokenizerFactor = 12;

KvShape ShapeOf(const ModelSource& source) {
  const ModelConfig& c = source.config();
  KvShape shape;
  shape.row = {c.kv_lora_rank, c.qk_rope_dim};
  shape.index = {c.index_head_dim};
  shape.num_layers = c.num_layers + c.num_mtp_layers;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const std::string name = fmt::format("layers.{}.index_q", l);
    const std::vector<TensorSpec>& specs = source.table().dense;
    shape.has_index_keys.push_back(std::any_of(
        specs.begin(), specs.end(), [&](const TensorSpec& s) { return s.name == name; }));
  }
  return shape;
}

}  // namespace

int64_t ResolveContext(const EngineOptions& options, const ModelConfig& config) {
  if (options.context_tokens == 0) return std::min(config.max_positions, kDefaultContext);
  if (options.context_tokens < 1 || options.context_tokens > config.max_positions) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("a context of {} tokens is outside 1..{}, the model's limit (--context)",
                    options.context_tokens, config.max_positions));
  }
  return options.context_tokens;
}

Ops::Limits OpsLimits(const ModelConfig& c, int64_t context_tokens) {
  Ops::Limits limits;
  limits.max_row =
      std::max({2 * c.hidden_size, c.intermediate_size, c.moe_intermediate_size,
                c.shared_intermediate(), c.q_lora_rank, c.num_heads * c.v_dim, c.num_experts,
                c.kv_lora_rank + c.qk_rope_dim, c.qk_dim(), c.index_head_dim});
  limits.max_context = context_tokens;
  limits.num_heads = c.num_heads;
  limits.row = {c.kv_lora_rank, c.qk_rope_dim};
  return limits;
}

MemoryPlan PlanMemory(const ModelSource& source, int64_t context_tokens, int64_t prefill_chunk,
                      int num_threads) {
  const ModelConfig& c = source.config();
  const KvShape shape = ShapeOf(source);
  const uint64_t pages = uint64_t((context_tokens + kPageTokens - 1) / kPageTokens);
  MemoryPlan plan;
  plan.dense_weights = source.table().dense_bytes();
  plan.experts = source.table().expert_bytes();
  plan.latent_kv = pages * uint64_t(shape.latent_page_bytes());
  plan.index_keys = pages * uint64_t(shape.index_page_bytes());
  plan.workspace = WorkspaceBytes(c, std::min(prefill_chunk, context_tokens)) +
                   CpuOps::PreparedBytes(OpsLimits(c, context_tokens), num_threads) +
                   uint64_t(c.vocab_size) * sizeof(float);
  plan.program = kProgramBytes + kTokenizerFactor * source.files().tokenizer.size();
  return plan;
}

MemoryPlan PredictMemory(const EngineOptions& options) {
  const auto source = ModelSource::Open(options.model, options.weights, options.load_mtp);
  const int threads = options.num_threads > 0 ? options.num_threads : NumUsableCores();
  return PlanMemory(*source, ResolveContext(options, source->config()), options.prefill_chunk,
                    threads);
}

}  // namespace hillstar
