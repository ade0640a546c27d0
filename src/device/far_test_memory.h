// For tests only: memory of a device that the host cannot touch. Addresses are of pages without any
// access, so that whoever reads or writes there is caught; the bytes lie elsewhere.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <vector>

#include "core/check.h"
#include "device/device_memory.h"

namespace hillstar {

class FarMemory : public DeviceMemory {
 public:
  explicit FarMemory(size_t slab_bytes = size_t{2} << 20, size_t fill_bytes = size_t{1} << 16,
                     uint64_t limit = std::numeric_limits<uint64_t>::max())
      : slab_bytes_(slab_bytes), fill_bytes_(fill_bytes), budget_(limit) {}
  ~FarMemory() override { CHECK(buffers_.empty()); }

  DeviceBuffer Alloc(MemoryTag tag, size_t num_bytes) override {
    if (num_bytes == 0) return {};
    if (!budget_.HasRoom(num_bytes)) throw NoMemory(tag, num_bytes, " far away");
    void* data = mmap(nullptr, num_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(data != MAP_FAILED);
    budget_.Add(tag, num_bytes);
    auto* bytes = static_cast<uint8_t*>(data);
    buffers_[bytes] = std::vector<uint8_t>(num_bytes);
    return {*this, tag, bytes, num_bytes};
  }
  MemoryBudget& budget() override { return budget_; }
  uint64_t AvailableBytes() const override { return available_bytes; }
  bool is_host() const override { return false; }
  size_t slab_bytes() const override { return slab_bytes_; }

  void Write(std::span<const DeviceSpan> to, const uint8_t* packed) override {
    ++num_writes;
    for (const DeviceSpan& span : to) {
      std::memcpy(Bytes(span.data, span.size), packed, span.size);
      packed += span.size;
    }
  }
  void Read(std::span<const DeviceSpan> from, uint8_t* packed) override {
    for (const DeviceSpan& span : from) {
      std::memcpy(packed, Bytes(span.data, span.size), span.size);
      packed += span.size;
    }
  }
  void Copy(uint8_t* to, const uint8_t* from, size_t num_bytes) override {
    std::memmove(Bytes(to, num_bytes), Bytes(from, num_bytes), num_bytes);
  }
  void Fill(uint8_t* to, size_t num_bytes,
            const std::function<void(uint8_t* host)>& fill) override {
    CHECK(num_bytes <= fill_bytes_);
    ++num_fills;
    std::vector<uint8_t> host(num_bytes, 0xcd);  // what an earlier piece has left
    fill(host.data());
    std::memcpy(Bytes(to, num_bytes), host.data(), num_bytes);
  }
  size_t fill_bytes() const override { return fill_bytes_; }

  // Where the bytes of an address really lie. REQUIRES num_bytes inside one buffer.
  uint8_t* Bytes(const uint8_t* address, size_t num_bytes) {
    auto buffer = buffers_.upper_bound(const_cast<uint8_t*>(address));
    CHECK(buffer != buffers_.begin());
    --buffer;
    const auto offset = size_t(address - buffer->first);
    CHECK(offset <= buffer->second.size() && num_bytes <= buffer->second.size() - offset);
    return buffer->second.data() + offset;
  }

  uint64_t available_bytes = std::numeric_limits<uint64_t>::max();
  int num_writes = 0;
  std::atomic<int> num_fills{0};

 private:
  void Free(MemoryTag tag, uint8_t* data, size_t num_bytes) override {
    CHECK(buffers_.erase(data) == 1);
    munmap(data, num_bytes);
    budget_.Remove(tag, num_bytes);
  }

  const size_t slab_bytes_, fill_bytes_;
  MemoryBudget budget_;
  std::map<uint8_t*, std::vector<uint8_t>> buffers_;  // by their addresses
};

}  // namespace hillstar
