// Steps that were captured, by their shape: replayed, a step costs one launch. One thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

namespace hillstar::cuda {

// What `launch` puts on the stream, captured and ready to be launched; to be destroyed by the
// caller. Errors: kDevice; what `launch` throws.
cudaGraphExec_t CaptureGraph(cudaStream_t stream, const std::function<void()>& launch);

class StepGraphs {
 public:
  explicit StepGraphs(cudaStream_t stream) : stream_(stream) {}
  ~StepGraphs() { Clear(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // All that launches depend on, besides what lies in the GPU's memory.
  struct Shape {
    int64_t num_tokens = 0;
    int64_t max_positions = 0;
    int part = 0;

    auto operator<=>(const Shape&) const = default;
  };
  // Launches what `launch` launched when this shape first came, or now for the first time.
  // Errors: kDevice; what `launch` throws.
  void Run(const Shape& shape, const std::function<void()>& launch);
  void Clear();

 private:
  struct Captured {
    cudaGraphExec_t executable = nullptr;
    uint64_t last_use = 0;
  };
  void DropOldest();

  cudaStream_t stream_;
  std::map<Shape, Captured> graphs_;
  uint64_t num_uses_ = 0;
};

}  // namespace hillstar::cuda
