#include "model/float_weights.h"

namespace hillstar {
namespace {

class Converter {
 public:
  Converter(const ModelConfig& config, ThreadPool& pool) : c_(config), pool_(pool) {}

  FloatMatrix Matrix(const WeightView& w) const {
    FloatMatrix matrix{w.rows, w.cols, std::vector<float>(size_t(w.rows * w.cols))};
    pool_.Run(w.rows,
              [&](int64_t r, int) { DequantiseRow(w, r, matrix.values.data() + r * matrix.cols); });
    return matrix;
  }

  FloatLayer Layer(const LayerWeights& layer) const {
    FloatLayer out;
    out.input_norm = Vector(layer.input_norm, c_.hidden_size);
    out.post_norm = Vector(layer.post_norm, c_.hidden_size);
    out.attention = Attention(layer.attention);
    if (layer.dense) {
      out.dense = Mlp(layer.dense->gate, layer.dense->up, layer.dense->down);
    } else {
      out.moe = Moe(*layer.moe);
    }
    return out;
  }

  static std::vector<float> Vector(const float* values, int64_t n) { return {values, values + n}; }

 private:
  static FloatMatrix Floats(const float* values, int64_t rows, int64_t cols) {
    return {rows, cols, Vector(values, rows * cols)};
  }

  FloatAttention Attention(const AttentionWeights& a) const {
    FloatAttention out;
    out.q_a = Matrix(a.q_a);
    out.q_b = Matrix(a.q_b);
    out.kv_a = Matrix(a.kv_a);
    out.o = Matrix(a.o);
    for (int64_t h = 0; h < c_.num_heads; ++h) {
      out.k_absorb.push_back(Matrix(AttentionWeights::Head(a.k_absorb, h, c_.kv_lora_rank)));
      out.v_absorb.push_back(Matrix(AttentionWeights::Head(a.v_absorb, h, c_.v_dim)));
    }
    out.q_a_norm = Vector(a.q_a_norm, c_.q_lora_rank);
    out.kv_a_norm = Vector(a.kv_a_norm, c_.kv_lora_rank);
    if (a.indexer) {
      out.indexer = {Matrix(a.indexer->q), Matrix(a.indexer->k),
                     Floats(a.indexer->head_weights, c_.index_num_heads, c_.hidden_size),
                     Vector(a.indexer->k_norm_weight, c_.index_head_dim),
                     Vector(a.indexer->k_norm_bias, c_.index_head_dim)};
    }
    return out;
  }

  FloatMlp Mlp(const WeightView& gate, const WeightView& up, const WeightView& down) const {
    return {Matrix(gate), Matrix(up), Matrix(down)};
  }

  FloatMoe Moe(const MoeWeights& moe) const {
    FloatMoe out;
    out.router = Floats(moe.router, c_.num_experts, c_.hidden_size);
    out.router_bias = Vector(moe.router_bias, c_.num_experts);
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      const ExpertViews expert = moe.expert(e);
      out.experts.push_back(Mlp(expert.gate, expert.up, expert.down));
    }
    if (c_.num_shared_experts > 0)
      out.shared = Mlp(moe.shared.gate, moe.shared.up, moe.shared.down);
    return out;
  }

  const ModelConfig& c_;
  ThreadPool& pool_;
};

}  // namespace

FloatWeights ToFloat(const ModelConfig& config, const ModelWeights& weights, ThreadPool& pool) {
  const Converter converter(config, pool);
  FloatWeights out;
  out.embed = converter.Matrix(weights.embed);
  out.head = converter.Matrix(weights.head);
  out.norm = Converter::Vector(weights.norm, config.hidden_size);
  for (const LayerWeights& layer : weights.layers) out.layers.push_back(converter.Layer(layer));
  return out;
}

uint64_t FloatWeightBytes(const TensorTable& table) {
  uint64_t values = 0;
  for (const TensorSpec& spec : table.dense) values += uint64_t(spec.rows * spec.cols);
  for (const ExpertLayerSpec& layer : table.experts) {
    values += uint64_t(3 * layer.num_experts * layer.shape.hidden * layer.shape.intermediate);
  }
  return values * sizeof(float);
}

}  // namespace hillstar
