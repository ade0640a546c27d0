#include "cli/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "core/check.h"
#include "core/thread_pool.h"

namespace hillstar {
namespace {

// Each item streams so much, long enough for the hardware's prefetchers.
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
constexpr uint64_t kWords = kPieceBytes / sizeof(uint64_t);

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

double MeasureReadBandwidth(int num_threads, uint64_t buffer_bytes, int repeat) {
  CHECK(num_threads >= 1 && repeat >= 1);
  ThreadPool pool(num_threads);
  const auto num_pieces = int64_t(std::max<uint64_t>(1, buffer_bytes / kPieceBytes));
  const std::unique_ptr<uint64_t[]> buffer(new uint64_t[size_t(num_pieces) * kWords]);
  std::vector<uint64_t> sums(size_t(num_pieces), 0);
  // Written in pieces by the threads that read them later: pages come to lie near them.
  pool.Run(num_pieces, [&](int64_t piece, int) {
    std::fill_n(&buffer[size_t(piece) * kWords], kWords, uint64_t(piece));
  });
  double best = 0;
  for (int pass = 0; pass < repeat; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run(num_pieces, [&](int64_t piece, int) {
      sums[size_t(piece)] = SumPiece(&buffer[size_t(piece) * kWords]);
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, double(num_pieces) * double(kPieceBytes) / seconds);
  }
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    CHECK(sums[size_t(piece)] == uint64_t(piece) * kWords);
  }
  return best;
}

uint64_t BandwidthBufferBytes() {
  const auto free_bytes = uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  return std::clamp(free_bytes / 4, uint64_t{64} << 20, uint64_t{1} << 30);
}

}  // namespace hillstar
