// A GPU's memory, and the stream that its operations run on.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/staging.h"
#include "device/device_memory.h"

namespace hillstar::cuda {

class CudaMemory : public DeviceMemory {
 public:
  // Makes a context on the device. Errors: kDevice.
  CudaMemory(int device, uint64_t limit);
  ~CudaMemory() override;

  cudaStream_t stream() const { return stream_; }
  Staging& staging() { return *staging_; }
  // Waits for everything that was asked for.
  void Synchronize();

  DeviceBuffer Alloc(MemoryTag tag, size_t num_bytes) override;
  MemoryBudget& budget() override { return budget_; }
  uint64_t AvailableBytes() const override;
  bool is_host() const override { return false; }
  // Few allocations, since one takes long and holds everything up.
  size_t slab_bytes() const override { return size_t{64} << 20; }

  // One packed transfer and one kernel that scatters it, or gathers it.
  void Write(std::span<const DeviceSpan> to, const uint8_t* packed) override;
  void Read(std::span<const DeviceSpan> from, uint8_t* packed) override;
  void Copy(uint8_t* to, const uint8_t* from, size_t num_bytes) override;
  void Fill(uint8_t* to, size_t num_bytes, const std::function<void(uint8_t* host)>& fill) override;
  size_t fill_bytes() const override { return size_t{32} << 20; }

 private:
  // A pinned buffer and a stream of its own, for Fill.
  struct Loader {
    uint8_t* pinned = nullptr;
    cudaStream_t stream = nullptr;
  };
  Loader TakeLoader();
  void Free(MemoryTag tag, uint8_t* data, size_t num_bytes) override;
  // Moves packed bytes between the spans and the device's own packed buffer, `done` bytes of which
  // are there already.
  template <typename MoveFn>
  void ForPieces(std::span<const DeviceSpan> spans, const MoveFn& move);
  uint8_t* Packed();

  const int device_;
  const std::string where_;
  MemoryBudget budget_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Staging> staging_;
  DeviceBuffer packed_;
  uint8_t* pinned_ = nullptr;    // fill_bytes(), for Write and Read
  std::mutex mutex_;             // of the loaders
  std::vector<Loader> loaders_;  // that are free
};

}  // namespace hillstar::cuda
