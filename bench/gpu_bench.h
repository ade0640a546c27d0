// What the measurements of kernels on a GPU share: memory, a context, and the time of launches.
#pragma once

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "hillstar/kernel_time.h"
#include "ops/cuda_kernels.h"
#include "ops/cuda_profile.h"

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

// Random bytes, as planes have them.
inline uint8_t* RandomBytes(size_t count) {
  std::mt19937 random(1);
  std::vector<uint32_t> words(std::min<size_t>(count / 4 + 1, size_t{1} << 22));
  for (uint32_t& w : words) w = random() & 0x3f3f3f3fu;
  auto* p = Alloc<uint8_t>(count + 4 * words.size());
  for (size_t at = 0; at < count; at += 4 * words.size()) {
    Require(cudaMemcpy(p + at, words.data(), 4 * words.size(), cudaMemcpyHostToDevice));
  }
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

  // Seconds of one run(i), i counting up: of `repeats` in a graph, so that small kernels do not
  // wait for the host, after a first launch of it.
  double SecondsOf(const std::function<void(int)>& run, int repeats = kRepeats) const {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    Require(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < repeats; ++i) run(i);
    Require(cudaStreamEndCapture(context_.stream, &graph));
    Require(cudaGraphInstantiate(&executable, graph, 0));
    Require(cudaGraphLaunch(executable, context_.stream));
    const double seconds =
        SecondsOnStream([&] { Require(cudaGraphLaunch(executable, context_.stream)); });
    Require(cudaGraphExecDestroy(executable));
    Require(cudaGraphDestroy(graph));
    return seconds / repeats;
  }
  // Each kernel of run(i), in its order: the mean over `repeats` of them, which do not overlap
  // here.
  std::vector<KernelTime> KernelTimes(const std::function<void(int)>& run, int repeats) const {
    StepProfile profile(context_.stream);
    profile.Run([&] {
      for (int i = 0; i < repeats; ++i) run(i);
    });
    const size_t num_kernels = profile.times().size() / size_t(repeats);
    std::vector<KernelTime> means(profile.times().begin(),
                                  profile.times().begin() + int64_t(num_kernels));
    for (size_t k = 0; k < num_kernels; ++k) {
      double sum = 0;
      for (size_t i = k; i < profile.times().size(); i += num_kernels) {
        sum += profile.times()[i].microseconds;
      }
      means[k].microseconds = sum / repeats;
    }
    return means;
  }

  // What moving so many bytes and multiplying so often takes at least, one beside the other, at the
  // peaks that `hillstar bench` measures.
  double BoundSeconds(double bytes, double products) {
    if (peaks_.read_bytes == 0) MeasurePeaks();
    return std::max(bytes / peaks_.read_bytes, products / peaks_.products);
  }

 private:
  double SecondsOnStream(const std::function<void()>& launch) const {
    cudaEvent_t start, end;
    Require(cudaEventCreateWithFlags(&start, cudaEventDefault));
    Require(cudaEventCreateWithFlags(&end, cudaEventDefault));
    Require(cudaEventRecord(start, context_.stream));
    launch();
    Require(cudaEventRecord(end, context_.stream));
    Require(cudaEventSynchronize(end));
    float ms = 0;
    Require(cudaEventElapsedTime(&ms, start, end));
    Require(cudaEventDestroy(start));
    Require(cudaEventDestroy(end));
    return double(ms) * 1e-3;
  }
  void MeasurePeaks() {
    constexpr uint64_t kBytes = uint64_t{4} << 30;
    auto* bytes = Alloc<uint8_t>(kBytes);
    auto* sum = Alloc<int32_t>(1);
    Require(cudaDeviceSynchronize());
    for (int i = 0; i < 5; ++i) {
      const double reading = SecondsOnStream([&] { ReadAll(context_, bytes, kBytes, sum); });
      peaks_.read_bytes = std::max(peaks_.read_bytes, double(kBytes) / reading);
      double products = 0;
      const double multiplying = SecondsOnStream([&] { products = MultiplyAll(context_, sum); });
      peaks_.products = std::max(peaks_.products, products / multiplying);
    }
    Require(cudaFree(bytes));
    Require(cudaFree(sum));
    fmt::print("reads {:.0f} GB/s, multiplies {:.0f} trillion bytes a second\n",
               peaks_.read_bytes * 1e-9, peaks_.products * 1e-12);
  }

  static constexpr int kRepeats = 24;
  static constexpr size_t kMostTokens = size_t{1} << 16;

  KernelContext context_;
  std::string name_;
  DevicePeaks peaks_;
};

}  // namespace hillstar::cuda
