// What a model will take of memory, computed from headers alone.
#pragma once

#include "hillstar/engine.h"
#include "model/weights.h"

namespace hillstar {

// The longest sequence that is served: the option, or the model's limit, at most 16,384.
// Errors: kUsage if the option is beyond the model's limit.
int64_t ResolveContext(const EngineOptions& options, const ModelConfig& config);

MemoryPlan PlanMemory(const ModelSource& source, int64_t context_tokens, int64_t prefill_chunk);

// Opens the model's headers only. Errors: as ModelSource::Open.
MemoryPlan PredictMemory(const EngineOptions& options);

// Bytes of weights that a decoded token reads: all dense matrices but the embedding, and the chosen
// experts.
uint64_t WeightBytesPerToken(const ModelSource& source);

}  // namespace hillstar
