// A GPU's memory: spans that are scattered and gathered, the ring of pinned memory, and the
// contract of DeviceMemory. On the emulated device and on a GPU.
#include "device/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "device/cuda/scatter.h"
#include "device/device_memory_test.h"

namespace hillstar::cuda {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes RandomBytes(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(n);
  std::ranges::generate(bytes, [&] { return uint8_t(random()); });
  return bytes;
}

class CudaMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU: "
                   << (error == cudaSuccess ? "none is there" : cudaGetErrorString(error));
    }
    memory_ = std::make_unique<CudaMemory>(0, std::numeric_limits<uint64_t>::max());
  }

  Bytes Download(const DeviceBuffer& buffer) {
    memory_->Synchronize();
    Bytes bytes(buffer.size());
    EXPECT_EQ(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return bytes;
  }
  DeviceBuffer Uploaded(const Bytes& bytes) {
    DeviceBuffer buffer = memory_->Alloc(MemoryTag::kWorkspace, bytes.size());
    EXPECT_EQ(cudaMemcpy(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
              cudaSuccess);
    return buffer;
  }
  // Spans of these sizes, each `gap` bytes behind the one before, scattered and gathered: bytes of
  // a span come where it lies, and no others change.
  void ExpectScattered(const std::vector<size_t>& sizes, size_t gap, unsigned seed) {
    size_t total = 0;
    for (const size_t n : sizes) total += n;
    const Bytes before = RandomBytes(total + gap * (sizes.size() + 1), seed);
    const Bytes packed = RandomBytes(total + 1, seed + 1);
    const DeviceBuffer buffer = Uploaded(before), device_packed = Uploaded(packed);
    std::vector<DeviceSpan> spans;
    Bytes want = before;
    size_t at = 0, to = gap;
    for (const size_t n : sizes) {
      spans.push_back({buffer.data() + to, n});
      std::copy_n(packed.begin() + int64_t(at), n, want.begin() + int64_t(to));
      at += n;
      to += n + gap;
    }
    Scatter(spans, device_packed.data(), memory_->stream());
    EXPECT_TRUE(Download(buffer) == want) << sizes.size() << " spans, gap " << gap;
    const DeviceBuffer gathered = memory_->Alloc(MemoryTag::kWorkspace, total + 1);
    Gather(spans, gathered.data(), memory_->stream());
    Bytes want_gathered = packed;
    want_gathered[total] = 0;  // behind the last span
    EXPECT_TRUE(Download(gathered) == want_gathered) << sizes.size() << " spans, gap " << gap;
  }

  std::unique_ptr<CudaMemory> memory_;
};

TEST_F(CudaMemoryTest, KeepsTheContractOfDeviceMemory) {
  EXPECT_FALSE(memory_->is_host());
  ExpectContract(*memory_);
}

// More spans than a launch holds, by words and byte by byte.
TEST_F(CudaMemoryTest, NumbersOfSpans) {
  for (const size_t count : {0, 1, 2, 127, 128, 129, 257}) {
    for (const size_t gap : {16, 3}) {
      ExpectScattered(std::vector<size_t>(count, 48), gap, unsigned(count));
    }
  }
}

// Around words, a block's threads, and what all blocks of a span do at once.
TEST_F(CudaMemoryTest, SizesOfSpans) {
  for (const size_t n : {1, 15, 16, 17, 255, 257, 2048, 4096, 4111, 32768, 32784, 100'003}) {
    for (const size_t gap : {16, 7}) ExpectScattered({n}, gap, unsigned(n));
    ExpectScattered({n, 0, 5, n, 16}, 1, unsigned(n));
  }
}

// As the pages of a sequence are moved.
TEST_F(CudaMemoryTest, PagesOfSequences) {
  std::vector<size_t> sizes;
  for (int page = 0; page < 70; ++page) sizes.insert(sizes.end(), {1168 * 64, 264 * 64});
  ExpectScattered(sizes, 256, 5);
}

// What is more than the pinned memory holds goes in pieces, and a span may be cut.
TEST_F(CudaMemoryTest, MoreThanThePinnedMemoryHolds) {
  const size_t most = memory_->fill_bytes();
  const DeviceBuffer a = memory_->Alloc(MemoryTag::kLatentKv, most + 4096);
  const DeviceBuffer b = memory_->Alloc(MemoryTag::kLatentKv, 8192);
  const std::vector<DeviceSpan> spans = {
      {b.data(), 1000}, {a.data() + 16, most}, {b.data() + 4096, 100}};
  const Bytes packed = RandomBytes(most + 1100, 6);
  memory_->Write(spans, packed.data());
  Bytes read(packed.size());
  memory_->Read(spans, read.data());
  EXPECT_TRUE(read == packed);
  const Bytes whole = Download(a);
  EXPECT_TRUE(
      std::equal(whole.begin() + 16, whole.begin() + 16 + int64_t(most), packed.begin() + 1000));
  EXPECT_EQ(std::count(whole.begin(), whole.begin() + 16, 0), 16);
  EXPECT_EQ(std::count(whole.end() - 4080, whole.end(), 0), 4080);
}

TEST_F(CudaMemoryTest, TheLimitIsKept) {
  CudaMemory limited(0, 1000);
  const DeviceBuffer buffer = limited.Alloc(MemoryTag::kWorkspace, 600);
  try {
    (void)limited.Alloc(MemoryTag::kExperts, 500);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudget);
    EXPECT_EQ(std::string(error.what()), "no memory left on cuda:0 for experts of 0.00 MB");
  }
  EXPECT_EQ(limited.Alloc(MemoryTag::kExperts, 400).size(), 400u);
}

// Threads that load at once do not use each other's pinned memory; what one throws comes to it.
TEST_F(CudaMemoryTest, ManyThreadsFillAtOnce) {
  constexpr size_t kThreads = 4, kPieces = 8, kBytes = 50'001;
  const DeviceBuffer buffer = memory_->Alloc(MemoryTag::kExperts, kThreads * kPieces * kBytes);
  const Bytes want = RandomBytes(buffer.size(), 7);
  std::vector<std::thread> threads;
  std::array<int, kThreads> num_thrown{};
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < kPieces; ++i) {
        const size_t at = (i * kThreads + t) * kBytes;
        try {
          memory_->Fill(buffer.data() + at, kBytes,
                        [](uint8_t*) { throw Error(ErrorCode::kIo, "gone"); });
        } catch (const Error&) {
          ++num_thrown[t];
        }
        memory_->Fill(buffer.data() + at, kBytes, [&](uint8_t* host) {
          std::copy_n(want.begin() + int64_t(at), kBytes, host);
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Download(buffer) == want);
  for (const int n : num_thrown) EXPECT_EQ(n, int(kPieces));
}

TEST_F(CudaMemoryTest, StagingGivesRoomInTurns) {
  Staging staging(memory_->stream(), 1024, 3);
  EXPECT_EQ(staging.block_bytes(), 1024u);
  uint8_t* const first = staging.Take(100);
  EXPECT_EQ(uintptr_t(first) % 256, 0u);
  EXPECT_EQ(staging.Take(1), first + 256);
  EXPECT_EQ(staging.Take(512), first + 512);
  uint8_t* const second = staging.Take(1);  // the first block is full
  EXPECT_TRUE(second < first || second >= first + 1024);
  uint8_t* const third = staging.Take(1024);
  EXPECT_NE(third, second);
  EXPECT_NE(third, first);
  EXPECT_EQ(staging.Take(1024), first);  // round the ring
}

// Blocks are used again thousands of times while copies are under way; whoever did not wait for
// them would send later bytes.
TEST_F(CudaMemoryTest, StagingWaitsForCopiesBeforeItUsesABlockAgain) {
  Staging staging(memory_->stream(), 4096, 2);
  const Bytes want = RandomBytes((size_t{8} << 20) + 77, 8);
  const DeviceBuffer buffer = memory_->Alloc(MemoryTag::kWorkspace, want.size() + 100);
  size_t at = 0;
  for (size_t i = 0; at < want.size(); ++i) {
    const size_t n = std::min<size_t>(std::array{5, 4096, 70'000, 300}[i % 4], want.size() - at);
    staging.Upload(buffer.data() + at, want.data() + at, n);
    at += n;
  }
  const Bytes got = Download(buffer);
  EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()));
  EXPECT_EQ(std::count(got.end() - 100, got.end(), 0), 100);
}

}  // namespace
}  // namespace hillstar::cuda
