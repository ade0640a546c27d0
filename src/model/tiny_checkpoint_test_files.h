// For tests: a Hugging Face checkpoint of a very small model with every kind of tensor, and with
// sizes that are multiples of nothing, as values in memory and as files.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint.h"
#include "formats/safetensors_test_files.h"
#include "model/config.h"
#include "model/tensor_table.h"

namespace hillstar {

inline constexpr const char* kTinyConfig = R"({
 "model_type": "glm_moe_dsa", "vocab_size": 50, "hidden_size": 72, "intermediate_size": 100,
 "moe_intermediate_size": 40, "num_hidden_layers": 3, "first_k_dense_replace": 1,
 "num_attention_heads": 3, "q_lora_rank": 36, "kv_lora_rank": 40, "qk_nope_head_dim": 24,
 "qk_rope_head_dim": 8, "v_head_dim": 20, "n_routed_experts": 5, "num_experts_per_tok": 2,
 "n_shared_experts": 1, "routed_scaling_factor": 2.5, "index_topk": 8, "index_head_dim": 16,
 "index_n_heads": 2, "indexer_types": ["full", "shared", "full"], "rms_norm_eps": 1e-05,
 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
 "max_position_embeddings": 512, "num_nextn_predict_layers": 1, "eos_token_id": 0})";

struct TinyTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using TinyTensors = std::map<std::string, TinyTensor>;

// Random values for every source that the table names.
inline TinyTensors MakeTinyTensors(const TensorTable& table, uint32_t seed) {
  TinyTensors tensors;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
    if (tensors.count(name) != 0) return;
    int64_t size = 1;
    for (int64_t n : shape) size *= n;
    TinyTensor& tensor = tensors[name];
    tensor.shape = shape;
    for (int64_t i = 0; i < size; ++i) tensor.values.push_back(normal(random));
  };
  for (const TensorSpec& spec : table.dense) add(spec.source, spec.source_shape);
  for (const ExpertLayerSpec& layer : table.experts) {
    for (int64_t e = 0; e < layer.num_experts; ++e) {
      add(layer.gate(e), {layer.shape.intermediate, layer.shape.hidden});
      add(layer.up(e), {layer.shape.intermediate, layer.shape.hidden});
      add(layer.down(e), {layer.shape.hidden, layer.shape.intermediate});
    }
  }
  return tensors;
}

// A checkpoint in memory; refuses reads that Expect has not allowed.
class TinyCheckpoint : public Checkpoint {
 public:
  explicit TinyCheckpoint(TinyTensors tensors) : tensors_(std::move(tensors)) {}

  std::string SideFile(std::string_view name) const override {
    return name == "config.json" ? kTinyConfig : "";
  }
  std::vector<CheckpointTensor> List() const override {
    std::vector<CheckpointTensor> list;
    for (const auto& [name, tensor] : tensors_) {
      list.push_back({name, tensor.shape, encoding_, tensor.values.size() * sizeof(float)});
    }
    return list;
  }
  bool Has(std::string_view name) const override { return tensors_.count(std::string(name)) != 0; }
  void Expect(const ExpectedShape& expected) override {
    const auto found = tensors_.find(expected.name);
    if (found == tensors_.end()) {
      throw Error(ErrorCode::kNotFound, expected.name + " is missing");
    }
    if (found->second.shape != expected.shape) {
      throw Error(ErrorCode::kBadFile, expected.name + " has another shape");
    }
    expected_[expected.name] = true;
  }
  void ReadRows(std::string_view name, int64_t first_row, int64_t num_rows,
                float* out) const override {
    EXPECT_EQ(expected_.count(std::string(name)), 1u) << name;
    const TinyTensor& tensor = tensors_.at(std::string(name));
    const int64_t cols = tensor.shape.back();
    const int64_t rows = int64_t(tensor.values.size()) / cols;
    ASSERT_TRUE(first_row >= 0 && num_rows >= 0 && first_row + num_rows <= rows) << name;
    std::copy_n(tensor.values.begin() + first_row * cols, num_rows * cols, out);
  }

  const TinyTensor& at(const std::string& name) const { return tensors_.at(name); }
  void set_encoding(std::string encoding) { encoding_ = std::move(encoding); }

 private:
  TinyTensors tensors_;
  std::map<std::string, bool> expected_;
  std::string encoding_ = "F32";
};

// Writes the tensors as F32 with the configuration and a tokenizer.json of one word.
inline void WriteTinyCheckpoint(const std::filesystem::path& folder, const TinyTensors& tensors,
                                std::string_view config = kTinyConfig) {
  std::filesystem::create_directories(folder);
  std::vector<TestTensor> list;
  for (const auto& [name, tensor] : tensors) {
    list.push_back({name, "F32", tensor.shape, BytesOf(tensor.values)});
  }
  const auto write = [&](const char* name, std::string_view bytes) {
    std::ofstream(folder / name, std::ios::binary | std::ios::trunc) << bytes;
  };
  write("model.safetensors", SafetensorsBytes(list));
  write("config.json", config);
  write("tokenizer.json", "{}");
}

// The same with random values and the built-in model's tokenizer, so that an engine opens it.
inline void WriteTinyModel(const std::filesystem::path& folder) {
  const ModelConfig config = ParseModelConfig(kTinyConfig, "");
  WriteTinyCheckpoint(folder, MakeTinyTensors(ListTensors(config, {}, true, false), 7));
  const std::filesystem::path pocket = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
    copy_file(pocket / file, folder / file, std::filesystem::copy_options::overwrite_existing);
  }
}

inline ModelConfig TinyModel() { return ParseModelConfig(kTinyConfig, ""); }

}  // namespace hillstar
