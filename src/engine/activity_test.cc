// Engine::activity on a CPU: the counts of experts against the router's choices, and that they and
// the times mean what EngineActivity says. Counts of a GPU are compared with these in
// cuda_bits_test.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "engine/memory_plan.h"
#include "formats/container_test_files.h"
#include "hillstar/engine.h"
#include "kv/kv_cache.h"
#include "kv/sequence_kv.h"
#include "model/forward.h"
#include "model/tiny_checkpoint_test_files.h"
#include "ops/cpu_backend.h"

namespace hillstar {
namespace {

std::vector<int32_t> Tokens(int64_t seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t((seed * 31 + i * (i % 7 + 3)) % 50));
  return ids;
}

// Uses of all experts of each layer.
std::vector<uint64_t> ByLayer(const EngineActivity& activity) {
  std::vector<uint64_t> sums;
  const auto experts = size_t(activity.num_experts);
  for (size_t at = 0; at < activity.expert_uses.size(); at += experts) {
    const auto row = std::span(activity.expert_uses).subspan(at, experts);
    sums.push_back(std::accumulate(row.begin(), row.end(), uint64_t{0}));
  }
  return sums;
}

// A CPU that writes down every choice before it is counted: [calls, (token, rank)].
class SpyOps : public CpuOps {
 public:
  using CpuOps::CpuOps;
  void GroupByExpert(const int32_t* experts, const StepTokens& step, const ExpertLayer& layer,
                     const ExpertGroups& groups) override {
    choices.emplace_back(experts, experts + step.num_tokens * layer.num_chosen);
    CpuOps::GroupByExpert(experts, step, layer, groups);
  }
  std::vector<std::vector<int32_t>> choices;
};

TEST(Activity, CountsWhatTheRouterChose) {
  const TempFolder temp;
  WriteTinyModel(temp.path());
  const auto source = ModelSource::Open(temp.path().string(), "w15", false);
  const ModelConfig& config = source->config();
  HostMemory memory;
  const ModelWeights weights = LoadWeights(*source, memory, 1, {});
  const KvShape shape = KvShapeOf(*source, KvFormat::kQ15);
  SpyOps ops(ChooseKernels("auto"), 2, memory.budget());
  EngineSizes sizes;
  sizes.context_tokens = sizes.step_tokens = 40;
  ops.Prepare(OpsLimits(config, shape, sizes));
  ForwardPass forward(config, weights, ops, {40, 40, shape.row, shape.index});
  KvCache cache(shape, memory, 1, 0);
  SequenceKv kv(cache);
  StepSequence step{.kv = &kv};
  kv.Prepare(0, 40);
  std::vector<BatchToken> tokens;
  for (const int32_t id : Tokens(3, 40)) tokens.push_back({id, int64_t(tokens.size()), &step});
  EXPECT_EQ(forward.Run(std::span(tokens).first(33), 31, {}), 33);
  EXPECT_EQ(forward.Run(std::span(tokens).subspan(33), 0, {}), 7);

  // Two steps of two layers; of the first, the last layer has two tokens.
  ASSERT_EQ(ops.choices.size(), 4u);
  EXPECT_EQ(ops.choices[1].size(), 2u * size_t(config.num_experts_per_token));
  std::vector<uint64_t> want(2 * size_t(config.num_experts), 0);
  for (size_t call = 0; call < 4; ++call) {
    for (const int32_t e : ops.choices[call]) {
      ++want[call % 2 * size_t(config.num_experts) + size_t(e)];
    }
  }
  EngineActivity activity;
  forward.ReadExpertUses(&activity);
  EXPECT_EQ(activity.moe_layers, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(activity.num_experts, config.num_experts);
  EXPECT_EQ(activity.expert_uses, want);
}

class EngineActivityTest : public testing::Test {
 protected:
  void SetUp() override { WriteTinyModel(temp_.path()); }
  EngineOptions Options() const {
    EngineOptions options;
    options.model = temp_.path().string();
    options.device = "cpu";
    options.num_threads = 2;
    options.context_tokens = 512;
    options.max_sequences = 8;
    options.kv_tokens = 4096;
    options.load_mtp = false;
    return options;
  }

  TempFolder temp_;
};

TEST_F(EngineActivityTest, NothingAtFirst) {
  EngineOptions options = Options();
  options.load_mtp = true;
  const EngineActivity activity = Engine::Open(options)->activity();
  EXPECT_EQ(activity.moe_layers, (std::vector<int64_t>{1, 2, 3}));  // 0 is dense, 3 the MTP layer
  EXPECT_EQ(activity.expert_uses, std::vector<uint64_t>(3 * 5, 0));
  EXPECT_EQ(activity.steps, 0u);
  EXPECT_EQ(activity.tokens, 0u);
  EXPECT_EQ(activity.step_seconds, 0);
}

// Sequences of some lengths, then a token each with its logits: by themselves or in one step.
EngineActivity AfterSome(const EngineOptions& options, bool at_once) {
  const auto engine = Engine::Open(options);
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<std::vector<int32_t>> ids;
  for (int64_t i = 0; i < 5; ++i) {
    owners.push_back(engine->NewSequence({.shares_prefixes = false}));
    ids.push_back(Tokens(i, 20 + 30 * i));
  }
  std::vector<StepPart> parts;
  for (size_t i = 0; i < 5; ++i) parts.push_back({owners[i].get(), ids[i], true, nullptr});
  std::vector<StepResult> results(5);
  for (size_t i = 0; !at_once && i < 5; ++i) {
    engine->Step(std::span(parts).subspan(i, 1), std::span(results).subspan(i, 1));
  }
  if (at_once) engine->Step(parts, results);
  return engine->activity();
}

TEST_F(EngineActivityTest, ABatchCountsAsItsSequencesAlone) {
  const EngineActivity alone = AfterSome(Options(), false), batch = AfterSome(Options(), true);
  EXPECT_EQ(alone.expert_uses, batch.expert_uses);
  EXPECT_EQ(ByLayer(batch), (std::vector<uint64_t>{2 * 400, 2 * 5}));  // two experts a token
  EXPECT_EQ(alone.tokens, 400u);
  EXPECT_EQ(batch.tokens, 400u);
  EXPECT_EQ(alone.steps, 5u);
  EXPECT_EQ(batch.steps, 1u);
  for (const char* simd : {"reference", "generic"}) {
    EngineOptions options = Options();
    options.simd = simd;
    options.num_threads = 1;
    EXPECT_EQ(AfterSome(options, true).expert_uses, batch.expert_uses) << simd;
  }
}

TEST_F(EngineActivityTest, ChunksAndDecodingCountEveryTokenOnce) {
  EngineOptions options = Options();
  options.prefill_chunk = 64;
  const auto engine = Engine::Open(options);
  const auto sequence = engine->NewSequence();
  sequence->Append(Tokens(1, 150), LogitsMode::kLast);
  EXPECT_EQ(engine->activity().steps, 3u);
  EXPECT_EQ(ByLayer(engine->activity()), (std::vector<uint64_t>{2 * 150, 2}));
  int64_t drawn = 0;
  sequence->Decode(3, {.temperature = 0}, [&](int32_t) { return ++drawn < 6; });
  EXPECT_EQ(engine->activity().steps, 9u);
  EXPECT_EQ(engine->activity().tokens, 156u);
  EXPECT_EQ(ByLayer(engine->activity()), (std::vector<uint64_t>{2 * 156, 2 * 7}));
}

// What the tap sends elsewhere counts there.
TEST_F(EngineActivityTest, ATappedRouterCountsWhatWasUsed) {
  std::vector<uint64_t> uses[2];
  for (const bool takes_other : {false, true}) {
    const auto engine = Engine::Open(Options());
    engine->SetRouterTap([&](int64_t layer, int64_t, auto, std::span<bool> take_other) {
      if (layer == 1) std::ranges::fill(take_other, takes_other);
    });
    engine->NewSequence()->Append(Tokens(1, 50), LogitsMode::kNone);
    uses[takes_other] = engine->activity().expert_uses;
    EXPECT_EQ(ByLayer(engine->activity())[0], 100u);
  }
  EXPECT_NE(uses[0], uses[1]);
}

TEST_F(EngineActivityTest, TheMtpLayerHasItsOwnRow) {
  EngineOptions options = Options();
  options.load_mtp = true;
  const auto engine = Engine::Open(options);
  const auto sequence = engine->NewSequence({.keep_hidden = true});
  sequence->Append(Tokens(1, 30), LogitsMode::kNone);
  const EngineActivity before = engine->activity();
  sequence->MtpArgmax(0);
  const EngineActivity after = engine->activity();
  EXPECT_EQ(ByLayer(before), (std::vector<uint64_t>{60, 60, 0}));
  EXPECT_EQ(ByLayer(after), (std::vector<uint64_t>{60, 60, 58}));
  EXPECT_EQ(after.tokens, before.tokens);
  EXPECT_GT(after.step_seconds, before.step_seconds);
}

TEST_F(EngineActivityTest, WhatIsCancelledBeforeAStepCountsNowhere) {
  const auto engine = Engine::Open(Options());
  const auto doomed = engine->NewSequence(), other = engine->NewSequence();
  const std::vector<int32_t> ids = Tokens(1, 20);
  const std::atomic<bool> cancel{true};
  const StepPart parts[] = {{doomed.get(), ids, false, &cancel}, {other.get(), ids, true, nullptr}};
  StepResult results[2];
  engine->Step(parts, results);
  EXPECT_EQ(engine->activity().tokens, 20u);
  EXPECT_EQ(ByLayer(engine->activity()), (std::vector<uint64_t>{40, 2}));
  engine->Step(std::span(parts).first(1), std::span(results).first(1));
  EXPECT_EQ(engine->activity().steps, 1u);
}

// Stages follow each other without a gap, so that they add up to the steps' time but for what lies
// between two readings of a clock.
TEST_F(EngineActivityTest, StagesAddUpToTheStepsTime) {
  EngineOptions options = Options();
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  const auto engine = Engine::Open(options);
  const auto sequence = engine->NewSequence();
  const auto begin = std::chrono::steady_clock::now();
  sequence->Append(Tokens(1, 400), LogitsMode::kLast);
  int64_t drawn = 0;
  sequence->Decode(3, {.temperature = 0}, [&](int32_t) { return ++drawn < 20; });
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  const EngineActivity activity = engine->activity();
  ASSERT_EQ(activity.stages.size(), kNumStages);
  double sum = 0;
  for (size_t i = 0; i < kNumStages; ++i) {
    EXPECT_EQ(activity.stages[i].name, kStageNames[i]);
    EXPECT_GT(activity.stages[i].seconds, 0) << kStageNames[i];
    sum += activity.stages[i].seconds;
  }
  EXPECT_LE(sum, activity.step_seconds * (1 + 1e-9));
  EXPECT_GT(sum, 0.8 * activity.step_seconds);  // a thread may lose its core between two readings
  EXPECT_LE(activity.step_seconds, all.count());
  // Of a small model's steps nearly everything is attention and experts.
  const auto seconds = [&](Stage stage) { return activity.stages[size_t(stage)].seconds; };
  EXPECT_GT(seconds(Stage::kAttention) + seconds(Stage::kExperts), 0.5 * sum);
  EXPECT_LT(seconds(Stage::kOther), 0.2 * sum);
  // Between steps no time passes.
  const EngineActivity again = engine->activity();
  for (size_t i = 0; i < kNumStages; ++i) {
    EXPECT_EQ(again.stages[i].seconds, activity.stages[i].seconds);
  }
}

TEST_F(EngineActivityTest, AProfileOnACpuDoesNothing) {
  const auto engine = Engine::Open(Options());
  const auto sequence = engine->NewSequence();
  EXPECT_TRUE(engine->ProfileStep(*sequence, 1).empty());
  EXPECT_EQ(engine->activity().steps, 0u);
  EXPECT_EQ(sequence->num_tokens(), 0);
}

}  // namespace
}  // namespace hillstar
