// What of a step is sent to the GPU, and what stays there from step to step.
#include "ops/cuda_step_tables.h"

#include <gtest/gtest.h>

#include "ops/cuda_graphs.h"
#include "ops/cuda_kernel_test.h"

namespace hillstar::cuda {
namespace {

template <typename T>
std::vector<T> FromDevice(const T* data, int64_t n) {
  std::vector<T> values(static_cast<size_t>(n));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return values;
}

// Two sequences at once, contexts of up to ten pages.
class StepTablesTest : public testing::Test {
 protected:
  void SetUp() override {
    HILLSTAR_NEEDS_GPU();
    memory_ = std::make_unique<CudaMemory>(0, std::numeric_limits<uint64_t>::max());
    Ops::Limits limits;
    limits.max_tokens = 8;
    limits.max_sequences = 2;
    limits.max_context = 10 * kPageTokens;
    limits.max_pages = 4;
    tables_ = std::make_unique<StepTables>(*memory_, limits);
  }
  // A step of one token for each list, at position `position`.
  StepTokens Send(const std::vector<PageList>& pages, int64_t position) {
    ids_.assign(pages.size(), 5);
    positions_.assign(pages.size(), position);
    StepInput input;
    input.num_tokens = int64_t(pages.size());
    input.ids = ids_.data();
    input.positions = positions_.data();
    input.pages = pages.data();
    input.memory = {addresses_, addresses_, 4};
    return tables_->Send(input, input.num_tokens);
  }
  std::vector<PageId> PagesOfToken(const StepTokens& step, int64_t t, int64_t n) const {
    return FromDevice(FromDevice(step.page_ids, t + 1)[size_t(t)], n);
  }

  std::unique_ptr<CudaMemory> memory_;
  std::unique_ptr<StepTables> tables_;
  std::vector<int32_t> ids_;
  std::vector<int64_t> positions_;
  uint8_t bytes_[4] = {};
  uint8_t* const addresses_[4] = {bytes_, bytes_ + 1, bytes_ + 2, bytes_ + 3};
};

TEST_F(StepTablesTest, OnlyWhatChangedIsSent) {
  std::vector<PageId> pages = {7, 8, 9};
  const auto list = [&](uint64_t version) {
    return PageList{pages.data(), int64_t(pages.size()), 1, version};
  };
  StepTokens step = Send({list(1)}, 130);
  EXPECT_EQ(PagesOfToken(step, 0, 3), pages);
  EXPECT_EQ(FromDevice(step.positions, 1)[0], 130);
  EXPECT_EQ(FromDevice(step.ids, 1)[0], 5);
  EXPECT_EQ(FromDevice(step.live, 1)[0], 1);
  EXPECT_EQ(step.max_positions, 131);
  EXPECT_EQ(FromDevice(step.latent_memory, 4), std::vector<uint8_t*>(addresses_, addresses_ + 4));
  EXPECT_EQ(tables_->table_bytes_sent(), 3 * sizeof(PageId));
  Send({list(1)}, 131);
  EXPECT_EQ(tables_->table_bytes_sent(), 3 * sizeof(PageId));
  pages.push_back(4);
  step = Send({list(2)}, 192);
  EXPECT_EQ(tables_->table_bytes_sent(), 4 * sizeof(PageId));
  EXPECT_EQ(PagesOfToken(step, 0, 4), pages);
  pages = {7, 3};  // cut, and gone on otherwise
  step = Send({list(3)}, 64);
  EXPECT_EQ(tables_->table_bytes_sent(), 5 * sizeof(PageId));
  EXPECT_EQ(PagesOfToken(step, 0, 2), pages);
}

// A third sequence takes the place of the one that was longest away; that one is sent anew later.
TEST_F(StepTablesTest, SequencesTakeTurns) {
  const std::vector<PageId> a = {1}, b = {2}, c = {3};
  const PageList lists[] = {{a.data(), 1, 1, 1}, {b.data(), 1, 2, 2}, {c.data(), 1, 3, 3}};
  Send({lists[0], lists[1]}, 0);
  Send({lists[1]}, 1);
  const StepTokens step = Send({lists[1], lists[2]}, 2);
  EXPECT_EQ(PagesOfToken(step, 0, 1), b);
  EXPECT_EQ(PagesOfToken(step, 1, 1), c);
  EXPECT_EQ(tables_->table_bytes_sent(), 3 * sizeof(PageId));
  EXPECT_EQ(PagesOfToken(Send({lists[0]}, 3), 0, 1), a);
  EXPECT_EQ(tables_->table_bytes_sent(), 4 * sizeof(PageId));
}

TEST_F(StepTablesTest, AShapeIsCapturedOnceAndAFailureLeavesNoCapture) {
  StepGraphs graphs(memory_->stream());
  const DeviceArray<int32_t> value(std::vector<int32_t>{3});
  int launches = 0;
  const auto launch = [&] {
    ++launches;
    EXPECT_EQ(cudaMemsetAsync(value.data(), 0, sizeof(int32_t), memory_->stream()), cudaSuccess);
  };
  for (int repeat = 0; repeat < 3; ++repeat) graphs.Run({1, 2048, 0}, launch);
  graphs.Run({2, 2048, 0}, launch);
  EXPECT_EQ(launches, 2);
  EXPECT_EQ(value.Download(), std::vector<int32_t>{0});
  EXPECT_THROW(graphs.Run({3, 2048, 0}, [] { throw std::runtime_error("no"); }),
               std::runtime_error);
  graphs.Run({3, 2048, 0}, launch);
  EXPECT_EQ(launches, 3);
}

}  // namespace
}  // namespace hillstar::cuda
