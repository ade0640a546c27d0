#include "engine/memory_plan.h"

#include <gtest/gtest.h>

namespace hillstar {
namespace {

EngineOptions BuiltIn() {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.num_threads = 2;
  return options;
}

std::string Refusal(const MemoryPlan& plan, const EngineSizes& sizes, uint64_t available) {
  try {
    CheckFits(plan, sizes, available);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBudget);
    return e.what();
  }
  return "";
}

TEST(CheckFits, NamesThePartsAndAContextThatFits) {
  MemoryPlan plan;
  plan.dense_weights = 2'000'000'000;
  plan.experts = 1'000'000'000;
  plan.latent_kv = 3'500'000'000;
  plan.index_keys = 500'000'000;
  plan.workspace = 400'000'000;
  plan.program = 100'000'000;
  const EngineSizes sizes{8192, 512, 2};
  EXPECT_EQ(Refusal(plan, sizes, 7'500'000'000), "");
  // 2 GB are left for the context, half of what 8,192 tokens take.
  EXPECT_EQ(Refusal(plan, sizes, 5'500'000'000),
            "5.50 GB of memory are available, and the model needs 7.50: 3.00 for weights, 4.00 for "
            "a context of 8192 tokens, 0.50 for the rest; a context of 4096 tokens fits "
            "(--context)");
  const std::string hopeless = Refusal(plan, sizes, 3'000'000'000);
  EXPECT_NE(hopeless.find("3.00 GB of memory are available"), std::string::npos) << hopeless;
  EXPECT_EQ(hopeless.find("fits"), std::string::npos) << hopeless;
}

TEST(PredictMemory, GrowsWithContextChunkAndThreads) {
  EngineOptions options = BuiltIn();
  options.context_tokens = 1024;
  const MemoryPlan small = PredictMemory(options);
  options.context_tokens = 4096;
  const MemoryPlan longer = PredictMemory(options);
  EXPECT_EQ(longer.latent_kv, 4 * small.latent_kv);
  EXPECT_EQ(longer.index_keys, 4 * small.index_keys);
  EXPECT_EQ(longer.dense_weights, small.dense_weights);
  options.prefill_chunk = 64;
  const MemoryPlan narrow = PredictMemory(options);
  EXPECT_LT(narrow.workspace, longer.workspace / 2);
  options.num_threads = 8;
  EXPECT_GT(PredictMemory(options).workspace, narrow.workspace);
}

TEST(PredictMemory, RefusesWhatTheModelDoesNotServe) {
  EngineOptions options = BuiltIn();
  options.context_tokens = 1 << 20;
  EXPECT_THROW(PredictMemory(options), Error);
  options.context_tokens = 0;
  options.prefill_chunk = 0;
  EXPECT_THROW(PredictMemory(options), Error);
  options.prefill_chunk = 512;
  options.num_threads = -1;
  EXPECT_THROW(PredictMemory(options), Error);
}

TEST(AvailableMemory, IsPlausible) { EXPECT_GT(AvailableMemoryBytes(), uint64_t{1} << 20); }

}  // namespace
}  // namespace hillstar
