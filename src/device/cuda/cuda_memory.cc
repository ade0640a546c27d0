#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "device/cuda/launch.cuh"
#include "device/cuda/scatter.h"

namespace hillstar::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{1} << 20;
constexpr int kStagingBlocks = 8;

}  // namespace

CudaMemory::CudaMemory(int device, uint64_t limit)
    : device_(device), where_(" on cuda:" + std::to_string(device)), budget_(limit) {
  Check(cudaSetDevice(device), "choosing the device");
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  staging_ = std::make_unique<Staging>(stream_, kStagingBytes, kStagingBlocks);
}

CudaMemory::~CudaMemory() {
  cudaStreamSynchronize(stream_);
  packed_ = {};
  for (const Loader& loader : loaders_) {
    cudaFreeHost(loader.pinned);
    cudaStreamDestroy(loader.stream);
  }
  if (pinned_) cudaFreeHost(pinned_);
  staging_.reset();
  cudaStreamDestroy(stream_);
}

void CudaMemory::Synchronize() { Check(cudaStreamSynchronize(stream_), "waiting for its work"); }

DeviceBuffer CudaMemory::Alloc(MemoryTag tag, size_t num_bytes) {
  if (num_bytes == 0) return {};
  Check(cudaSetDevice(device_), "choosing the device");  // of this thread
  if (!budget_.HasRoom(num_bytes)) throw NoMemory(tag, num_bytes, where_);
  uint8_t* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, num_bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw NoMemory(tag, num_bytes, where_);
  }
  Check(error, "taking memory");
  budget_.Add(tag, num_bytes);
  DeviceBuffer buffer(*this, tag, data, num_bytes);
  Check(cudaMemsetAsync(data, 0, num_bytes, stream_), "clearing memory");
  Synchronize();  // other streams may fill it at once
  return buffer;
}

void CudaMemory::Free(MemoryTag tag, uint8_t* data, size_t num_bytes) {
  cudaStreamSynchronize(stream_);
  cudaFree(data);
  budget_.Remove(tag, num_bytes);
}

uint64_t CudaMemory::AvailableBytes() const {
  size_t free = 0, total = 0;
  Check(cudaMemGetInfo(&free, &total), "asking for its memory");
  return free;
}

uint8_t* CudaMemory::Packed() {
  if (!packed_.data()) packed_ = Alloc(MemoryTag::kWorkspace, fill_bytes());
  if (!pinned_) {
    Check(cudaHostAlloc(&pinned_, fill_bytes(), cudaHostAllocDefault), "taking pinned memory");
  }
  return packed_.data();
}

template <typename MoveFn>
void CudaMemory::ForPieces(std::span<const DeviceSpan> spans, const MoveFn& move) {
  std::vector<DeviceSpan> pieces;
  size_t filled = 0;
  const auto flush = [&] {
    if (filled > 0) move(pieces, filled);
    pieces.clear();
    filled = 0;
  };
  for (DeviceSpan span : spans) {
    while (span.size > 0) {
      const size_t n = std::min(span.size, fill_bytes() - filled);
      pieces.push_back({span.data, n});
      filled += n;
      span.data += n;
      span.size -= n;
      if (filled == fill_bytes()) flush();
    }
  }
  flush();
}

void CudaMemory::Write(std::span<const DeviceSpan> to, const uint8_t* packed) {
  uint8_t* device_packed = Packed();
  ForPieces(to, [&](std::span<const DeviceSpan> pieces, size_t num_bytes) {
    Synchronize();  // what the pinned memory held before has arrived
    std::memcpy(pinned_, packed, num_bytes);
    packed += num_bytes;
    Check(cudaMemcpyAsync(device_packed, pinned_, num_bytes, cudaMemcpyHostToDevice, stream_),
          "copying to the GPU");
    Scatter(pieces, device_packed, stream_);
  });
}

void CudaMemory::Read(std::span<const DeviceSpan> from, uint8_t* packed) {
  uint8_t* device_packed = Packed();
  ForPieces(from, [&](std::span<const DeviceSpan> pieces, size_t num_bytes) {
    Gather(pieces, device_packed, stream_);
    Check(cudaMemcpyAsync(pinned_, device_packed, num_bytes, cudaMemcpyDeviceToHost, stream_),
          "copying from the GPU");
    Synchronize();
    std::memcpy(packed, pinned_, num_bytes);
    packed += num_bytes;
  });
}

void CudaMemory::Copy(uint8_t* to, const uint8_t* from, size_t num_bytes) {
  Check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice, stream_),
        "copying on the GPU");
}

CudaMemory::Loader CudaMemory::TakeLoader() {
  {
    const std::lock_guard lock(mutex_);
    if (!loaders_.empty()) {
      const Loader loader = loaders_.back();
      loaders_.pop_back();
      return loader;
    }
  }
  Loader loader;
  Check(cudaHostAlloc(&loader.pinned, fill_bytes(), cudaHostAllocDefault), "taking pinned memory");
  Check(cudaStreamCreateWithFlags(&loader.stream, cudaStreamNonBlocking), "making a stream");
  return loader;
}

void CudaMemory::Fill(uint8_t* to, size_t num_bytes,
                      const std::function<void(uint8_t* host)>& fill) {
  CHECK(num_bytes <= fill_bytes());
  Check(cudaSetDevice(device_), "choosing the device");  // of this thread
  const Loader loader = TakeLoader();
  struct Return {
    CudaMemory& memory;
    const Loader& loader;
    ~Return() {
      const std::lock_guard lock(memory.mutex_);
      memory.loaders_.push_back(loader);
    }
  } give_back{*this, loader};
  fill(loader.pinned);
  Check(cudaMemcpyAsync(to, loader.pinned, num_bytes, cudaMemcpyHostToDevice, loader.stream),
        "copying weights to the GPU");
  Check(cudaStreamSynchronize(loader.stream), "copying weights to the GPU");
}

}  // namespace hillstar::cuda
