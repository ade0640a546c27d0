// What a GPU's peaks are measured with does all that it says: sums that depend on every byte that
// is read and on every product.
#include <gtest/gtest.h>

#include "ops/cuda_kernel_test.h"
#include "ops/peak/peak_cuda.cuh"

namespace hillstar::cuda {
namespace {

uint32_t SumOfWords(const std::vector<uint32_t>& words) {
  uint32_t sum = 0;
  for (const uint32_t w : words) sum += w;
  return sum;
}

uint32_t SumOnDevice(const TestContext& context, const DeviceArray<uint32_t>& words) {
  const DeviceArray<int32_t> sum(std::vector<int32_t>{-5});
  ReadAll(*context, reinterpret_cast<const uint8_t*>(words.data()), words.size() * sizeof(uint32_t),
          sum.data());
  return uint32_t(sum.Download()[0]) + 5;
}

// Around the pieces that a thread has on their way at once, and one word of sixteen bytes more or
// less.
TEST(PeakCuda, EveryByteIsRead) {
  HILLSTAR_NEEDS_GPU();
  TestContext context;
  context->num_multiprocessors = 2;
  constexpr size_t kThreads = 2 * 4 * 512;  // each has 8 words of 16 bytes on their way
  TestRandom random(1);
  for (const size_t n : {size_t{1}, size_t{33}, kThreads - 1, kThreads, 8 * kThreads - 1,
                         8 * kThreads, 8 * kThreads + 1, 19 * kThreads + 7}) {
    std::vector<uint32_t> words(4 * n);
    for (uint32_t& w : words) w = uint32_t(random.Next());
    DeviceArray<uint32_t> device(words);
    EXPECT_EQ(SumOnDevice(context, device), SumOfWords(words)) << 16 * n << " bytes";
  }
  std::vector<uint32_t> words(4 * 65);
  for (size_t i = 0; i < words.size(); ++i) {  // the sum of distinct bits says which were read
    std::vector<uint32_t> one(words.size(), 0);
    one[i] = 0x01010101u;
    EXPECT_EQ(SumOnDevice(context, DeviceArray<uint32_t>(one)), 0x01010101u) << "word " << i;
  }
}

// The sum of MmaUnsignedSigned's products of a warp for one chain: of a row's bytes of A and a
// column's of B, each with each.
uint32_t SumOfMma(uint32_t first_thread, int chain) {
  uint32_t sum = 0;
  for (uint32_t k = 0; k < 32; ++k) {  // lanes 4 g + k / 4 % 4 hold byte k of g's rows and column
    uint32_t rows = 0, columns = 0;
    for (uint32_t g = 0; g < 8; ++g) {
      const MultiplyFactors lane(first_thread + 4 * g + k / 4 % 4);
      const uint32_t shift = 8 * (k % 4);
      const size_t word = k / 16 * 2;
      rows += uint8_t(lane.a[word] >> shift);
      rows += uint8_t(lane.a[word + 1] >> shift);
      const uint32_t b = k < 16 ? lane.b0(chain) : lane.b1(chain);
      columns += uint32_t(int32_t(int8_t(b >> shift)));
    }
    sum += rows * columns;
  }
  return sum;
}

TEST(PeakCuda, EveryProductIsDone) {
  HILLSTAR_NEEDS_GPU();
  TestContext context;
  context->num_multiprocessors = HILLSTAR_CUDA_IS_EMULATED ? 1 : 5;
  const int blocks = context->num_multiprocessors * kMultiplyBlocks;
  const DeviceArray<int32_t> sum(std::vector<int32_t>{0});
  const double products = MultiplyAll(*context, sum.data());
  uint32_t want = 0;
  for (int warp = 0; warp < kMultiplyWarps; ++warp) {
    for (int chain = 0; chain < kMultiplyChains; ++chain)
      want += SumOfMma(uint32_t(32 * warp), chain);
  }
  const auto times = uint32_t(products / (kMultiplyWarps * kMultiplyChains * (16 * 8 * 32)));
  EXPECT_EQ(times, uint32_t(blocks * kMultiplyRounds));
  EXPECT_EQ(uint32_t(sum.Download()[0]), want * times);
}

}  // namespace
}  // namespace hillstar::cuda
