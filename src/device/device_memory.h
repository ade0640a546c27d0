// Memory that operations compute in: the host's, or a GPU's. Every byte comes from a budget under a
// tag. Buffers do not outlive their memory. Errors of a lost device: kDevice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "device/host_memory.h"

namespace hillstar {

class DeviceMemory;

// Zeroed memory of a device, aligned to 256 bytes at least. Move-only.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // For DeviceMemory::Alloc.
  DeviceBuffer(DeviceMemory& memory, MemoryTag tag, uint8_t* data, size_t num_bytes)
      : memory_(&memory), tag_(tag), data_(data), size_(num_bytes) {}
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { Swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    Swap(other);
    return *this;
  }

  // An address of the device: only where the memory is the host's may the host read and write
  // there.
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Swap(DeviceBuffer& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(tag_, other.tag_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  DeviceMemory* memory_ = nullptr;
  MemoryTag tag_ = MemoryTag::kWorkspace;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Some bytes inside a buffer.
struct DeviceSpan {
  uint8_t* data = nullptr;
  size_t size = 0;
};

// Used by one thread at a time, but for Fill.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Errors: kBudget if the device has no such memory left, or the budget, with tag and size.
  virtual DeviceBuffer Alloc(MemoryTag tag, size_t num_bytes) = 0;
  virtual MemoryBudget& budget() = 0;
  // Bytes that can still be had.
  virtual uint64_t AvailableBytes() const = 0;
  // True where the host may read and write a buffer's bytes.
  virtual bool is_host() const = 0;
  // Bytes that pages are best taken in at once.
  virtual size_t slab_bytes() const = 0;

  // The three are in order with the operations of the device's Ops.
  // packed: the bytes of all spans, one behind the other. Write has read them when it returns, Read
  // has written them.
  virtual void Write(std::span<const DeviceSpan> to, const uint8_t* packed) = 0;
  virtual void Read(std::span<const DeviceSpan> from, uint8_t* packed) = 0;
  virtual void Copy(uint8_t* to, const uint8_t* from, size_t num_bytes) = 0;

  // For loading: `fill` writes num_bytes to where it is told on the host, and they come to `to`; at
  // most fill_bytes() at once. Done when it returns. Any threads, several at once. Passes on what
  // `fill` throws.
  virtual void Fill(uint8_t* to, size_t num_bytes,
                    const std::function<void(uint8_t* host)>& fill) = 0;
  virtual size_t fill_bytes() const = 0;

 private:
  friend class DeviceBuffer;
  virtual void Free(MemoryTag tag, uint8_t* data, size_t num_bytes) = 0;
};

inline DeviceBuffer::~DeviceBuffer() {
  if (data_) memory_->Free(tag_, data_, size_);
}

}  // namespace hillstar
