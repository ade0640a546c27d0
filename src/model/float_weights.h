// A model's weights as plain float32 matrices, for the float reference. Each struct owns its
// memory; immutable once made, any thread may read.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/thread_pool.h"
#include "model/config.h"
#include "model/tensor_table.h"
#include "model/weights.h"

namespace hillstar {

struct FloatMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> values;  // [rows, cols]

  const float* row(int64_t r) const { return values.data() + r * cols; }
};

struct FloatIndexer {
  FloatMatrix q, k, head_weights;
  std::vector<float> k_norm_weight, k_norm_bias;
};

struct FloatAttention {
  FloatMatrix q_a, q_b, kv_a, o;
  std::vector<FloatMatrix> k_absorb;  // one a head: [latent, nope]
  std::vector<FloatMatrix> v_absorb;  // one a head: [v, latent]
  std::vector<float> q_a_norm, kv_a_norm;
  std::optional<FloatIndexer> indexer;
};

struct FloatMlp {
  FloatMatrix gate, up, down;
};

struct FloatMoe {
  FloatMatrix router;
  std::vector<float> router_bias;
  std::vector<FloatMlp> experts;
  std::optional<FloatMlp> shared;
};

struct FloatLayer {
  std::vector<float> input_norm, post_norm;
  FloatAttention attention;
  std::optional<FloatMlp> dense;  // one of the two is set
  std::optional<FloatMoe> moe;
};

struct FloatWeights {
  FloatMatrix embed, head;
  std::vector<float> norm;
  std::vector<FloatLayer> layers;
};

// Every weight as the float32 value that its integers and scale stand for; the MTP layer is left
// out.
FloatWeights ToFloat(const ModelConfig& config, const ModelWeights& weights, ThreadPool& pool);

// Bytes of the matrices that ToFloat makes of a model with this table.
uint64_t FloatWeightBytes(const TensorTable& table);

}  // namespace hillstar
