#include "cli/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/check.h"
#include "core/thread_pool.h"
#include "device/host_memory.h"

namespace hillstar {
namespace {

// Each item streams so much, long enough for the hardware's prefetchers.
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
constexpr uint64_t kWords = kPieceBytes / sizeof(uint64_t);
constexpr uint64_t kLeastBytes = uint64_t{1} << 30;
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr int kPasses = 5;

uint64_t SumPiece(const uint64_t* words) {
  // Independent sums, so that no addition waits for the one before.
  constexpr uint64_t kSums = 16;
  uint64_t sums[kSums] = {};
  for (uint64_t i = 0; i < kWords; i += kSums) {
    for (uint64_t j = 0; j < kSums; ++j) sums[j] += words[i + j];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

double MeasureReadBandwidth(int num_threads, std::span<const std::span<const uint8_t>> memory,
                            int repeat) {
  CHECK(num_threads >= 1 && repeat >= 1);
  std::vector<const uint8_t*> pieces;
  for (const std::span<const uint8_t>& part : memory) {
    for (uint64_t at = 0; at + kPieceBytes <= part.size(); at += kPieceBytes) {
      pieces.push_back(part.data() + at);
    }
  }
  CHECK(!pieces.empty());
  ThreadPool pool(num_threads);
  std::vector<uint64_t> sums(pieces.size(), 0);
  double best = 0;
  for (int pass = 0; pass < repeat; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run(int64_t(pieces.size()), [&](int64_t piece, int) {
      sums[size_t(piece)] += SumPiece(reinterpret_cast<const uint64_t*>(pieces[size_t(piece)]));
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, double(pieces.size()) * double(kPieceBytes) / seconds);
  }
  // The sums are looked at, so that no compiler leaves the reads out.
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  __asm__ volatile("" : : "r"(total));
  return best;
}

std::vector<std::span<const uint8_t>> WeightsToRead(std::vector<std::span<const uint8_t>> weights) {
  uint64_t total = 0;
  for (std::span<const uint8_t>& part : weights) {
    part = part.first(std::min<uint64_t>(part.size(), kMostBytes - total));
    total += part.size();
  }
  if (total < kLeastBytes) weights.clear();
  return weights;
}

double MeasureBufferBandwidth(int num_threads) {
  const auto free_bytes = uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  MemoryBudget budget;
  const HostBuffer buffer(budget, MemoryTag::kWorkspace,
                          std::clamp(free_bytes / 4, kPieceBytes, kLeastBytes));
  std::memset(buffer.data(), 1, buffer.size());
  const std::vector<std::span<const uint8_t>> memory = {{buffer.data(), buffer.size()}};
  return MeasureReadBandwidth(num_threads, memory, kPasses);
}

}  // namespace hillstar
