#include "ops/cuda_profile.h"

#include <algorithm>

#include "ops/cuda_graphs.h"

namespace hillstar::cuda {
namespace {

constexpr size_t kReplays = 5;

// Tells an observer of this thread's launches while it lives.
class Observing {
 public:
  explicit Observing(LaunchObserver& observer) { CurrentObserver() = &observer; }
  ~Observing() { CurrentObserver() = nullptr; }
};

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
  times_.push_back({name, layer_, 0, shape.bytes, shape.products, stage_});
}

void StepProfile::Run(const std::function<void()>& launch) {
  const size_t first = times_.size();
  const cudaGraphExec_t executable = CaptureGraph(stream_, [&] {
    const Observing observing(*this);
    launch();
    RecordEvent();
  });
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
