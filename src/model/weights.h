// A model's weights in a device's memory: views by role, and their owner. The views' addresses are
// the device's. Immutable once loaded; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device_memory.h"
#include "hillstar/engine.h"
#include "model/config.h"
#include "model/tensor_table.h"
#include "numerics/weights.h"

namespace hillstar {

struct IndexerWeights {
  WeightView q;                          // [index heads * dim, q_lora]
  WeightView k;                          // [dim, hidden]
  const float* k_norm_weight = nullptr;  // [dim]
  const float* k_norm_bias = nullptr;
  const float* head_weights = nullptr;  // [index heads, hidden]
};

struct AttentionWeights {
  WeightView q_a, q_b, kv_a, o;
  WeightView k_absorb;  // per head [latent, nope], heads at whole panels
  WeightView v_absorb;  // per head [v, latent], likewise
  const float* q_a_norm = nullptr;
  const float* kv_a_norm = nullptr;
  std::optional<IndexerWeights> indexer;

  // Head h's part of k_absorb or v_absorb: `rows` rows.
  static WeightView Head(const WeightView& all, int64_t h, int64_t rows);
};

struct MlpWeights {
  WeightView gate, up, down;
};

struct MoeWeights {
  const float* router = nullptr;       // [experts, hidden]
  const float* router_bias = nullptr;  // [experts]
  MlpWeights shared;
  ExpertShape shape{};
  const uint8_t* images = nullptr;
  size_t image_bytes = 0;

  ExpertViews expert(int64_t e) const {
    return ViewExpert(shape, images + size_t(e) * image_bytes);
  }
};

struct LayerWeights {
  const float* input_norm = nullptr;
  const float* post_norm = nullptr;
  AttentionWeights attention;
  std::optional<MlpWeights> dense;  // one of the two is set
  std::optional<MoeWeights> moe;
};

struct MtpWeights {
  WeightView eh_proj;
  const float* enorm = nullptr;
  const float* hnorm = nullptr;
  const float* head_norm = nullptr;
  LayerWeights layer;
};

struct ModelWeights {
  WeightView embed, head;
  const float* norm = nullptr;
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;
  // What the views point into.
  DeviceBuffer dense_memory;
  std::vector<DeviceBuffer> expert_memory;  // one a MoE layer
};

// Text files that came with a model; empty where missing.
struct ModelFiles {
  std::string config, generation_config, tokenizer, tokenizer_config, chat_template;
};

// A model folder, opened but not loaded: what it is and what it will take.
class ModelSource {
 public:
  // Opens a container or a checkpoint and reads its headers and configuration.
  // `weights` as in EngineOptions. Errors: kNotFound, kBadFile, kUnsupported, kUsage.
  static std::unique_ptr<ModelSource> Open(const std::string& folder, const std::string& weights,
                                           bool with_mtp);
  virtual ~ModelSource() = default;

  virtual const ModelFiles& files() const = 0;
  virtual const ModelConfig& config() const = 0;  // without MTP if it is not to be loaded
  // The tensors with the formats that they have or will get.
  virtual const TensorTable& table() const = 0;
  virtual bool is_container() const = 0;
  // 64 hexadecimal digits: two models with the same identity compute the same logits. A container
  // has it from the checksums of all its bytes; of a checkpoint it covers the configuration, the
  // formats, and names, shapes and first rows of its tensors. Errors: kIo, kBadFile.
  virtual std::string Identity() const = 0;

  // Fills the memory of one tensor or some experts of a layer. Any thread.
  virtual void LoadTensor(const TensorSpec& spec, const ParallelFor& parallel,
                          uint8_t* out) const = 0;
  virtual void LoadExperts(const ExpertLayerSpec& layer, int64_t first, int64_t count,
                           uint8_t* out) const = 0;
};

// Loads everything: reads of several threads at once, progress in bytes. `memory` outlives the
// weights. Where it is not the host's, the host holds some pieces at a time, or one tensor.
// Errors: as the source's reads; kBudget. Nothing stays allocated after an error.
ModelWeights LoadWeights(const ModelSource& source, DeviceMemory& memory, int num_threads,
                         const ProgressFn& progress);

// "experts w4, rest w8".
std::string DescribeFormats(const TensorTable& table);

// "w15", "w8", "w4" or "pocket" as EngineOptions::weights has it. Errors: kUsage.
FormatPlan ParseFormatPlan(const std::string& weights);

}  // namespace hillstar
