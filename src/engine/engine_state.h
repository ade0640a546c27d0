// What an engine's sequences share. Used by one thread at a time.
#pragma once

#include <chrono>
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

  // Of EngineActivity.
  struct Work {
    double step_seconds = 0;
    uint64_t steps = 0, tokens = 0;

    void AddStep(int64_t num_tokens) {
      steps += num_tokens > 0 ? 1 : 0;
      tokens += uint64_t(num_tokens);
    }
  };
  Work work;

  DeviceMemory& memory() { return backend->memory(); }
  Ops& ops() { return backend->ops(); }

  // Makes room for n logits; of a large request nothing stays allocated behind the next.
  float* ResizeLogits(size_t n);
};

// While it lives a step is under way. One at a time.
class StepTimer {
 public:
  explicit StepTimer(EngineState& state) : state_(state) { state_.ops().EnterStage(Stage::kOther); }
  ~StepTimer() {
    state_.ops().EnterStage(Stage::kNone);
    const auto time = Clock::now() - begin_;
    state_.work.step_seconds += std::chrono::duration<double>(time).count();
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  EngineState& state_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace hillstar
