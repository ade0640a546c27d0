// The host's own memory as that of a device.
#pragma once

#include <unordered_map>

#include "device/device_memory.h"

namespace hillstar {

class HostMemory : public DeviceMemory {
 public:
  // Owns its budget: see MemoryBudget for the limit.
  explicit HostMemory(uint64_t limit = std::numeric_limits<uint64_t>::max()) : budget_(limit) {}

  DeviceBuffer Alloc(MemoryTag tag, size_t num_bytes) override;
  MemoryBudget& budget() override { return budget_; }
  const MemoryBudget& budget() const { return budget_; }
  uint64_t AvailableBytes() const override { return AvailableMemoryBytes(); }
  bool is_host() const override { return true; }
  // A huge page.
  size_t slab_bytes() const override { return size_t{2} << 20; }

  void Write(std::span<const DeviceSpan> to, const uint8_t* packed) override;
  void Read(std::span<const DeviceSpan> from, uint8_t* packed) override;
  void Copy(uint8_t* to, const uint8_t* from, size_t num_bytes) override;

  // In place, so that nothing bounds it.
  void Fill(uint8_t* to, size_t, const std::function<void(uint8_t* host)>& fill) override {
    fill(to);
  }
  size_t fill_bytes() const override { return std::numeric_limits<size_t>::max(); }

 private:
  void Free(MemoryTag tag, uint8_t* data, size_t num_bytes) override;

  MemoryBudget budget_;
  std::unordered_map<uint8_t*, HostBuffer> buffers_;  // by their addresses
};

}  // namespace hillstar
