#include "ops/cuda_graphs.h"

#include <algorithm>

#include "device/cuda/launch.cuh"

namespace hillstar::cuda {
namespace {

// A graph of a large model's step is a few MB.
constexpr size_t kMaxGraphs = 64;

}  // namespace

void StepGraphs::Run(const Shape& shape, const std::function<void()>& launch) {
  auto found = graphs_.find(shape);
  if (found == graphs_.end()) {
    if (graphs_.size() == kMaxGraphs) DropOldest();
    found = graphs_.emplace(shape, Capture(launch)).first;
  }
  found->second.last_use = ++num_uses_;
  Check(cudaGraphLaunch(found->second.executable, stream_), "launching a step");
}

StepGraphs::Captured StepGraphs::Capture(const std::function<void()>& launch) {
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a step");
  cudaGraph_t graph = nullptr;
  try {
    launch();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  Check(cudaStreamEndCapture(stream_, &graph), "capturing a step");
  Captured captured;
  const cudaError_t error = cudaGraphInstantiate(&captured.executable, graph, 0);
  cudaGraphDestroy(graph);
  Check(error, "preparing a captured step");
  return captured;
}

void StepGraphs::DropOldest() {
  const auto oldest = std::ranges::min_element(
      graphs_, {}, [](const auto& entry) { return entry.second.last_use; });
  cudaStreamSynchronize(stream_);
  cudaGraphExecDestroy(oldest->second.executable);
  graphs_.erase(oldest);
}

void StepGraphs::Clear() {
  for (const auto& [shape, captured] : graphs_) cudaGraphExecDestroy(captured.executable);
  graphs_.clear();
}

}  // namespace hillstar::cuda
