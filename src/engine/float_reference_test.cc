// The float reference against the engine's integer arithmetic: tiny models and the built-in one.
#include "model/float_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "device/host_device.h"
#include "engine/memory_plan.h"
#include "formats/container_test_files.h"
#include "hillstar/engine.h"
#include "model/float_pass.h"
#include "model/forward.h"
#include "model/tiny_checkpoint_test_files.h"
#include "numerics/likelihood.h"
#include "ops/cpu_ops.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

using Changes = std::vector<std::pair<std::string, std::string>>;

// The tiny model with weights of a trained model's size: rows of matrices of length one, norms near
// one. (Without, scores of a hundred would magnify the error of a score.) `shrink` divides
// the matrices whose products are normed.
TinyTensors TrainedTensors(const ModelConfig& config, float shrink) {
  TinyTensors tensors = MakeTinyTensors(ListTensors(config, {}, true, true), 7);
  for (auto& [name, tensor] : tensors) {
    const bool is_matrix = tensor.shape.size() == 2;
    float scale = is_matrix ? 1 / std::sqrt(float(tensor.shape[1])) : 0.1f;
    for (const char* normed : {"embed_tokens", "q_a_proj", "kv_a_proj", "indexer.wk."}) {
      if (name.find(normed) != std::string::npos) scale /= shrink;
    }
    const bool is_norm = name.ends_with("norm.weight");
    for (float& x : tensor.values) x = x * scale + (is_norm ? 1.0f : 0.0f);
  }
  return tensors;
}

// Logits of the same text by both, and what docs/numerics.md, "Against float32", says of them.
struct Comparison {
  std::vector<float> reference, engine;
  int64_t num_layers = 0;
  size_t vocab = 0;

  // Standard deviation of a logit's error, R e sqrt(9 L + 1).
  double Sigma() const {
    double variance = 0;
    for (size_t at = 0; at < reference.size(); at += vocab) {
      variance += Variance(std::span(reference).subspan(at, vocab));
    }
    const double spread = std::sqrt(variance / (double(reference.size()) / double(vocab)));
    return 7.7e-5 * std::sqrt(double(9 * num_layers + 1)) * spread;
  }
  // Root mean square of a position's errors.
  std::vector<double> ErrorsFrom(size_t position) const {
    std::vector<double> errors;
    for (size_t at = position * vocab; at < reference.size(); at += vocab) {
      double squares = 0;
      for (size_t i = at; i < at + vocab; ++i) {
        squares += std::pow(double(reference[i]) - double(engine[i]), 2);
      }
      errors.push_back(std::sqrt(squares / double(vocab)));
    }
    return errors;
  }
};

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + int64_t(values.size() / 2));
  return values[values.size() / 2];
}

std::vector<float> ReferenceLogits(FloatReference& reference, std::span<const int32_t> ids,
                                   int64_t chunk) {
  std::vector<float> all;
  reference.Run(ids, chunk, [&](int64_t, std::span<const float> logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  });
  return all;
}

constexpr int64_t kTinyTokens = 140;

std::vector<int32_t> TinyIds(int64_t vocab) {
  std::vector<int32_t> ids;
  for (int i = 0; i < kTinyTokens; ++i) ids.push_back((i * 7 + i * i) % int(vocab));
  return ids;
}

// Every expert and every key is chosen, so that nothing can fall the other way.
const Changes kNoChoices = {{"num_experts_per_tok", "5"}, {"index_topk", "512"}};

struct TinyModelFiles {
  explicit TinyModelFiles(const Changes& changes, float shrink = 1) {
    auto json = nlohmann::json::parse(kTinyConfig);
    for (const auto& [key, value] : changes) json[key] = nlohmann::json::parse(value);
    WriteTinyCheckpoint(temp.path(), TrainedTensors(ParseModelConfig(json.dump(), ""), shrink),
                        json.dump());
    source = ModelSource::Open(temp.path().string(), "w15", false);
  }
  TempFolder temp;
  std::unique_ptr<ModelSource> source;
};

Comparison CompareTiny(const Changes& changes, float shrink = 1) {
  const TinyModelFiles files(changes, shrink);
  const ModelConfig& config = files.source->config();
  HostMemory memory;
  const ModelWeights weights = LoadWeights(*files.source, memory, 1, {});
  const std::vector<int32_t> ids = TinyIds(config.vocab_size);

  const KvShape shape = KvShapeOf(*files.source, KvFormat::kQ15);
  CpuOps ops(ChooseKernels("auto"), 1, memory.budget());
  EngineSizes sizes;
  sizes.context_tokens = sizes.step_tokens = kTinyTokens;
  ops.Prepare(OpsLimits(config, shape, sizes));
  ForwardPass forward(config, weights, ops, {kTinyTokens, kTinyTokens, shape.row, shape.index});
  KvCache cache(shape, memory, KvShape::PagesOf(kTinyTokens), 0);
  SequenceKv kv(cache);
  StepSequence step{.kv = &kv};
  kv.Prepare(0, kTinyTokens);
  std::vector<BatchToken> tokens;
  for (size_t i = 0; i < ids.size(); ++i) tokens.push_back({ids[i], int64_t(i), &step});
  Comparison result;
  result.num_layers = config.num_layers;
  result.vocab = size_t(config.vocab_size);
  result.engine.resize(ids.size() * result.vocab);
  forward.Run(tokens, 0, {});
  forward.Logits(0, kTinyTokens, result.engine.data());
  FloatReference reference(config, weights, 2);
  result.reference = ReferenceLogits(reference, ids, 50);
  return result;
}

TEST(FloatReference, ATinyModelWithoutChoicesIsWithinTheIntegersError) {
  const Comparison c = CompareTiny(kNoChoices);
  const double sigma = c.Sigma();
  double squares = 0;
  for (const double error : c.ErrorsFrom(0)) {
    squares += error * error;
    EXPECT_LE(error, 2 * sigma);  // of 50 logits with errors that have much in common
  }
  EXPECT_LE(std::sqrt(squares / kTinyTokens), sigma);
  RecordProperty("rms", std::to_string(std::sqrt(squares / kTinyTokens) / sigma));
}

TEST(FloatReference, ATinyModelThatChoosesIsWithinItAtMostPositions) {
  // A choice that falls the other way moves a few positions by far more; the median knows none.
  const Comparison c = CompareTiny({});
  EXPECT_LE(Median(c.ErrorsFrom(8)), c.Sigma());
}

// Mean squares around 1e-6: the epsilons of the norms, 1e-5 and 1e-6, decide.
TEST(FloatReference, SmallValues) {
  for (const Changes& changes : {kNoChoices, Changes{}}) {
    const Comparison c = CompareTiny(changes, 1000);
    EXPECT_LE(Median(c.ErrorsFrom(8)), c.Sigma());
  }
}

TEST(FloatReference, OddShapes) {
  const Changes shapes[] = {
      {{"num_attention_heads", "1"}, {"kv_lora_rank", "32"}, {"n_shared_experts", "2"}},
      {{"qk_rope_head_dim", "2"}, {"v_head_dim", "1"}, {"q_lora_rank", "17"}},
      {{"norm_topk_prob", "false"}, {"routed_scaling_factor", "0.5"}},
      {{"index_n_heads", "0"}, {"num_attention_heads", "5"}},
  };
  for (Changes changes : shapes) {
    changes.insert(changes.end(), kNoChoices.begin(), kNoChoices.end());
    const Comparison c = CompareTiny(changes);
    EXPECT_LE(Median(c.ErrorsFrom(0)), c.Sigma()) << changes[0].first;
  }
}

// The trained model in W4 and W8, beyond its top-k of 256: selection, shared indices and router.
TEST(FloatReference, TheBuiltInModelIsWithinItAtMostPositions) {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.load_mtp = false;
  const auto engine = Engine::Open(options);
  std::string text = "[gMASK]<sop><|user|>Read these numbers: ";
  for (int i = 0; i < 150; ++i) text += std::to_string(i * i % 997) + ", ";
  std::vector<int32_t> ids = engine->tokenizer().Encode(text, AddedTokens::kParse);
  ASSERT_GE(ids.size(), 360u);
  ids.resize(360);
  const auto sequence = engine->NewSequence();
  const auto logits = sequence->Append(ids, LogitsMode::kAll);

  Comparison c;
  c.num_layers = engine->config().num_layers;
  c.vocab = size_t(engine->config().vocab_size);
  c.engine.assign(logits.begin(), logits.end());
  const auto source = ModelSource::Open(options.model, options.weights, false);
  const auto reference = FloatReference::Load(*source, 360, 2, AttentionMode::kAuto, {});
  c.reference = ReferenceLogits(*reference, ids, 128);
  const auto top_k = size_t(engine->config().index_topk);
  ASSERT_LT(top_k, ids.size());
  EXPECT_LE(Median(c.ErrorsFrom(0)), c.Sigma());
  EXPECT_LE(Median(c.ErrorsFrom(top_k)), c.Sigma());
}

TEST(FloatReference, ChunksChangeNothing) {
  const TinyModelFiles files({});
  const auto reference =
      FloatReference::Load(*files.source, kTinyTokens, 2, AttentionMode::kAuto, {});
  const std::vector<int32_t> ids = TinyIds(files.source->config().vocab_size);
  const std::vector<float> want = ReferenceLogits(*reference, ids, kTinyTokens);
  for (const int64_t chunk : {1, 7, 64}) {
    EXPECT_EQ(ReferenceLogits(*reference, ids, chunk), want) << chunk;
  }
}

// Where everything is attended to, the keys that are chosen are all: as with a top-k that no text
// reaches.
TEST(FloatReference, DenseAttentionChoosesNothing) {
  const TinyModelFiles files({}), wide(Changes{{"index_topk", "1000"}});
  const std::vector<int32_t> ids = TinyIds(files.source->config().vocab_size);
  ASSERT_LT(files.source->config().index_topk, kTinyTokens);
  const auto logits_of = [&](const ModelSource& source, AttentionMode attention) {
    return ReferenceLogits(*FloatReference::Load(source, kTinyTokens, 2, attention, {}), ids, 64);
  };
  const std::vector<float> dense = logits_of(*files.source, AttentionMode::kDense);
  EXPECT_EQ(dense, logits_of(*wide.source, AttentionMode::kSparse));
  EXPECT_NE(dense, logits_of(*files.source, AttentionMode::kSparse));
}

TEST(FloatReference, TheBestPositionsAreTheLowestOfEqualScores) {
  const std::vector<float> scores = {0, 3, 0, -1, 3, 0, 2, -0.0f};
  using Positions = std::vector<int32_t>;
  EXPECT_EQ(BestPositions(scores, 1), (Positions{1}));
  EXPECT_EQ(BestPositions(scores, 2), (Positions{1, 4}));
  EXPECT_EQ(BestPositions(scores, 4), (Positions{0, 1, 4, 6}));
  EXPECT_EQ(BestPositions(scores, 6), (Positions{0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(BestPositions(scores, 8), (Positions{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(FloatReference, RefusesWhatDoesNotFitAndIdsThatDoNotExist) {
  const TinyModelFiles files({});
  try {
    FloatReference::Load(*files.source, int64_t{1} << 40, 1, AttentionMode::kAuto, {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudget) << error.what();
  }
  const auto reference = FloatReference::Load(*files.source, 4, 1, AttentionMode::kAuto, {});
  for (const int32_t bad : {-1, 50}) {
    const std::vector<int32_t> ids = {1, bad};
    EXPECT_THROW(ReferenceLogits(*reference, ids, 1), Error) << bad;
  }
}

}  // namespace
}  // namespace hillstar
