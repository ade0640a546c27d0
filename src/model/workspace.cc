#include "model/workspace.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "device/host_memory.h"

namespace hillstar {
namespace {

// Counts and gives nothing.
class CountingMemory : public WorkspaceMemory {
 public:
  uint8_t* Alloc(size_t num_bytes) override {
    sizes_.push_back(num_bytes);
    return nullptr;
  }
  void Write(void*, const void*, size_t) override {}
  const std::vector<uint64_t>& sizes() const { return sizes_; }

 private:
  std::vector<uint64_t> sizes_;
};

// Of each buffer.
std::vector<uint64_t> BufferSizes(const ModelConfig& config, int64_t max_tokens,
                                  int64_t context_tokens, AttentionMode mode, bool is_host) {
  CountingMemory memory;
  Workspace(config, memory, max_tokens, context_tokens, mode, is_host);
  return memory.sizes();
}

}  // namespace

uint64_t WorkspaceBytes(const ModelConfig& config, int64_t max_tokens, int64_t context_tokens,
                        AttentionMode mode, bool is_host) {
  const auto sizes = BufferSizes(config, max_tokens, context_tokens, mode, is_host);
  return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
}

uint64_t ResidentWorkspaceBytes(const ModelConfig& config, int64_t max_tokens, int64_t num_tokens,
                                int64_t context_tokens, AttentionMode mode) {
  const auto whole = BufferSizes(config, max_tokens, context_tokens, mode, true);
  const auto used = BufferSizes(config, num_tokens, context_tokens, mode, true);
  uint64_t sum = 0;
  for (size_t i = 0; i < whole.size(); ++i) sum += ResidentBytes(whole[i], used[i]);
  return sum;
}

Workspace::Workspace(const ModelConfig& c, WorkspaceMemory& memory, int64_t max_tokens,
                     int64_t context_tokens, AttentionMode mode, bool is_host) {
  const int64_t t = max_tokens, th = t * c.num_heads, d = c.hidden_size, latent = c.kv_lora_rank;
  x = memory.AllocFloats(t * d);
  normed = memory.AllocFloats(t * d);
  normed_planes = memory.AllocPlanes(t, d);
  out = memory.AllocFloats(t * d);

  q_a = memory.AllocFloats(t * c.q_lora_rank);
  q_a_planes = memory.AllocPlanes(t, c.q_lora_rank);
  kv = memory.AllocFloats(t * (latent + c.qk_rope_dim));
  q = memory.AllocFloats(th * c.qk_dim());
  nope_planes = memory.AllocPlanes(th, c.qk_nope_dim);
  latents = memory.AllocFloats(th * latent);
  latent_planes = memory.AllocPlanes(th, latent);
  const int64_t padded = KvRowLayout{latent, c.qk_rope_dim}.padded();
  queries = {{memory.AllocBytes(th * padded), memory.AllocBytes(th * padded), padded},
             memory.AllocFloats(th),
             memory.AllocFloats(th)};
  values = memory.AllocFloats(th * c.v_dim);
  value_planes = memory.AllocPlanes(t, c.num_heads * c.v_dim);

  const bool selects = c.index_num_heads > 0 && Selects(mode);
  scores_keys = selects && context_tokens > c.index_topk;
  if (mode == AttentionMode::kFullList) {
    selection.max_keys = context_tokens;
  } else if (scores_keys || (selects && mode == AttentionMode::kSparse)) {
    selection.max_keys = std::min(c.index_topk, context_tokens);
  }
  selection.counts = memory.AllocInts(t);
  if (selection.max_keys > 0) selection.lists = memory.AllocInts(t * selection.max_keys);
  if (c.index_num_heads > 0) index_k = memory.AllocFloats(t * c.index_head_dim);
  if (scores_keys) {
    const int64_t rows = t * c.index_num_heads, dim = c.index_head_dim;
    index_q = memory.AllocFloats(rows * dim);
    index_weights = memory.AllocFloats(rows);
    index_queries = {{memory.AllocBytes(rows * dim), memory.AllocBytes(rows * dim), dim},
                     memory.AllocFloats(rows)};
  }

  const int64_t k = c.num_experts_per_token, expert = c.moe_intermediate_size;
  hidden = memory.AllocFloats(std::max(t * c.intermediate_size, t * k * expert));
  dense_planes = memory.AllocPlanes(t, c.intermediate_size);
  shared_planes = memory.AllocPlanes(t, c.shared_intermediate());
  expert_planes = memory.AllocPlanes(t * k, std::max<int64_t>(1, expert));
  router_logits = memory.AllocFloats(t * c.num_experts);
  expert_ids = memory.AllocInts(t * k);
  expert_weights = memory.AllocFloats(t * k);
  groups = {memory.AllocInts(c.num_experts + 1), memory.AllocInts(t * k), memory.AllocInts(t * k)};
  shared_hidden = memory.AllocFloats(t * c.shared_intermediate());
  expert_rows = memory.AllocFloats(t * k * d);
  num_moe_layers = std::max<int64_t>(0, c.num_layers - c.num_dense_layers) + c.num_mtp_layers;
  const int64_t num_uses = num_moe_layers * c.num_experts;
  expert_uses = reinterpret_cast<uint64_t*>(memory.Alloc(size_t(num_uses) * sizeof(uint64_t)));

  if (!is_host) logits = memory.AllocFloats(std::min(t, kHeadRows) * c.vocab_size);
  if (c.num_mtp_layers > 0) {
    if (!is_host) mtp_hidden = memory.AllocFloats(t * d);
    mtp_input = memory.AllocFloats(t * 2 * d);
    mtp_planes = memory.AllocPlanes(t, 2 * d);
  }
}

}  // namespace hillstar
