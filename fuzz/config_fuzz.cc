// Any text as config.json, and after a NUL byte as generation_config.json: either an Error, or a
// configuration inside its limits.
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "hillstar/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = text.find('\0');
  const std::string_view generation =
      split == std::string_view::npos ? std::string_view() : text.substr(split + 1);
  try {
    const hillstar::ModelConfig config =
        hillstar::ParseModelConfig(text.substr(0, split), generation);
    CHECK(config.num_layers >= 1 && config.num_dense_layers <= config.num_layers);
    CHECK(config.layer_has_indexer.size() == size_t(config.num_layers));
    CHECK(config.num_experts_per_token <= config.num_experts);
    CHECK(config.qk_rope_dim % 2 == 0);
    CHECK(config.rms_norm_eps > 0 && config.routed_scaling_factor > 0 && config.rope_theta > 0);
    if (config.index_num_heads > 0) {
      CHECK(config.layer_has_indexer[0] && config.index_topk > 0);
      CHECK(config.qk_rope_dim <= config.index_head_dim);
    }
    for (const int32_t id : config.eos_ids) CHECK(id >= 0 && id < config.vocab_size);
  } catch (const hillstar::Error&) {
  }
  return 0;
}
