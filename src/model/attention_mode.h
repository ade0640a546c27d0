// Which keys a token attends to. docs/numerics.md, "Attention": all give the same bits where
// everything is selected.
#pragma once

namespace hillstar {

struct EngineOptions;
struct ModelConfig;

enum class AttentionMode {
  kAuto,      // what the indexer selects; everything where there is none, without a list
  kDense,     // everything, without a list
  kSparse,    // what the indexer selects, by a list also where that is everything
  kFullList,  // everything, by a list
};

// True if the indexer decides.
constexpr bool Selects(AttentionMode mode) {
  return mode == AttentionMode::kAuto || mode == AttentionMode::kSparse;
}

// The mode that EngineOptions::attention names. Errors: kUsage for another name, kUnsupported for
// sparse where the model has no indexer.
AttentionMode ParseAttention(const EngineOptions& options, const ModelConfig& config);

}  // namespace hillstar
