// What an engine's sequences share. Used by one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "engine/memory_plan.h"
#include "kv/kv_cache.h"
#include "model/forward.h"
#include "ops/backend.h"

namespace hillstar {

struct EngineState {
  explicit EngineState(const EngineOptions& o) : options(o) {}

  EngineOptions options;
  ModelConfig config;
  EngineSizes sizes;
  std::unique_ptr<Backend> backend;  // outlives what lies in its memory
  ModelWeights weights;
  std::unique_ptr<ForwardPass> forward;
  std::unique_ptr<KvCache> kv;
  std::vector<float> logits;
  ResidualTap tap;
  bool tells_tokens = false;  // while Decode's on_next runs

  DeviceMemory& memory() { return backend->memory(); }
  Ops& ops() { return backend->ops(); }

  // Makes room for n logits; of a large request nothing stays allocated behind the next.
  float* ResizeLogits(size_t n);
};

}  // namespace hillstar
