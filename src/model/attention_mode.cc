#include "model/attention_mode.h"

#include <fmt/format.h>

#include "hillstar/engine.h"
#include "model/config.h"

namespace hillstar {

AttentionMode ParseAttention(const EngineOptions& options, const ModelConfig& config) {
  const std::string& name = options.attention;
  if (name == "auto") return AttentionMode::kAuto;
  if (name == "dense") return AttentionMode::kDense;
  if (name == "full-list") return AttentionMode::kFullList;
  if (name != "sparse") {
    throw Error(ErrorCode::kUsage,
                fmt::format("attention \"{}\" is none of auto, dense, sparse, full-list", name));
  }
  if (config.index_num_heads > 0) return AttentionMode::kSparse;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} has no indexer, so there is no sparse attention (--attention)",
                          options.model));
}

}  // namespace hillstar
