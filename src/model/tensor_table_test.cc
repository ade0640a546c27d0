#include "model/tensor_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "model/tiny_checkpoint_test_files.h"

namespace hillstar {
namespace {

constexpr FormatPlan kPlan = {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15};

const TensorSpec& Find(const TensorTable& table, const std::string& name) {
  for (const TensorSpec& spec : table.dense) {
    if (spec.name == name) return spec;
  }
  ADD_FAILURE() << name << " is not in the table";
  return table.dense.front();
}

void Serially(int64_t n, const std::function<void(int64_t)>& job) {
  for (int64_t i = 0; i < n; ++i) job(i);
}

void InTwoThreads(int64_t n, const std::function<void(int64_t)>& job) {
  const auto run = [&](int64_t first) {
    for (int64_t i = first; i < n; i += 2) job(i);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

// The source values that a row of a tensor must have; empty for a row of padding.
std::vector<float> ExpectedRow(const TinyCheckpoint& checkpoint, const TensorSpec& spec,
                               int64_t row) {
  const TinyTensor& source = checkpoint.at(spec.source);
  std::vector<float> values;
  if (spec.recipe == TensorRecipe::kRows || spec.recipe == TensorRecipe::kVector) {
    values.assign(source.values.begin() + row * spec.cols,
                  source.values.begin() + (row + 1) * spec.cols);
    return values;
  }
  const ModelConfig config = TinyModel();
  const int64_t head = row / PaddedHeadRows(spec.head_rows);
  const int64_t in_head = row % PaddedHeadRows(spec.head_rows);
  if (in_head >= spec.head_rows) return values;
  const int64_t first = head * (config.qk_nope_dim + config.v_dim);
  for (int64_t i = 0; i < spec.cols; ++i) {
    const bool k = spec.recipe == TensorRecipe::kAbsorbK;
    const int64_t source_row = k ? first + i : first + config.qk_nope_dim + in_head;
    const int64_t source_col = k ? in_head : i;
    values.push_back(source.values[size_t(source_row * config.kv_lora_rank + source_col)]);
  }
  return values;
}

// Packs by the scalar rule of numerics/weights.h, row by row.
std::vector<uint8_t> ExpectedBytes(const TinyCheckpoint& checkpoint, const TensorSpec& spec) {
  std::vector<uint8_t> bytes(spec.num_bytes());
  std::vector<float> panel(size_t(kPanelRows * spec.cols));
  for (int64_t p = 0; p < NumPanels(spec.rows); ++p) {
    std::fill(panel.begin(), panel.end(), 0.f);
    const int64_t num_rows = std::min<int64_t>(kPanelRows, spec.rows - p * kPanelRows);
    for (int64_t r = 0; r < num_rows; ++r) {
      const auto row = ExpectedRow(checkpoint, spec, p * kPanelRows + r);
      std::copy(row.begin(), row.end(), panel.begin() + r * spec.cols);
    }
    if (spec.format == WeightFormat::kF32) {
      std::memcpy(bytes.data() + p * kPanelRows * spec.cols * int64_t(sizeof(float)), panel.data(),
                  size_t(num_rows * spec.cols) * sizeof(float));
    } else {
      PackPanel(spec.format, panel.data(), kPanelRows, spec.cols,
                bytes.data() + size_t(p * NumGroups(spec.cols)) * TileBytes(spec.format));
    }
  }
  return bytes;
}

class TensorTableTest : public testing::Test {
 protected:
  TensorTableTest()
      : table_(ListTensors(TinyModel(), kPlan, true, true)),
        checkpoint_(MakeTinyTensors(table_, 1)) {
    ExpectAll(table_, checkpoint_);
  }
  TensorTable table_;
  TinyCheckpoint checkpoint_;
};

TEST_F(TensorTableTest, ListsEveryTensorOnce) {
  std::set<std::string> names;
  for (const TensorSpec& spec : table_.dense) EXPECT_TRUE(names.insert(spec.name).second);
  for (const char* name :
       {"embed", "norm", "head", "layers.0.index_q", "layers.0.gate", "layers.1.router",
        "layers.1.shared_down", "layers.2.index_weights", "layers.3.eh_proj", "layers.3.head_norm",
        "layers.3.index_k_norm_bias"}) {
    EXPECT_EQ(names.count(name), 1u) << name;
  }
  EXPECT_EQ(names.count("layers.1.index_q"), 0u) << "a shared layer has no indexer";
  EXPECT_EQ(names.count("layers.0.router"), 0u) << "a dense layer has no router";
  ASSERT_EQ(table_.experts.size(), 3u);
  EXPECT_EQ(table_.experts[0].layer, 1);
  EXPECT_EQ(table_.experts[0].shape.format, WeightFormat::kW4);
  EXPECT_EQ(table_.experts[2].layer, 3);
  EXPECT_EQ(table_.experts[2].shape.format, WeightFormat::kW15);
  EXPECT_EQ(table_.experts[0].up(4), "model.layers.1.mlp.experts.4.up_proj.weight");
}

TEST_F(TensorTableTest, FormatsAndShapes) {
  EXPECT_EQ(Find(table_, "layers.1.router").format, WeightFormat::kF32);
  EXPECT_EQ(Find(table_, "layers.1.router").rows, 5);
  EXPECT_EQ(Find(table_, "layers.1.router_bias").cols, 5);
  EXPECT_EQ(Find(table_, "layers.0.index_weights").format, WeightFormat::kF32);
  EXPECT_EQ(Find(table_, "layers.0.q_b").rows, 3 * (24 + 8));
  EXPECT_EQ(Find(table_, "layers.0.q_b").format, WeightFormat::kW8);
  EXPECT_EQ(Find(table_, "layers.0.kv_a").rows, 40 + 8);
  EXPECT_EQ(Find(table_, "layers.0.k_absorb").rows, 3 * 48);
  EXPECT_EQ(Find(table_, "layers.0.k_absorb").cols, 24);
  EXPECT_EQ(Find(table_, "layers.0.v_absorb").rows, 3 * 32);
  EXPECT_EQ(Find(table_, "layers.0.v_absorb").cols, 40);
  EXPECT_EQ(Find(table_, "layers.3.eh_proj").cols, 144);
}

TEST_F(TensorTableTest, WithoutMtpAndIndexer) {
  ModelConfig config = TinyModel();
  EXPECT_EQ(MtpIndexerName(config), "model.layers.3.self_attn.indexer.wq_b.weight");
  const auto count = [&](bool mtp, bool mtp_indexer, std::string_view part) {
    const TensorTable table = ListTensors(config, kPlan, mtp, mtp_indexer);
    return std::count_if(table.dense.begin(), table.dense.end(), [&](const TensorSpec& spec) {
      return spec.name.find(part) != std::string::npos;
    });
  };
  EXPECT_EQ(count(false, true, "layers.3."), 0);
  EXPECT_EQ(count(true, false, "layers.3.index"), 0);
  EXPECT_EQ(count(true, true, "layers.3.index"), 5);
  config.index_num_heads = 0;
  EXPECT_EQ(count(true, true, "index"), 0);
}

TEST_F(TensorTableTest, OnlyAPredecessorsContainerMayLackTheIndexer) {
  const ModelConfig config = TinyModel();
  TinyTensors tensors = MakeTinyTensors(ListTensors(config, kPlan, false, false), 1);
  EXPECT_FALSE(LacksIndexer(config, TinyCheckpoint(tensors)));
  const std::string kept = "model.layers.2.self_attn.indexer.wk.weight";
  const TinyTensor tensor = tensors.at(kept);
  std::erase_if(tensors,
                [](const auto& t) { return t.first.find("indexer") != std::string::npos; });
  TinyCheckpoint checkpoint(tensors);
  EXPECT_FALSE(LacksIndexer(config, checkpoint));
  TensorTable table = ListTensors(config, kPlan, false, false);
  ExpectError(ErrorCode::kNotFound, {"model.layers.0.self_attn.indexer"},
              [&] { ExpectAll(table, checkpoint); });
  checkpoint.set_encoding("colibri-int4");
  EXPECT_TRUE(LacksIndexer(config, checkpoint));
  tensors[kept] = tensor;
  TinyCheckpoint partial(tensors);
  partial.set_encoding("colibri-int4");
  EXPECT_FALSE(LacksIndexer(config, partial));
}

TEST_F(TensorTableTest, PacksEveryTensorAsTheScalarRuleDoes) {
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15}) {
    const TensorTable table = ListTensors(TinyModel(), {format, format, format}, true, true);
    uint64_t dense_bytes = 0;
    for (const TensorSpec& spec : table.dense) {
      SCOPED_TRACE(spec.name);
      const auto expected = ExpectedBytes(checkpoint_, spec);
      std::vector<uint8_t> bytes(spec.num_bytes(), 0xAA);
      PackTensor(checkpoint_, spec, Serially, bytes.data());
      EXPECT_EQ(bytes, expected);
      std::fill(bytes.begin(), bytes.end(), uint8_t{0xAA});
      PackTensor(checkpoint_, spec, InTwoThreads, bytes.data());
      EXPECT_EQ(bytes, expected);
      std::vector<uint8_t> piece(spec.num_bytes());
      for (int64_t p = 0; p < NumPanels(spec.rows); ++p) {
        PackPanels(checkpoint_, spec, p, 1, piece.data());
        EXPECT_EQ(std::memcmp(piece.data(), expected.data() + PanelRangeBytes(spec, 0, p),
                              PanelRangeBytes(spec, p, 1)),
                  0);
      }
      EXPECT_EQ(PanelRangeBytes(spec, 0, NumPanels(spec.rows)), spec.num_bytes());
      dense_bytes += (spec.num_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
    }
    EXPECT_EQ(table.dense_bytes(), dense_bytes);
  }
}

TEST_F(TensorTableTest, PacksExpertsWhereTheViewsLook) {
  uint64_t expert_bytes = 0;
  for (const ExpertLayerSpec& layer : table_.experts) {
    const size_t image_bytes = ExpertImageBytes(layer.shape);
    std::vector<uint8_t> image(image_bytes, 0xAA);
    PackExpert(checkpoint_, layer, 3, image.data());
    const ExpertViews views = ViewExpert(layer.shape, image.data());
    const std::pair<const WeightView*, std::string> matrices[] = {
        {&views.gate, layer.gate(3)}, {&views.up, layer.up(3)}, {&views.down, layer.down(3)}};
    for (const auto& [view, source] : matrices) {
      TensorSpec spec;
      spec.source = source;
      spec.source_shape = {view->rows, view->cols};
      spec.format = view->format;
      spec.rows = view->rows;
      spec.cols = view->cols;
      const auto expected = ExpectedBytes(checkpoint_, spec);
      for (int64_t p = 0; p < NumPanels(view->rows); ++p) {
        EXPECT_EQ(std::memcmp(view->panel(p), expected.data() + PanelRangeBytes(spec, 0, p),
                              PanelRangeBytes(spec, p, 1)),
                  0)
            << source << " panel " << p;
      }
    }
    const size_t used = ExpertPanelOffset(layer.shape, 2, NumPanels(layer.shape.hidden));
    EXPECT_TRUE(
        std::all_of(image.begin() + int64_t(used), image.end(), [](uint8_t b) { return b == 0; }));
    expert_bytes += image_bytes * 5;
  }
  EXPECT_EQ(table_.expert_bytes(), expert_bytes);
}

TEST_F(TensorTableTest, AFailedReadIsThrownOnceAllJobsEnded) {
  class Failing : public TinyCheckpoint {
   public:
    using TinyCheckpoint::TinyCheckpoint;
    void ReadRows(std::string_view name, int64_t first, int64_t, float*) const override {
      throw Error(ErrorCode::kIo, fmt::format("no row {} of {}", first, name));
    }
  };
  const Failing failing(TinyTensors{});
  const TensorSpec& spec = Find(table_, "layers.0.o");
  std::vector<uint8_t> bytes(spec.num_bytes());
  ExpectError(ErrorCode::kIo, {"o_proj"},
              [&] { PackTensor(failing, spec, InTwoThreads, bytes.data()); });
}

// Scales of w4 and w8 are f16: the largest value that they reach is held, the next is refused.
TEST_F(TensorTableTest, ValuesBeyondAFormatsRangeAreRefusedByName) {
  class OneValue : public TinyCheckpoint {
   public:
    OneValue(const TinyTensors& tensors, float value) : TinyCheckpoint(tensors), value_(value) {}
    void ReadRows(std::string_view, int64_t, int64_t count, float* out) const override {
      std::fill_n(out, count, value_);  // of the first column or row: one is enough
    }

   private:
    float value_;
  };
  const TinyTensors tensors = MakeTinyTensors(table_, 1);
  ASSERT_FALSE(table_.experts.empty());
  ExpertLayerSpec layer = table_.experts.front();
  for (const auto& [format, limit] :
       {std::pair{WeightFormat::kW4, 7 * 65504.0f}, std::pair{WeightFormat::kW8, 127 * 65504.0f}}) {
    layer.shape.format = format;
    std::vector<uint8_t> image(ExpertImageBytes(layer.shape));
    PackExpert(OneValue(tensors, limit), layer, 0, image.data());
    const float beyond = std::nextafter(limit, std::numeric_limits<float>::infinity());
    ExpectError(ErrorCode::kUnsupported, {"gate_proj", WeightFormatName(format), "w15"},
                [&] { PackExpert(OneValue(tensors, -beyond), layer, 0, image.data()); });
  }
}

TEST_F(TensorTableTest, AMissingOrMisshapenTensorIsFoundBeforeWork) {
  for (const char* name :
       {"lm_head.weight", "model.layers.0.self_attn.kv_b_proj.weight",
        "model.layers.2.self_attn.indexer.k_norm.bias",
        "model.layers.1.mlp.experts.4.up_proj.weight", "model.layers.3.eh_proj.weight"}) {
    TinyTensors tensors = MakeTinyTensors(table_, 1);
    tensors[name].shape.back() += 1;
    TinyCheckpoint misshapen(tensors);
    ExpectError(ErrorCode::kBadFile, {name}, [&] { ExpectAll(table_, misshapen); });
    tensors.erase(name);
    TinyCheckpoint missing(tensors);
    ExpectError(ErrorCode::kNotFound, {name}, [&] { ExpectAll(table_, missing); });
  }
}

// What a conversion costs a core: an expert of GLM-5.2 has 37.7 million weights.
TEST(PackSpeed, OfAPanel) {
  constexpr int64_t kCols = 6144;
  std::vector<float> rows(size_t(kPanelRows * kCols));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : rows) value = normal(random);
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15}) {
    std::vector<uint8_t> panel(size_t(NumGroups(kCols)) * TileBytes(format));
    constexpr int kPanels = 4;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kPanels; ++i)
      PackPanel(format, rows.data(), kPanelRows, kCols, panel.data());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const double per_expert = took.count() / (kPanels * kPanelRows * kCols) * 3 * 6144 * 2048;
    std::printf("%s: %.2f s for an expert of GLM-5.2 on one core\n", WeightFormatName(format),
                per_expert);
    EXPECT_EQ(ReadTile(format, panel.data(), 0).scale != 0, true);
  }
}

}  // namespace
}  // namespace hillstar
