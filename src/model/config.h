// The hyper-parameters of a glm_moe_dsa model, checked field against field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

// Names follow Hugging Face's config.json where it has one.
struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;         // num_hidden_layers, without the MTP layer
  int64_t num_dense_layers = 0;   // first_k_dense_replace
  int64_t intermediate_size = 0;  // dense MLP
  int64_t num_heads = 0;
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;  // the latent
  int64_t qk_nope_dim = 0;
  int64_t qk_rope_dim = 0;
  int64_t v_dim = 0;
  int64_t num_experts = 0;  // routed
  int64_t num_experts_per_token = 0;
  int64_t num_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;
  float routed_scaling_factor = 1.0f;
  double rope_theta = 10000.0;
  float rms_norm_eps = 1e-5f;
  float lora_norm_eps = 1e-6f;   // q_a and kv_a norms: transformers' class default
  float index_norm_eps = 1e-6f;  // LayerNorm of the indexer's key
  int64_t max_positions = 0;
  int64_t index_num_heads = 0;  // 0: the model has no indexer, attention is dense everywhere
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  std::vector<bool> layer_has_indexer;  // one a layer; false: reuses the selection below it
  int64_t num_mtp_layers = 0;           // 0 or 1; the MTP layer is layer num_layers
  std::vector<int32_t> eos_ids;         // from config.json and generation_config.json, united

  bool is_dense_layer(int64_t layer) const { return layer < num_dense_layers; }
  int64_t qk_dim() const { return qk_nope_dim + qk_rope_dim; }
  int64_t shared_intermediate() const { return num_shared_experts * moe_intermediate_size; }
};

// Parses and range-checks config.json (and generation_config.json where not empty).
// Errors: kBadFile for malformed or contradictory values, kUnsupported (naming key and value) for
// well-formed models that this program does not serve.
ModelConfig ParseModelConfig(std::string_view config_json, std::string_view generation_json);

}  // namespace hillstar
