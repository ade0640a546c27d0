// What an engine's sequences share. Used by one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "engine/memory_plan.h"
#include "kv/kv_cache.h"
#include "model/forward.h"
#include "ops/cpu_ops.h"

namespace hillstar {

struct EngineState {
  explicit EngineState(const EngineOptions& o) : options(o), budget(o.memory_limit) {}

  EngineOptions options;
  MemoryBudget budget;
  ModelConfig config;
  EngineSizes sizes;
  ModelWeights weights;
  std::unique_ptr<CpuOps> ops;
  std::unique_ptr<ForwardPass> forward;
  std::unique_ptr<KvCache> kv;
  std::vector<float> logits;
  ResidualTap tap;

  // Makes room for n logits; of a large request nothing stays allocated behind the next.
  float* ResizeLogits(size_t n);
};

}  // namespace hillstar
