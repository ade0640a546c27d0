#include "device/host_device.h"

#include <cstring>

#include "core/check.h"

namespace hillstar {

DeviceBuffer HostMemory::Alloc(MemoryTag tag, size_t num_bytes) {
  if (num_bytes == 0) return {};
  HostBuffer buffer(budget_, tag, num_bytes);
  uint8_t* data = buffer.data();
  buffers_.emplace(data, std::move(buffer));
  return {*this, tag, data, num_bytes};
}

void HostMemory::Free(MemoryTag, uint8_t* data, size_t) { CHECK(buffers_.erase(data) == 1); }

void HostMemory::Write(std::span<const DeviceSpan> to, const uint8_t* packed) {
  for (const DeviceSpan& span : to) {
    if (span.size > 0) std::memcpy(span.data, packed, span.size);
    packed += span.size;
  }
}

void HostMemory::Read(std::span<const DeviceSpan> from, uint8_t* packed) {
  for (const DeviceSpan& span : from) {
    if (span.size > 0) std::memcpy(packed, span.data, span.size);
    packed += span.size;
  }
}

void HostMemory::Copy(uint8_t* to, const uint8_t* from, size_t num_bytes) {
  if (num_bytes > 0) std::memcpy(to, from, num_bytes);
}

}  // namespace hillstar
