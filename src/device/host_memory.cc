#include "device/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>

#include "core/integers.h"

namespace hillstar {
namespace {

// From here on huge pages save more in address translation than they can waste.
constexpr size_t kHugePageBytes = size_t{2} << 20;

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// The number after `key` at the beginning of a line.
std::optional<uint64_t> NumberAfter(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(key)) continue;
    const size_t digits = line.find_first_of("0123456789", key.size());
    if (digits == std::string_view::npos) return std::nullopt;
    uint64_t number = 0;
    std::from_chars(line.data() + digits, line.data() + line.size(), number);
    return number;
  }
  return std::nullopt;
}

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

uint64_t SystemAvailableBytes(std::string_view meminfo) {
  const auto kilobytes = NumberAfter(meminfo, "MemAvailable:");
  return kilobytes ? *kilobytes * 1024 : kUnknown;
}

uint64_t GroupAvailableBytes(std::string_view max, std::string_view current,
                             std::string_view stat) {
  const auto limit = NumberAfter(max, ""), used = NumberAfter(current, "");
  if (!limit || !used) return kUnknown;  // "max", or no such files
  const uint64_t cache = NumberAfter(stat, "inactive_file ").value_or(0) +
                         NumberAfter(stat, "active_file ").value_or(0);
  const uint64_t held = *used - std::min(*used, cache);
  return *limit - std::min(*limit, held);
}

uint64_t AvailableMemoryBytes() {
  uint64_t available = SystemAvailableBytes(TextOf("/proc/meminfo"));
  const std::string groups = TextOf("/proc/self/cgroup");
  const size_t at = groups.starts_with("0::") ? 0 : groups.find("\n0::");
  if (at == std::string::npos) return available;
  const size_t begin = groups.find("::", at) + 2;
  // A limit holds for all groups below it.
  for (std::filesystem::path group = groups.substr(begin, groups.find('\n', begin) - begin);
       group.has_relative_path(); group = group.parent_path()) {
    const std::filesystem::path folder = "/sys/fs/cgroup" / group.relative_path();
    available = std::min(available, GroupAvailableBytes(TextOf(folder / "memory.max"),
                                                        TextOf(folder / "memory.current"),
                                                        TextOf(folder / "memory.stat")));
  }
  return available;
}

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

Error NoMemory(MemoryTag tag, size_t num_bytes, std::string_view where) {
  const bool is_small = num_bytes < 1'000'000'000;
  return Error(ErrorCode::kBudget,
               fmt::format("no memory left{} for {} of {:.2f} {}", where, MemoryTagName(tag),
                           double(num_bytes) / (is_small ? 1e6 : 1e9), is_small ? "MB" : "GB"));
}

uint64_t MemoryBudget::used() const {
  uint64_t sum = 0;
  for (const auto& u : used_) sum += u.load();
  return sum;
}

uint64_t ResidentBytes(uint64_t buffer_bytes, uint64_t touched_bytes) {
  if (buffer_bytes < kHugePageBytes) return touched_bytes;
  return std::min(buffer_bytes, uint64_t(RoundUp(int64_t(touched_bytes), kHugePageBytes)));
}

HostBuffer::HostBuffer(MemoryBudget& budget, MemoryTag tag, size_t num_bytes)
    : budget_(&budget), tag_(tag), size_(num_bytes) {
  if (num_bytes == 0) return;
  void* p = budget.HasRoom(num_bytes) ? mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                                      : MAP_FAILED;
  if (p == MAP_FAILED) throw NoMemory(tag, num_bytes);
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
