// Times of a step's kernels, each within the step: the step is captured with an event before every
// kernel and replayed some times. Kernels then do not overlap, so they add up to somewhat more than
// the step. One thread.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>
#include <vector>

#include "device/cuda/launch.cuh"
#include "ops/ops.h"

namespace hillstar::cuda {

class StepProfile : private LaunchObserver {
 public:
  explicit StepProfile(cudaStream_t stream) : stream_(stream) {}
  ~StepProfile() override;
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  // Of what is launched from here on.
  void EnterLayer(int64_t layer) { layer_ = layer; }
  void EnterStage(Stage stage) { stage_ = stage; }
  // Captures and replays; adds the median time of each kernel to times().
  void Run(const std::function<void()>& launch);
  const std::vector<KernelTime>& times() const { return times_; }

 private:
  void BeforeLaunch(const char* name, const LaunchShape& shape, cudaStream_t stream) override;
  void RecordEvent();

  cudaStream_t stream_;
  int64_t layer_ = 0;
  Stage stage_ = Stage::kOther;
  std::vector<cudaEvent_t> events_;
  std::vector<KernelTime> times_;
};

}  // namespace hillstar::cuda
