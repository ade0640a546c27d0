// What the measurements of kernels on a GPU share: memory, a context, and the time of launches.
#pragma once

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ops/cuda_kernels.h"

namespace hillstar::cuda {

// Ends the program where CUDA has an error.
inline void Require(cudaError_t error) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "{}\n", cudaGetErrorString(error));
  std::exit(1);
}

// Memory that stays until it is freed or the program ends, `byte` everywhere.
template <typename T>
T* Alloc(size_t count, int byte = 0) {
  T* p = nullptr;
  Require(cudaMalloc(&p, count * sizeof(T)));
  Require(cudaMemset(p, byte, count * sizeof(T)));
  return p;
}
template <typename T>
T* Copy(const std::vector<T>& values) {
  T* p = Alloc<T>(values.size());
  Require(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return p;
}

// The first GPU.
class GpuBench {
 public:
  GpuBench() {
    cudaDeviceProp properties;
    Require(cudaGetDeviceProperties(&properties, 0));
    Require(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking));
    name_ = properties.name;
    context_.num_multiprocessors = properties.multiProcessorCount;
    context_.shared_bytes = int(properties.sharedMemPerBlockOptin);
    context_.bad = {Alloc<int32_t>(kMostTokens), 1};
  }

  const std::string& name() const { return name_; }
  const KernelContext& context() const { return context_; }
  void LimitShared(int bytes) { context_.shared_bytes = std::min(context_.shared_bytes, bytes); }

  // Seconds of one run(i), i counting up: of several in a graph, so that small kernels do not wait
  // for the host, after a first launch of it.
  double SecondsOf(const std::function<void(int)>& run) const {
    cudaEvent_t start, end;
    Require(cudaEventCreateWithFlags(&start, cudaEventDefault));
    Require(cudaEventCreateWithFlags(&end, cudaEventDefault));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    Require(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kRepeats; ++i) run(i);
    Require(cudaStreamEndCapture(context_.stream, &graph));
    Require(cudaGraphInstantiate(&executable, graph, 0));
    Require(cudaGraphLaunch(executable, context_.stream));
    Require(cudaEventRecord(start, context_.stream));
    Require(cudaGraphLaunch(executable, context_.stream));
    Require(cudaEventRecord(end, context_.stream));
    Require(cudaEventSynchronize(end));
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, start, end));
    Require(cudaGraphExecDestroy(executable));
    Require(cudaGraphDestroy(graph));
    Require(cudaEventDestroy(start));
    Require(cudaEventDestroy(end));
    return double(ms) * 1e-3 / kRepeats;
  }

 private:
  static constexpr int kRepeats = 24;
  static constexpr size_t kMostTokens = size_t{1} << 16;

  KernelContext context_;
  std::string name_;
};

}  // namespace hillstar::cuda
