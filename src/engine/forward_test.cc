// The forward pass on tiny models of odd shapes: every level, thread count, cut of a prompt and mix
// of sequences in a step gives the reference's logits, by memcmp.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "device/host_device.h"
#include "engine/memory_plan.h"
#include "formats/container_test_files.h"
#include "model/forward.h"
#include "model/tiny_checkpoint_test_files.h"
#include "ops/cpu_ops.h"

namespace hillstar {
namespace {

// Fields of the tiny model's config.json and what they become.
using Changes = std::vector<std::pair<std::string, std::string>>;

std::string ConfigWith(const Changes& changes) {
  auto config = nlohmann::json::parse(kTinyConfig);
  for (const auto& [key, value] : changes) config[key] = nlohmann::json::parse(value);
  return config.dump();
}

class ForwardTest : public testing::Test {
 protected:
  static constexpr int64_t kLongest = 140;  // beyond the tiny model's index_topk, several pages

  void Load(const Changes& changes, KvFormat format = KvFormat::kQ15, bool mtp_has_indexer = true) {
    const std::string text = ConfigWith(changes);
    const std::filesystem::path folder = temp_.path() / std::to_string(num_models_++);
    const ModelConfig config = ParseModelConfig(text, "");
    WriteTinyCheckpoint(folder, MakeTinyTensors(ListTensors(config, {}, true, mtp_has_indexer), 7),
                        text);
    const auto source = ModelSource::Open(folder.string(), "w15", true);
    config_ = source->config();
    shape_ = KvShapeOf(*source, format);
    weights_ = LoadWeights(*source, memory_, 1, {});
    sequences_.clear();
    for (int q = 0; q < 3; ++q) {
      sequences_.emplace_back();
      for (int i = 0; i < kLongest - 17 * q; ++i) {
        sequences_.back().push_back((i * 7 + q * 11 + i * i) % int(config_.vocab_size));
      }
    }
  }

  EngineSizes SizesFor(int64_t max_tokens, int64_t context) const {
    EngineSizes sizes;
    sizes.context_tokens = context;
    sizes.step_tokens = max_tokens;
    sizes.num_threads = 2;
    sizes.attention = mode_;
    return sizes;
  }

  // A backend and a forward pass over it.
  struct Run {
    Run(const ForwardTest& test, const CpuKernels& kernels, int threads, int64_t max_tokens,
        int64_t context = kLongest)
        : ops(kernels, threads, memory.budget()),
          shape(test.shape_),
          pages(shape, memory, 64, 0),
          forward(Prepared(test, max_tokens, context), test.weights_, ops,
                  {max_tokens, context, shape.row, shape.index, test.mode_}) {}

    const ModelConfig& Prepared(const ForwardTest& test, int64_t max_tokens, int64_t context) {
      ops.Prepare(OpsLimits(test.config_, shape, test.SizesFor(max_tokens, context)));
      return test.config_;
    }
    HostMemory memory;
    CpuOps ops;
    KvShape shape;
    KvCache pages;
    ForwardPass forward;
  };

  // A sequence with room for num_tokens, and its part in a step.
  struct Part {
    Part(Run& run, int64_t num_tokens) : kv(run.pages) {
      kv.Prepare(0, num_tokens);
      step.kv = &kv;
    }
    SequenceKv kv;
    StepSequence step;
  };

  std::vector<float> Alone(const CpuKernels& kernels, int threads, int64_t chunk,
                           const std::vector<int32_t>& ids) const {
    Run run(*this, kernels, threads, chunk);
    Part part(run, int64_t(ids.size()));
    std::vector<float> logits(ids.size() * size_t(config_.vocab_size));
    for (size_t at = 0; at < ids.size(); at += size_t(chunk)) {
      std::vector<BatchToken> tokens;
      for (size_t i = at; i < std::min(ids.size(), at + size_t(chunk)); ++i) {
        tokens.push_back({ids[i], int64_t(i), &part.step});
      }
      run.forward.Run(tokens, 0, {});
      run.forward.Logits(0, int64_t(tokens.size()),
                         logits.data() + at * size_t(config_.vocab_size));
    }
    return logits;
  }

  // All sequences side by side, in steps of up to 39 tokens of each. Returns how many tokens'
  // logits differ from `want`.
  int Together(const CpuKernels& kernels, int threads,
               const std::vector<std::vector<float>>& want) const {
    Run run(*this, kernels, threads, 128);
    std::vector<std::unique_ptr<Part>> parts;
    for (const auto& ids : sequences_) {
      parts.push_back(std::make_unique<Part>(run, int64_t(ids.size())));
    }
    const auto vocab = size_t(config_.vocab_size);
    std::vector<size_t> done(sequences_.size());
    uint32_t random = 1;
    int num_different = 0;
    while (true) {
      std::vector<BatchToken> tokens;
      std::vector<const float*> expected;
      bool all_done = true;
      for (size_t q = 0; q < sequences_.size(); ++q) {
        random = random * 1664525u + 1013904223u;
        for (size_t n = (random >> 16) % 40; n > 0 && done[q] < sequences_[q].size(); --n) {
          expected.push_back(want[q].data() + done[q] * vocab);
          tokens.push_back({sequences_[q][done[q]], int64_t(done[q]), &parts[q]->step});
          ++done[q];
        }
        all_done = all_done && done[q] == sequences_[q].size();
      }
      if (!tokens.empty()) {
        run.forward.Run(tokens, 0, {});
        std::vector<float> logits(tokens.size() * vocab);
        run.forward.Logits(0, int64_t(tokens.size()), logits.data());
        for (size_t i = 0; i < tokens.size(); ++i) {
          num_different += std::memcmp(&logits[i * vocab], expected[i], vocab * sizeof(float)) != 0;
        }
      }
      if (all_done) return num_different;
    }
  }

  void ExpectSameBitsEverywhere() const {
    std::vector<std::vector<float>> want;
    for (const auto& ids : sequences_) {
      want.push_back(Alone(ChooseKernels("reference"), 1, kLongest, ids));
    }
    for (const CpuKernels* kernels : AvailableKernels()) {
      for (int threads : {1, 3}) {
        for (int64_t chunk : {int64_t{1}, int64_t{17}, kLongest}) {
          if (chunk == 1 && std::string(kernels->level) == "reference") continue;
          const std::vector<float> got = Alone(*kernels, threads, chunk, sequences_[0]);
          EXPECT_EQ(std::memcmp(got.data(), want[0].data(), got.size() * sizeof(float)), 0)
              << kernels->level << ", " << threads << " threads, chunks of " << chunk;
        }
        EXPECT_EQ(Together(*kernels, threads, want), 0)
            << kernels->level << ", " << threads << " threads, three sequences in a step";
      }
    }
  }

  TempFolder temp_;
  int num_models_ = 0;
  HostMemory memory_;
  ModelConfig config_;
  KvShape shape_;
  ModelWeights weights_;
  std::vector<std::vector<int32_t>> sequences_;
  AttentionMode mode_ = AttentionMode::kAuto;
};

TEST_F(ForwardTest, TheTinyModel) {
  Load({});
  ExpectSameBitsEverywhere();
}

TEST_F(ForwardTest, OneHeadAndOneExpert) {
  Load({{"num_attention_heads", "1"},
        {"n_routed_experts", "1"},
        {"num_experts_per_tok", "1"},
        {"kv_lora_rank", "32"}});
  ExpectSameBitsEverywhere();
}

TEST_F(ForwardTest, EveryExpertChosenAndOneKeySelected) {
  Load({{"num_experts_per_tok", "5"}, {"index_topk", "1"}});
  ExpectSameBitsEverywhere();
}

TEST_F(ForwardTest, DimensionsOfOne) {
  Load({{"v_head_dim", "1"},
        {"qk_nope_head_dim", "1"},
        {"qk_rope_head_dim", "2"},
        {"kv_lora_rank", "1"},
        {"q_lora_rank", "1"},
        {"moe_intermediate_size", "1"},
        {"hidden_size", "5"},
        {"intermediate_size", "3"},
        {"index_n_heads", "1"}});
  ExpectSameBitsEverywhere();
}

TEST_F(ForwardTest, TheLargestLatentAndAnUnevenRope) {
  Load({{"kv_lora_rank", "512"}, {"qk_rope_head_dim", "66"}, {"index_head_dim", "80"}});
  ExpectSameBitsEverywhere();
}

// Beyond index_topk, so that the indexer's keys of one plane choose as well.
TEST_F(ForwardTest, KvInQ8) {
  Load({{"index_topk", "16"}}, KvFormat::kQ8);
  ExpectSameBitsEverywhere();
}

TEST_F(ForwardTest, KvInFp8) {
  Load({{"index_topk", "16"}, {"kv_lora_rank", "96"}}, KvFormat::kFp8);
  ExpectSameBitsEverywhere();
}

// The format is not merely named: it decides the bytes of a page and the logits.
TEST_F(ForwardTest, EveryKvFormatGivesOtherLogits) {
  std::vector<std::vector<float>> logits;
  for (const KvFormat format : kAllKvFormats) {
    Load({}, format);
    logits.push_back(Alone(ChooseKernels("auto"), 2, kLongest, sequences_[0]));
    for (size_t i = 0; i + 1 < logits.size(); ++i) EXPECT_NE(logits[i], logits.back());
  }
}

TEST_F(ForwardTest, NoIndexer) {
  Load({{"index_n_heads", "0"}});
  ExpectSameBitsEverywhere();
}

// An MTP layer without an indexer attends to all keys, far more than index_topk, while the model's
// layers select.
TEST_F(ForwardTest, AnMtpLayerWithoutAnIndexer) {
  constexpr int64_t kContext = 600, kChunk = 100;  // three splits of keys
  for (const KvFormat format : kAllKvFormats) {
    Load({{"index_topk", "16"}}, format, /*mtp_has_indexer=*/false);
    std::vector<float> want;
    for (const CpuKernels* kernels : {&ChooseKernels("reference"), &ChooseKernels("auto")}) {
      Run run(*this, *kernels, 2, kChunk, kContext);
      Part part(run, kContext);
      std::vector<float> logits(size_t(config_.vocab_size));
      for (int64_t at = 0; at < kContext; at += kChunk) {
        std::vector<BatchToken> tokens;
        for (int64_t i = at; i < at + kChunk; ++i) {
          tokens.push_back({int32_t(i * 13 % config_.vocab_size), i, &part.step});
        }
        run.forward.Run(tokens, 0, {});
        std::vector<float> hidden(size_t(kChunk * config_.hidden_size));
        run.forward.ReadResidual(kChunk, hidden.data());
        run.forward.RunMtp(tokens, hidden.data());
        run.forward.MtpLogits(kChunk - 1, 1, logits.data());
      }
      if (want.empty()) want = logits;
      EXPECT_EQ(std::memcmp(want.data(), logits.data(), want.size() * sizeof(float)), 0);
    }
  }
}

TEST_F(ForwardTest, AttentionModesAgreeWhereEverythingIsSelected) {
  using enum AttentionMode;
  const auto logits = [&](AttentionMode mode) {
    mode_ = mode;
    return Alone(ChooseKernels("auto"), 2, 57, sequences_[0]);
  };
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  };
  Load({{"index_topk", std::to_string(kLongest)}});
  for (AttentionMode mode : {kDense, kSparse, kFullList}) {
    EXPECT_TRUE(same(logits(kAuto), logits(mode))) << int(mode);
  }
  Load({{"index_topk", "16"}});
  EXPECT_TRUE(same(logits(kAuto), logits(kSparse)));
  EXPECT_TRUE(same(logits(kDense), logits(kFullList)));
  EXPECT_FALSE(same(logits(kAuto), logits(kDense)));  // the switch does something
}

// Of three sequences in a step one is cancelled and one meets a value that is not finite: the third
// keeps its bits, wherever it stands.
TEST_F(ForwardTest, WhoLeavesAStepDisturbsNobody) {
  using Outcome = StepSequence::Outcome;
  Load({});
  const auto vocab = size_t(config_.vocab_size);
  constexpr size_t kFirst = 50, kTokens = 30;
  const std::vector<int32_t>& ids = sequences_[0];
  const std::vector<float> want = Alone(ChooseKernels("auto"), 2, kLongest, ids);
  for (size_t good = 0; good < 3; ++good) {
    Run run(*this, ChooseKernels("auto"), 2, kLongest);
    std::vector<std::unique_ptr<Part>> parts;
    std::atomic<bool> cancel{false};
    for (size_t q = 0; q < 3; ++q) {
      parts.push_back(std::make_unique<Part>(run, kFirst + kTokens));
      std::vector<BatchToken> tokens;
      for (size_t i = 0; i < kFirst; ++i) tokens.push_back({ids[i], int64_t(i), &parts[q]->step});
      run.forward.Run(tokens, 0, {});
    }
    StepSequence& bad = parts[(good + 1) % 3]->step;
    StepSequence& cancelled = parts[(good + 2) % 3]->step;
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bad.kv->latents(1).row(shape_.row, 7) + shape_.row.latent_part().scale_at,
                &infinity, sizeof infinity);
    cancelled.cancel = &cancel;
    std::vector<BatchToken> tokens;
    for (size_t i = kFirst; i < kFirst + kTokens; ++i) {
      for (const auto& part : parts) tokens.push_back({ids[i], int64_t(i), &part->step});
    }
    run.forward.Run(tokens, 0, [&](int64_t layer, const float*) { cancel = layer >= 1; });
    EXPECT_EQ(cancelled.outcome, Outcome::kCancelled);
    EXPECT_EQ(bad.outcome, Outcome::kNonFinite);
    EXPECT_EQ(bad.bad_layer, 1);
    EXPECT_EQ(bad.bad_position, int64_t(kFirst));
    ASSERT_EQ(run.forward.rows().size(), kTokens);
    std::vector<float> logits(kTokens * vocab);
    run.forward.Logits(0, kTokens, logits.data());
    EXPECT_EQ(std::memcmp(logits.data(), want.data() + kFirst * vocab, logits.size() * 4), 0);
    for (size_t i = 0; i < kTokens; ++i) {
      EXPECT_EQ(size_t(run.forward.rows()[i]), 3 * i + good);
    }
  }
}

// An index score that is not finite, at a position where all keys up to it are more than a list:
// its sequence ends, the other one of the step keeps its bits.
TEST_F(ForwardTest, ABadIndexScoreFarInEndsItsSequenceAlone) {
  // Five splits of keys, where the backend has memory for the two that two lists take.
  constexpr int64_t kContext = 1100, kPosition = kContext - 1, kOther = 40, kTokens = 2;
  Load({{"max_position_embeddings", "2048"}});
  const auto vocab = size_t(config_.vocab_size);
  const std::vector<int32_t>& ids = sequences_[0];
  const std::vector<float> want = Alone(ChooseKernels("auto"), 2, kLongest, ids);
  for (const int threads : {1, 3}) {  // a token a worker; all workers on one token
    Run run(*this, ChooseKernels("auto"), threads, kTokens, kContext);
    Part bad(run, kContext), good(run, kContext);
    for (int64_t i = 0; i < kOther; ++i) {
      run.forward.Run(std::array{BatchToken{ids[size_t(i)], i, &good.step}}, 0, {});
    }
    // Pages of zeros stand for the keys before; some of both signs meet a query of either.
    for (int64_t pos = 0; pos < kPosition; ++pos) {
      const std::vector<int8_t> key(size_t(shape_.index.dim), pos % 2 == 0 ? 90 : -90);
      StoreIndexKey(shape_.index, bad.kv.index_keys(0), pos, key.data(), key.data(),
                    std::numeric_limits<float>::infinity());
    }
    const std::array tokens = {BatchToken{1, kPosition, &bad.step},
                               BatchToken{ids[size_t(kOther)], kOther, &good.step}};
    run.forward.Run(tokens, 0, {});
    EXPECT_EQ(bad.step.outcome, StepSequence::Outcome::kNonFinite);
    EXPECT_EQ(bad.step.bad_layer, 0);
    EXPECT_EQ(bad.step.bad_position, kPosition);
    ASSERT_EQ(run.forward.rows().size(), 1u);
    EXPECT_EQ(run.forward.rows()[0], 1);
    std::vector<float> logits(vocab);
    run.forward.Logits(0, 1, logits.data());
    EXPECT_EQ(std::memcmp(logits.data(), want.data() + kOther * int64_t(vocab), 4 * vocab), 0);
  }
}

// Two sequences leave between two layers, of which the last one computes only the rows that are
// wanted: one is cancelled while the first layer with a router runs, one meets a value that is not
// finite. Those that stay keep their bits, and whoever is wanted comes out, in every order.
TEST_F(ForwardTest, WhoLeavesInAMiddleLayerDisturbsNobody) {
  using Outcome = StepSequence::Outcome;
  Load({{"num_hidden_layers", "4"}, {"indexer_types", R"(["full", "shared", "shared", "full"])"}});
  const auto vocab = size_t(config_.vocab_size);
  constexpr size_t kFirst = 50, kTokens = 30, kParts = 4;
  constexpr int64_t kLeftLayer = 1;  // of 4, the first with a router
  const std::vector<int32_t>& ids = sequences_[0];
  const std::vector<float> want = Alone(ChooseKernels("auto"), 2, kLongest, ids);
  for (size_t turn = 0; turn < kParts; ++turn) {
    Run run(*this, ChooseKernels("auto"), 2, kLongest);
    std::vector<std::unique_ptr<Part>> parts;
    for (size_t q = 0; q < kParts; ++q) {
      parts.push_back(std::make_unique<Part>(run, kFirst + kTokens + 1));
      std::vector<BatchToken> tokens;
      for (size_t i = 0; i < kFirst; ++i) tokens.push_back({ids[i], int64_t(i), &parts[q]->step});
      run.forward.Run(tokens, 0, {});
    }
    Part& wanted = *parts[turn];
    Part& unwanted = *parts[(turn + 1) % kParts];
    StepSequence& bad = parts[(turn + 2) % kParts]->step;
    StepSequence& cancelled = parts[(turn + 3) % kParts]->step;
    const float infinity = std::numeric_limits<float>::infinity();
    std::memcpy(bad.kv->latents(kLeftLayer).row(shape_.row, 7) + shape_.row.latent_part().scale_at,
                &infinity, sizeof infinity);
    std::atomic<bool> cancel{false};
    cancelled.cancel = &cancel;
    std::map<int64_t, size_t> rows;  // of each layer
    run.forward.SetRouterTap(
        [&](int64_t layer, int64_t, std::span<const float> gaps, std::span<bool>) {
          rows[layer] = gaps.size();
          cancel = layer >= kLeftLayer;
        });
    std::vector<BatchToken> tokens;
    for (size_t i = kFirst; i < kFirst + kTokens; ++i) {
      for (const auto& part : parts) tokens.push_back({ids[i], int64_t(i), &part->step});
    }
    // The last token of each but `unwanted` is wanted.
    std::stable_partition(tokens.begin(), tokens.end(), [&](const BatchToken& t) {
      return t.position + 1 < int64_t(kFirst + kTokens) || t.sequence == &unwanted.step;
    });
    run.forward.Run(tokens, int64_t(tokens.size() - kParts + 1), {});
    EXPECT_EQ(rows, (std::map<int64_t, size_t>{{1, 4 * kTokens}, {2, 2 * kTokens}, {3, 1}}));
    EXPECT_EQ(cancelled.outcome, Outcome::kCancelled);
    EXPECT_EQ(bad.outcome, Outcome::kNonFinite);
    EXPECT_EQ(bad.bad_layer, kLeftLayer);
    ASSERT_EQ(run.forward.rows().size(), 1u);
    EXPECT_EQ(tokens[size_t(run.forward.rows()[0])].sequence, &wanted.step);
    std::vector<float> logits(vocab);
    run.forward.Logits(0, 1, logits.data());
    const float* last = want.data() + (kFirst + kTokens - 1) * vocab;
    EXPECT_EQ(std::memcmp(logits.data(), last, 4 * vocab), 0) << turn;
    // The rows that the others stored are right.
    run.forward.SetRouterTap({});
    for (Part* part : {&wanted, &unwanted}) {
      const int64_t next = kFirst + kTokens;
      run.forward.Run(std::array{BatchToken{ids[size_t(next)], next, &part->step}}, 0, {});
      run.forward.Logits(0, 1, logits.data());
      EXPECT_EQ(std::memcmp(logits.data(), last + vocab, 4 * vocab), 0) << turn;
    }
  }
}

// A router tap sees gaps, changes nothing by itself, and what it changes at one token reaches that
// token and later ones only.
TEST_F(ForwardTest, ARouterTapCanTakeTheOtherExpert) {
  Load({});
  const std::vector<int32_t>& ids = sequences_[0];
  const auto vocab = size_t(config_.vocab_size);
  constexpr int64_t kFlipped = 20;
  const auto logits_with = [&](const RouterTap& tap) {
    Run run(*this, ChooseKernels("auto"), 2, kLongest);
    run.forward.SetRouterTap(tap);
    Part part(run, int64_t(ids.size()));
    std::vector<BatchToken> tokens;
    for (size_t i = 0; i < ids.size(); ++i) tokens.push_back({ids[i], int64_t(i), &part.step});
    run.forward.Run(tokens, 0, {});
    std::vector<float> logits(ids.size() * vocab);
    run.forward.Logits(0, int64_t(ids.size()), logits.data());
    return logits;
  };
  const auto same_until = [&](const std::vector<float>& a, const std::vector<float>& b) {
    size_t t = 0;
    while (t < ids.size() &&
           std::memcmp(&a[t * vocab], &b[t * vocab], vocab * sizeof(float)) == 0) {
      ++t;
    }
    return int64_t(t);
  };
  const std::vector<float> want = logits_with({});
  const auto whole = int64_t(ids.size());
  std::map<int64_t, std::vector<float>> seen;  // gaps of each layer
  const RouterTap look = [&](int64_t layer, int64_t pos, std::span<const float> gaps,
                             std::span<bool>) {
    EXPECT_EQ(pos, 0);
    seen[layer] = {gaps.begin(), gaps.end()};
  };
  EXPECT_EQ(same_until(want, logits_with(look)), whole);
  ASSERT_FALSE(seen.empty());
  for (const auto& [layer, gaps] : seen) {
    EXPECT_EQ(gaps.size(), ids.size());
    EXPECT_GE(*std::min_element(gaps.begin(), gaps.end()), 0) << layer;
  }
  const int64_t first_moe = seen.begin()->first;
  const RouterTap flip = [&](int64_t layer, int64_t, std::span<const float>,
                             std::span<bool> others) { others[kFlipped] = layer == first_moe; };
  EXPECT_EQ(same_until(want, logits_with(flip)), kFlipped);
  // Where every expert is chosen there is no other one.
  Load({{"num_experts_per_tok", "5"}});
  EXPECT_EQ(same_until(logits_with({}), logits_with(flip)), whole);
}

// Rows that one mode has stored go on in any other.
TEST_F(ForwardTest, EveryModeStoresTheSameRows) {
  using enum AttentionMode;
  Load({{"index_topk", std::to_string(kPageTokens)}});
  std::vector<std::vector<uint8_t>> pages;  // of each mode
  for (AttentionMode mode : {kAuto, kDense, kSparse, kFullList}) {
    mode_ = mode;
    Run run(*this, ChooseKernels("auto"), 2, kPageTokens);
    Part part(run, kPageTokens);
    std::vector<BatchToken> tokens;
    for (int64_t i = 0; i < kPageTokens; ++i) {
      tokens.push_back({sequences_[0][size_t(i)], i, &part.step});
    }
    run.forward.Run(tokens, 0, {});
    pages.emplace_back(size_t(shape_.page_bytes()));
    part.kv.ReadPage(0, pages.back());
    const auto keys = std::span(pages.back()).subspan(size_t(shape_.latent_page_bytes()));
    EXPECT_GT(std::ranges::count_if(keys, [](uint8_t b) { return b != 0; }), 0);
    EXPECT_EQ(pages.back(), pages.front()) << int(mode);
  }
}

TEST_F(ForwardTest, OnlyWhatSelectsTakesMemoryForIt) {
  using enum AttentionMode;
  Load({});
  constexpr int64_t kTokens = 32, kShort = 5;
  ASSERT_GT(config_.index_topk, kShort);
  const auto bytes = [&](AttentionMode mode, int64_t context) {
    return WorkspaceBytes(config_, kTokens, context, mode);
  };
  const uint64_t bare = bytes(kDense, kLongest);
  const auto lists = [](int64_t keys) { return uint64_t(kTokens * keys) * sizeof(int32_t); };
  // Floats and two planes of each query, its weight as projected and with its scale.
  const auto queries = uint64_t(kTokens * config_.index_num_heads) *
                       (uint64_t(config_.index_head_dim) * 6 + 2 * sizeof(float));
  EXPECT_EQ(bytes(kDense, kShort), bare);
  EXPECT_EQ(bytes(kAuto, config_.index_topk), bare);
  EXPECT_EQ(bytes(kAuto, config_.index_topk + 1), bare + lists(config_.index_topk) + queries);
  EXPECT_EQ(bytes(kSparse, kLongest), bare + lists(config_.index_topk) + queries);
  EXPECT_EQ(bytes(kSparse, kShort), bare + lists(kShort));
  EXPECT_EQ(bytes(kFullList, kLongest), bare + lists(kLongest));
}

TEST_F(ForwardTest, TakesTheWorkspaceThatThePlanSays) {
  using enum AttentionMode;
  constexpr int64_t kTokens = 32;
  const auto expect_planned = [&](int64_t context) {
    const Run run(*this, ChooseKernels("auto"), 2, kTokens, context);
    const uint64_t planned =
        WorkspaceBytes(config_, kTokens, context, mode_) +
        CpuOps::PreparedBytes(OpsLimits(config_, shape_, SizesFor(kTokens, context)), 2) +
        RopeTable::Bytes(config_.qk_rope_dim, context);
    const uint64_t used = run.memory.budget().used(MemoryTag::kWorkspace);
    EXPECT_GE(used, planned);
    EXPECT_LT(used - planned, uint64_t{64} * 64);  // less than 64 bytes of alignment an array
  };
  for (const KvFormat format : kAllKvFormats) {
    Load({}, format);
    for (AttentionMode mode : {kAuto, kDense, kSparse, kFullList}) {
      mode_ = mode;
      for (int64_t context : {int64_t{5}, kLongest}) expect_planned(context);
    }
  }
}

}  // namespace
}  // namespace hillstar
