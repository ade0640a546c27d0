// What a model will take of memory, computed from headers alone.
#pragma once

#include "hillstar/engine.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace hillstar {

// The longest sequence that is served: the option, or the model's limit, at most 16,384.
// Errors: kUsage if the option is beyond the model's limit.
int64_t ResolveContext(const EngineOptions& options, const ModelConfig& config);

// What the operations of a CPU are asked for by a model.
Ops::Limits OpsLimits(const ModelConfig& config, int64_t context_tokens);

// REQUIRES context_tokens >= 1, prefill_chunk >= 1, num_threads >= 1.
MemoryPlan PlanMemory(const ModelSource& source, int64_t context_tokens, int64_t prefill_chunk,
                      int num_threads);

// Opens the model's headers only. Errors: as ModelSource::Open.
MemoryPlan PredictMemory(const EngineOptions& options);

}  // namespace hillstar
