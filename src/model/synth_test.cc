#include "model/synth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/container_test_files.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

SynthJob PocketJob(const std::filesystem::path& out) {
  SynthJob job;
  job.out = out;
  job.geometry = "pocket";
  job.num_layers = 3;
  job.num_threads = 2;
  return job;
}

void Synthesise(const SynthJob& job) {
  SynthPlan plan = PlanSynth(job);
  RunSynth(&plan);
}

// Root mean square of all weights of a matrix, and whether every integer is one that its format
// allows.
double RootMeanSquare(const WeightView& view) {
  std::vector<float> row(size_t(view.cols));
  double sum = 0;
  for (int64_t r = 0; r < view.rows; ++r) {
    DequantiseRow(view, r, row.data());
    for (float value : row) sum += double(value) * double(value);
  }
  return std::sqrt(sum / double(view.rows * view.cols));
}

TEST(Synth, MatricesHaveUnitGainInEveryFormat) {
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15}) {
    SCOPED_TRACE(WeightFormatName(format));
    const TempFolder root;
    SynthJob job = PocketJob(root.path() / "out");
    job.formats = {format, format, format};
    Synthesise(job);
    const auto container = Container::Open(job.out);
    const auto rms = [&](const char* name) {
      const ContainerTensor& tensor = *container->Find(name);
      std::vector<uint8_t> bytes(tensor.num_bytes);
      container->ReadTensor(tensor, bytes.data());
      return RootMeanSquare(DenseView(tensor.format, tensor.rows, tensor.cols, bytes.data()));
    };
    // 1 % is ten times the sampling error of the smallest matrix here (32 * 384 values).
    EXPECT_NEAR(rms("embed"), 1, 0.01);
    EXPECT_NEAR(rms("layers.0.o") * std::sqrt(1024), 1, 0.01);
    EXPECT_NEAR(rms("layers.1.k_absorb") * std::sqrt(64), 1, 0.01);
    EXPECT_NEAR(rms("layers.1.router") * std::sqrt(384), 1, 0.02);
    EXPECT_EQ(rms("layers.1.input_norm"), 1);
    EXPECT_EQ(rms("layers.0.index_k_norm_bias"), 0);
    EXPECT_LT(rms("layers.1.router_bias"), 0.011);
    EXPECT_GT(rms("layers.1.router_bias"), 0);
    const ContainerExperts& layer = container->experts()[0];
    std::vector<uint8_t> image(layer.image_bytes), other(layer.image_bytes);
    container->ReadExperts(layer, 0, 1, image.data());
    const ExpertViews views = ViewExpert(layer.shape, image.data());
    EXPECT_NEAR(RootMeanSquare(views.gate) * std::sqrt(384), 1, 0.01);
    EXPECT_NEAR(RootMeanSquare(views.up) * std::sqrt(384), 1, 0.01);
    EXPECT_NEAR(RootMeanSquare(views.down) * std::sqrt(128), 1, 0.01);
    container->ReadExperts(layer, 1, 1, other.data());
    EXPECT_NE(image, other) << "experts differ";
    if (format == WeightFormat::kW4) continue;
    // -128 is no value of w8 and w15.
    for (size_t tile = 0; tile < ExpertPanelOffset(layer.shape, 2, 24); tile += TileBytes(format)) {
      const size_t planes = format == WeightFormat::kW8 ? 1024 : 2048;
      for (size_t i = 0; i < planes; ++i) ASSERT_NE(image[tile + i], 0);
    }
  }
}

TEST(Synth, TheSameJobWritesTheSameBytesAndCanBeContinued) {
  const TempFolder root;
  Synthesise(PocketJob(root.path() / "a"));
  SynthJob job = PocketJob(root.path() / "b");
  job.num_threads = 1;
  std::atomic<bool> cancel{false};
  SynthPlan plan = PlanSynth(job);
  int reports = 0;
  ExpectError(ErrorCode::kCancelled, {"stopped"}, [&] {
    RunSynth(
        &plan, [&](uint64_t, uint64_t) { cancel = ++reports == 60; }, &cancel);
  });
  plan.writer.reset();
  SynthJob other = job;
  other.seed = 2;
  ExpectError(ErrorCode::kUsage, {"another seed"}, [&] { PlanSynth(other); });
  Synthesise(job);
  EXPECT_EQ(FolderContent(root.path() / "a"), FolderContent(root.path() / "b"));
}

TEST(Synth, TheLargeGeometryIsGlm) {
  SynthJob job;
  job.out = "unused";
  job.formats.dense = WeightFormat::kW4;
  const SynthPlan plan = PlanSynth(job);
  const ModelConfig& config = plan.config;
  EXPECT_EQ(config.num_layers, 78);
  EXPECT_EQ(config.num_dense_layers, 3);
  EXPECT_EQ(config.num_mtp_layers, 0);
  EXPECT_EQ(config.vocab_size, 154880);
  std::vector<int64_t> full;
  for (int64_t i = 0; i < 78; ++i) {
    if (config.layer_has_indexer[size_t(i)]) full.push_back(i);
  }
  EXPECT_EQ(full.size(), 21u);
  EXPECT_EQ(std::vector<int64_t>(full.begin(), full.begin() + 5),
            (std::vector<int64_t>{0, 1, 2, 6, 10}));
  EXPECT_EQ(full.back(), 74);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{154820, 154827, 154829}));
  // 743.2 billion parameters without the MTP layer, in w4 at 0.5 + 1/32 bytes each.
  const double parameters = double(plan.table.dense_bytes() + plan.table.expert_bytes()) / 0.53125;
  EXPECT_NEAR(parameters / 743.2e9, 1, 0.01);
  EXPECT_FALSE(std::filesystem::exists("unused"));
}

TEST(Synth, FewerLayersHaveOneDense) {
  SynthJob job;
  job.out = "unused";
  job.num_layers = 3;
  EXPECT_EQ(PlanSynth(job).config.num_dense_layers, 1);
  EXPECT_EQ(PlanSynth(job).table.experts.size(), 2u);
  job.num_dense_layers = 2;
  EXPECT_EQ(PlanSynth(job).table.experts.size(), 1u);
  job.with_mtp = true;
  EXPECT_EQ(PlanSynth(job).table.experts.size(), 2u);
  for (const auto& [layers, dense] : {std::pair<int64_t, int64_t>{-1, -1}, {79, -1}, {3, 4}}) {
    job.num_layers = layers;
    job.num_dense_layers = dense;
    ExpectError(ErrorCode::kUsage, {"layers"}, [&] { PlanSynth(job); });
  }
  job = SynthJob();
  job.geometry = "gpt-2";
  ExpectError(ErrorCode::kUsage, {"gpt-2", "pocket"}, [&] { PlanSynth(job); });
}

TEST(Synth, TheTokenizerKnowsBytesAndAddedTokens) {
  for (const char* geometry : {"glm-5.2", "pocket"}) {
    SCOPED_TRACE(geometry);
    SynthJob job;
    job.geometry = geometry;
    const ModelConfig config = ParseModelConfig(SynthConfigJson(job), "");
    const auto tokenizer = Tokenizer::FromJson(SynthTokenizerJson(job));
    EXPECT_EQ(tokenizer->vocab_size(), config.vocab_size);
    std::string text;
    for (int byte = 0; byte < 256; ++byte) text += char(byte);
    text += " Grüße, w1234 und 汉字";
    const auto ids = tokenizer->Encode(text, AddedTokens::kParse);
    EXPECT_EQ(ids.size(), text.size()) << "one token a byte";
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
    const auto marked = tokenizer->Encode("<|user|>", AddedTokens::kParse);
    ASSERT_EQ(marked.size(), 1u);
    EXPECT_EQ(marked[0], config.eos_ids[1]);
    EXPECT_TRUE(tokenizer->AddedTokenId("[gMASK]").has_value());
    for (int32_t id = 0; id < config.vocab_size; id += 997) {
      const int32_t one[] = {id};
      EXPECT_FALSE(tokenizer->Decode(one, false).empty()) << id;
    }
  }
}

}  // namespace
}  // namespace hillstar
