// Owners of host memory. Every byte that a model or a sequence holds for long comes from a budget
// under a tag, so that a report can name it. A budget may be used by several threads at once; it
// outlives its buffers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "hillstar/error.h"

namespace hillstar {

enum class MemoryTag { kDenseWeights, kExperts, kLatentKv, kIndexKeys, kWorkspace };
inline constexpr size_t kNumMemoryTags = 5;
// "dense weights", "experts", ...
const char* MemoryTagName(MemoryTag tag);
// kBudget: neither a budget nor the system has so much left. `where` names memory that is not the
// host's: " on cuda:0".
Error NoMemory(MemoryTag tag, size_t num_bytes, std::string_view where = "");

// Memory that this process can still take: what the system calls available, or what its control
// groups (version 2) leave, file cache counted as free, whichever is less. The largest number if
// the system does not tell.
uint64_t AvailableMemoryBytes();
// The parts of it, from the texts of /proc/meminfo and of a group's memory.max, memory.current and
// memory.stat; the largest number where they do not tell.
uint64_t SystemAvailableBytes(std::string_view meminfo);
uint64_t GroupAvailableBytes(std::string_view max, std::string_view current, std::string_view stat);

class MemoryBudget {
 public:
  // Buffers of more than `limit` bytes together are refused as if the system had no more.
  explicit MemoryBudget(uint64_t limit = std::numeric_limits<uint64_t>::max()) : limit_(limit) {}

  uint64_t used(MemoryTag tag) const { return used_[size_t(tag)].load(); }
  uint64_t used() const;

  // For owners of memory.
  bool HasRoom(uint64_t bytes) const { return used() <= limit_ && bytes <= limit_ - used(); }
  void Add(MemoryTag tag, uint64_t bytes) { used_[size_t(tag)] += bytes; }
  void Remove(MemoryTag tag, uint64_t bytes) { used_[size_t(tag)] -= bytes; }

 private:
  const uint64_t limit_;
  std::array<std::atomic<uint64_t>, kNumMemoryTags> used_{};
};

// Bytes that the system holds memory for of a HostBuffer of which so many were touched, from its
// begin on. Smaller pages are not counted.
uint64_t ResidentBytes(uint64_t buffer_bytes, uint64_t touched_bytes);

// Zeroed, page-aligned memory, in huge pages where the system has them. Move-only.
class HostBuffer {
 public:
  HostBuffer() = default;
  // Errors: kBudget if the system has no such memory left, or the budget, with tag and size.
  HostBuffer(MemoryBudget& budget, MemoryTag tag, size_t num_bytes);
  ~HostBuffer() { Release(); }
  HostBuffer(HostBuffer&& other) noexcept { Swap(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    Swap(other);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Release();
  void Swap(HostBuffer& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(tag_, other.tag_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  MemoryBudget* budget_ = nullptr;
  MemoryTag tag_ = MemoryTag::kWorkspace;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hillstar
