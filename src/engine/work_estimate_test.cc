#include "engine/work_estimate.h"

#include <gtest/gtest.h>

namespace hillstar {
namespace {

// The built-in model, counted by hand: 384 wide, 6 layers (one dense, the indexer on layers 0, 1
// and 5), 8 heads; every weight is w4 or w8, two products each.
TEST(PromptProducts, OfTheBuiltInModel) {
  const auto source =
      ModelSource::Open(std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket", "w15", false);
  const WorkEstimate work(*source);
  constexpr int64_t kKv = 384 * 576, kIndexQ = 192 * 1024, kIndexK = 384 * 128;
  constexpr int64_t kAttention =
      384 * 192 + 192 * 1024 + kKv + 8 * 512 * 64 + 8 * 128 * 512 + 1024 * 384;
  constexpr int64_t kDense = 3 * 384 * 1024, kMoe = (4 + 1) * 3 * 384 * 128;
  // The last layer computes keys for all tokens, the rest for one.
  constexpr int64_t kEach =
      5 * kAttention + kDense + 2 * (kIndexQ + kIndexK) + 4 * kMoe + kKv + kIndexK;
  constexpr int64_t kOnce = kAttention - kKv + kIndexQ + kMoe + 8192 * 384;
  constexpr int64_t kKey =
      5 * 8 * (2 * 512 + 64) * 3;              // products of a query with one key, 5 layers
  constexpr int64_t kScore = 2 * 8 * 128 * 3;  // of two indexers
  EXPECT_EQ(work.PromptProducts(1), double(2 * (kEach + kOnce) + kKey));
  EXPECT_EQ(work.PromptProducts(256), double(2 * (256 * kEach + kOnce) + 256 * 257 / 2 * kKey));
  // Beyond 256 keys the indexers choose: token 256 scores 257 keys, token 299 scores 300.
  const int64_t seen = 256 * 257 / 2 + 44 * 256, scored = (257 + 300) * 44 / 2;
  EXPECT_EQ(work.PromptProducts(300),
            double(2 * (300 * kEach + kOnce) + seen * kKey + scored * kScore));
}

}  // namespace
}  // namespace hillstar
