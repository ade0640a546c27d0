#include "device/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "hillstar/error.h"

namespace hillstar {
namespace {

// From here on huge pages save more in address translation than they can waste.
constexpr size_t kHugePageBytes = size_t{2} << 20;

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// "MemAvailable:   123 kB" of /proc/meminfo.
uint64_t SystemAvailableBytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (!line.starts_with(kKey)) continue;
    return std::strtoull(line.c_str() + kKey.size(), nullptr, 10) * 1024;
  }
  return kUnknown;
}

// Of the process's control group (version 2); "max" and missing files mean no limit.
uint64_t GroupAvailableBytes() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    const std::string folder = "/sys/fs/cgroup" + line.substr(3);
    uint64_t limit = 0, used = 0;
    if (!(std::ifstream(folder + "/memory.max") >> limit)) return kUnknown;
    std::ifstream(folder + "/memory.current") >> used;
    return limit > used ? limit - used : 0;
  }
  return kUnknown;
}

}  // namespace

uint64_t AvailableMemoryBytes() { return std::min(SystemAvailableBytes(), GroupAvailableBytes()); }

const char* MemoryTagName(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::kDenseWeights: return "dense weights";
    case MemoryTag::kExperts: return "experts";
    case MemoryTag::kLatentKv: return "latent KV";
    case MemoryTag::kIndexKeys: return "index keys";
    case MemoryTag::kWorkspace: return "workspace";
  }
  return "unknown";
}

uint64_t MemoryBudget::used() const {
  uint64_t sum = 0;
  for (const auto& u : used_) sum += u.load();
  return sum;
}

HostBuffer::HostBuffer(MemoryBudget& budget, MemoryTag tag, size_t num_bytes)
    : budget_(&budget), tag_(tag), size_(num_bytes) {
  if (num_bytes == 0) return;
  void* p = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kBudget, fmt::format("no memory left for {} of {:.2f} GB",
                                                MemoryTagName(tag), double(num_bytes) / 1e9));
  }
  if (num_bytes >= kHugePageBytes) madvise(p, num_bytes, MADV_HUGEPAGE);
  data_ = static_cast<uint8_t*>(p);
  budget_->Add(tag_, size_);
}

void HostBuffer::Release() {
  if (!data_) return;
  munmap(data_, size_);
  budget_->Remove(tag_, size_);
  data_ = nullptr;
}

}  // namespace hillstar
