#include "ops/cuda_profile.h"

#include <algorithm>

namespace hillstar::cuda {
namespace {

constexpr size_t kReplays = 5;

void Free(std::vector<cudaEvent_t>& events) {
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  events.clear();
}

}  // namespace

StepProfile::~StepProfile() { Free(events_); }

void StepProfile::RecordEvent() {
  Check(cudaEventCreateWithFlags(&events_.emplace_back(), cudaEventDefault), "making an event");
  Check(cudaEventRecordWithFlags(events_.back(), stream_, cudaEventRecordExternal),
        "recording an event");
}

void StepProfile::BeforeLaunch(const char* name, const LaunchShape& shape, cudaStream_t) {
  RecordEvent();
  times_.push_back({name, layer_, 0, shape.bytes, shape.products});
}

void StepProfile::Run(const std::function<void()>& launch) {
  const size_t first = times_.size();
  cudaGraph_t graph = nullptr;
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a step");
  CurrentObserver() = this;
  launch();
  CurrentObserver() = nullptr;
  RecordEvent();
  Check(cudaStreamEndCapture(stream_, &graph), "capturing a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  Check(error, "preparing a captured step");
  std::vector<std::vector<float>> all(times_.size() - first);
  for (size_t replay = 0; replay < kReplays; ++replay) {
    Check(cudaGraphLaunch(executable, stream_), "launching a step");
    Check(cudaStreamSynchronize(stream_), "waiting for a step");
    for (size_t i = 0; i < all.size(); ++i) {
      float ms = 0;
      Check(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "reading an event");
      all[i].push_back(1e3f * ms);
    }
  }
  cudaGraphExecDestroy(executable);
  Free(events_);
  for (size_t i = 0; i < all.size(); ++i) {
    std::ranges::nth_element(all[i], all[i].begin() + kReplays / 2);
    times_[first + i].microseconds = double(all[i][kReplays / 2]);
  }
}

}  // namespace hillstar::cuda
