// What one step computes in, taken once from the backend. Shapes: T tokens at most, D hidden, H
// heads, L latent, k experts a token.
#pragma once

#include "model/attention_mode.h"
#include "model/config.h"
#include "ops/ops.h"

namespace hillstar {

// Bytes that a workspace takes for steps of at most max_tokens tokens of sequences of at most
// context_tokens.
// `is_host`: Ops::is_host().
uint64_t WorkspaceBytes(const ModelConfig& config, int64_t max_tokens, int64_t context_tokens,
                        AttentionMode mode, bool is_host = true);
// Of such a workspace of a host, what is resident once steps have had at most num_tokens tokens.
uint64_t ResidentWorkspaceBytes(const ModelConfig& config, int64_t max_tokens, int64_t num_tokens,
                                int64_t context_tokens, AttentionMode mode);

// Rows whose logits are computed at once: enough to share a pass over the head's weights.
inline constexpr int64_t kHeadRows = 64;

struct Workspace {
  Workspace(const ModelConfig& config, WorkspaceMemory& memory, int64_t max_tokens,
            int64_t context_tokens, AttentionMode mode, bool is_host);

  float* x = nullptr;       // [T, D] residual stream
  float* normed = nullptr;  // [T, D]
  ActivationPlanes normed_planes;
  float* out = nullptr;  // [T, D] of attention, MLP or shared expert, before it joins x

  // Attention.
  float* q_a = nullptr;  // [T, q_lora]
  ActivationPlanes q_a_planes;
  float* kv = nullptr;             // [T, L + rope]
  float* q = nullptr;              // [T, H * (nope + rope)]
  ActivationPlanes nope_planes;    // [T * H, nope]
  float* latents = nullptr;        // [T, H, L]: queries in the latent space
  ActivationPlanes latent_planes;  // [T * H, L]
  AttentionQueries queries;
  float* values = nullptr;  // [T, H * v]
  ActivationPlanes value_planes;

  // Indexer. Its keys are stored in every mode, so that the rows serve any other; its queries exist
  // where something asks for scores: it decides, and contexts may exceed what it selects.
  bool scores_keys = false;
  float* index_k = nullptr;        // [T, dim]
  float* index_q = nullptr;        // [T, index heads * dim], if scores_keys
  float* index_weights = nullptr;  // [T, index heads], likewise
  IndexQueries index_queries;      // likewise
  Selection selection;             // without lists, and max_keys 0, where the mode makes none

  // MLP and experts. `hidden` and its planes serve the dense MLP, the shared and the routed
  // experts.
  float* hidden = nullptr;  // [max(T * widest dense, T * k * expert)]
  ActivationPlanes dense_planes, shared_planes, expert_planes;
  float* router_logits = nullptr;   // [T, experts]
  int32_t* expert_ids = nullptr;    // [T, k]
  float* expert_weights = nullptr;  // [T, k]
  ExpertGroups groups;              // slots are rows of expert_rows
  float* shared_hidden = nullptr;   // [T, shared]
  float* expert_rows = nullptr;     // [T * k, D]
  uint64_t* expert_uses = nullptr;  // [num_moe_layers, experts]: see ExpertLayer::uses
  int64_t num_moe_layers = 0;       // with the MTP layer

  float* logits = nullptr;  // [kHeadRows, vocabulary]; null where the host's memory serves

  float* mtp_hidden = nullptr;  // [T, D]; null likewise
  float* mtp_input = nullptr;   // [T, 2 D]
  ActivationPlanes mtp_planes;
};

}  // namespace hillstar
