// What the tests of the GPU's kernels share: arrays on the device, between canaries, and a context.
// Linked into tests only.
#pragma once

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ops/cuda_kernels.h"
#include "ops/kernel_test.h"

namespace hillstar::cuda {

// An array on the device between canaries. Poisoned until something is written.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&bytes_, Total()), cudaSuccess);
    EXPECT_EQ(cudaMemset(bytes_, kPoisonByte, Total()), cudaSuccess);
    Finish();
  }
  template <typename Allocator>
  explicit DeviceArray(const std::vector<T, Allocator>& contents) : DeviceArray(contents.size()) {
    Upload(contents.data());
  }
  ~DeviceArray() { cudaFree(bytes_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return reinterpret_cast<T*>(bytes_ + kFence); }
  size_t size() const { return count_; }
  void Upload(const T* values) {
    EXPECT_EQ(cudaMemcpy(data(), values, count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    Finish();
  }
  // After everything that was launched; checks the canaries.
  std::vector<T> Download() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint8_t> all(Total());
    EXPECT_EQ(cudaMemcpy(all.data(), bytes_, Total(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= kFence && i < kFence + count_ * sizeof(T)) continue;
      if (all[i] == kPoisonByte) continue;
      ADD_FAILURE() << "byte " << int64_t(i) - int64_t(kFence) << " outside an array of "
                    << count_ * sizeof(T) << " bytes was written";
      break;
    }
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), all.data() + kFence, count_ * sizeof(T));
    return values;
  }

 private:
  static constexpr size_t kFence = 256;
  size_t Total() const { return count_ * sizeof(T) + 2 * kFence; }
  // The kernels' stream does not wait for what the default stream still writes.
  static void Finish() { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }

  size_t count_;
  uint8_t* bytes_ = nullptr;
};

// Skips the test where there is no GPU; the emulated device is always there.
#define HILLSTAR_NEEDS_GPU()                                                                \
  do {                                                                                      \
    int num_devices = 0;                                                                    \
    const cudaError_t error = cudaGetDeviceCount(&num_devices);                             \
    if (error != cudaSuccess || num_devices == 0) {                                         \
      GTEST_SKIP() << "no GPU: "                                                            \
                   << (error == cudaSuccess ? "none is there" : cudaGetErrorString(error)); \
    }                                                                                       \
  } while (false)

// A stream and the device's sizes; `num_tokens` tokens' bad values are noted with code 7.
class TestContext {
 public:
  explicit TestContext(size_t num_tokens = 1) : bad_(num_tokens) {
    EXPECT_EQ(cudaMemset(bad_.data(), 0, num_tokens * sizeof(int32_t)), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), cudaSuccess);
    cudaDeviceProp properties;
    EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    context_.num_multiprocessors = properties.multiProcessorCount;
    context_.shared_bytes = int(properties.sharedMemPerBlockOptin);
    context_.bad = {bad_.data(), 7};
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  ~TestContext() { cudaStreamDestroy(context_.stream); }
  TestContext(const TestContext&) = delete;
  TestContext& operator=(const TestContext&) = delete;

  const KernelContext& operator*() const { return context_; }
  KernelContext* operator->() { return &context_; }
  std::vector<int32_t> bad() const { return bad_.Download(); }

 private:
  DeviceArray<int32_t> bad_;
  KernelContext context_;
};

// Empty, or the first difference of two arrays in words.
template <typename T, typename A, typename B>
std::string FirstDifferenceOf(const std::vector<T, A>& got, const std::vector<T, B>& want) {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    return fmt::format("[{}]: {} instead of {}", i, got[i], want[i]);
  }
  return "";
}

}  // namespace hillstar::cuda
