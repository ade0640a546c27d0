#include "ops/cuda_graphs.h"

#include <algorithm>

#include "device/cuda/launch.cuh"

namespace hillstar::cuda {
namespace {

// A graph of a large model's step is a few MB.
constexpr size_t kMaxGraphs = 64;

}  // namespace

cudaGraphExec_t CaptureGraph(cudaStream_t stream, const std::function<void()>& launch) {
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing a step");
  cudaGraph_t graph = nullptr;
  try {
    launch();
  } catch (...) {
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  Check(cudaStreamEndCapture(stream, &graph), "capturing a step");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  Check(error, "preparing a captured step");
  return executable;
}

void StepGraphs::Run(const Shape& shape, const std::function<void()>& launch) {
  auto found = graphs_.find(shape);
  if (found == graphs_.end()) {
    if (graphs_.size() == kMaxGraphs) DropOldest();
    found = graphs_.emplace(shape, Captured{CaptureGraph(stream_, launch), 0}).first;
  }
  found->second.last_use = ++num_uses_;
  Check(cudaGraphLaunch(found->second.executable, stream_), "launching a step");
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
