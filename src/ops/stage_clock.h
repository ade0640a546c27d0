// How long each stage of the steps takes where operations compute at once: a clock is read whenever
// another stage is entered. One thread.
#pragma once

#include <array>
#include <chrono>
#include <span>

#include "hillstar/engine_activity.h"

namespace hillstar {

class StageClock {
 public:
  void Enter(Stage stage) {
    const auto now = Clock::now();
    seconds_[size_t(stage_)] += std::chrono::duration<double>(now - since_).count();
    stage_ = stage;
    since_ = now;
  }
  // By stage.
  std::span<const double> seconds() const { return std::span(seconds_).first(kNumStages); }

 private:
  using Clock = std::chrono::steady_clock;
  std::array<double, kNumStages + 1> seconds_{};
  Stage stage_ = Stage::kNone;
  Clock::time_point since_ = Clock::now();
};

}  // namespace hillstar
