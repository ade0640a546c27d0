#include "model/float_pass.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace hillstar {
namespace {

// Partial sums of a dot product: four registers of SSE, enough to hide the latency of an addition,
// and a sixteenth of the rounding of a single sum.
constexpr int64_t kPartials = 16;
// Rows of a matrix that meet all tokens before the next rows do: they and a token's inputs stay in
// a core's caches, and a small matrix still has enough tiles for several threads.
constexpr int64_t kTileRows = 16;
// Keys whose weighted latents are summed in float32 before they join the sum in double.
constexpr int64_t kKeysOfSum = 64;

float Dot(const float* a, const float* b, int64_t n) {
  float sums[kPartials] = {};
  int64_t i = 0;
  for (; i + kPartials <= n; i += kPartials) {
    for (int64_t j = 0; j < kPartials; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (int64_t j = 0; i < n; ++i, ++j) sums[j] += a[i] * b[i];
  for (int64_t half = kPartials / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

// Rows of floats, `stride` apart.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  T* operator[](int64_t r) const { return data + r * stride; }
};

// y[t][r] = w[r] . x[t] for r in [first, end), in the calling thread.
void MultiplyRows(const FloatMatrix& w, int64_t first, int64_t end, Rows<const float> x, int64_t n,
                  Rows<float> y) {
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t r = first; r < end; ++r) y[t][r] = Dot(w.row(r), x[t], w.cols);
  }
}

void Multiply(ThreadPool& pool, const FloatMatrix& w, Rows<const float> x, int64_t n,
              Rows<float> y) {
  pool.Run((w.rows + kTileRows - 1) / kTileRows, [&](int64_t tile, int) {
    const int64_t first = tile * kTileRows;
    MultiplyRows(w, first, std::min(first + kTileRows, w.rows), x, n, y);
  });
}

void Multiply(ThreadPool& pool, const FloatMatrix& w, const std::vector<float>& x, int64_t n,
              std::vector<float>& y) {
  y.resize(size_t(n * w.rows));
  Multiply(pool, w, {x.data(), w.cols}, n, {y.data(), w.rows});
}

void RmsNorm(const float* x, const std::vector<float>& weight, float eps, float* y) {
  const auto n = int64_t(weight.size());
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double(x[i]) * double(x[i]);
  const double inverse = 1 / std::sqrt(squares / double(n) + double(eps));
  for (int64_t i = 0; i < n; ++i) y[i] = float(double(x[i]) * inverse) * weight[size_t(i)];
}

void LayerNorm(const FloatIndexer& indexer, float eps, float* x) {
  const auto n = int64_t(indexer.k_norm_weight.size());
  const double mean = std::accumulate(x, x + n, 0.0) / double(n);
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += (double(x[i]) - mean) * (double(x[i]) - mean);
  const double inverse = 1 / std::sqrt(squares / double(n) + double(eps));
  for (int64_t i = 0; i < n; ++i) {
    const float normed = float((double(x[i]) - mean) * inverse);
    x[i] = normed * indexer.k_norm_weight[size_t(i)] + indexer.k_norm_bias[size_t(i)];
  }
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// gate = silu(gate) * up.
void Gate(const std::vector<float>& up, std::vector<float>& gate) {
  for (size_t i = 0; i < gate.size(); ++i) {
    gate[i] = float(double(gate[i]) * Sigmoid(double(gate[i]))) * up[i];
  }
}

}  // namespace

FloatPass::FloatPass(const ModelConfig& config, const FloatWeights& weights, ThreadPool& pool,
                     int64_t max_tokens)
    : c_(config), weights_(weights), pool_(pool), keys_(weights.layers.size()) {
  for (size_t l = 0; l < keys_.size(); ++l) {
    keys_[l].rows.reserve(size_t(max_tokens * (c_.kv_lora_rank + c_.qk_rope_dim)));
    if (!weights.layers[l].attention.indexer) continue;
    keys_[l].index.reserve(size_t(max_tokens * c_.index_head_dim));
  }
}

uint64_t FloatPass::BytesPerToken(const ModelConfig& config) {
  const auto indexers = std::ranges::count(config.layer_has_indexer, true);
  return sizeof(float) *
         uint64_t(config.num_layers * (config.kv_lora_rank + config.qk_rope_dim) +
                  (config.index_num_heads > 0 ? indexers * config.index_head_dim : 0));
}

std::span<const float> FloatPass::Append(std::span<const int32_t> ids) {
  first_ += num_tokens_;
  num_tokens_ = int64_t(ids.size());
  FindAngles();
  selection_.assign(ids.size(), {});
  x_.clear();
  for (const int32_t id : ids) {
    const float* row = weights_.embed.row(id);
    x_.insert(x_.end(), row, row + c_.hidden_size);
  }
  for (size_t l = 0; l < weights_.layers.size(); ++l) Layer(weights_.layers[l], keys_[l]);
  NormRows(x_, weights_.norm, c_.rms_norm_eps, normed_);
  Multiply(pool_, weights_.head, normed_, num_tokens_, logits_);
  return logits_;
}

void FloatPass::FindAngles() {
  const int64_t pairs = c_.qk_rope_dim / 2;
  cos_.clear();
  sin_.clear();
  for (int64_t p = first_; p < first_ + num_tokens_; ++p) {
    for (int64_t j = 0; j < pairs; ++j) {
      const double angle =
          double(p) * std::pow(c_.rope_theta, -2.0 * double(j) / double(c_.qk_rope_dim));
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

void FloatPass::Rotate(int64_t t, float* v) const {
  const int64_t pairs = c_.qk_rope_dim / 2;
  const std::vector<float> in(v, v + 2 * pairs);
  for (int64_t j = 0; j < pairs; ++j) {
    const double a = double(in[size_t(2 * j)]), b = double(in[size_t(2 * j + 1)]);
    const double cos = cos_[size_t(t * pairs + j)], sin = sin_[size_t(t * pairs + j)];
    v[j] = float(a * cos - b * sin);
    v[pairs + j] = float(b * cos + a * sin);
  }
}

void FloatPass::NormRows(const std::vector<float>& x, const std::vector<float>& weight, float eps,
                         std::vector<float>& y) {
  y.resize(x.size());
  const auto width = int64_t(weight.size());
  pool_.Run(num_tokens_, [&](int64_t t, int) {
    RmsNorm(x.data() + t * width, weight, eps, y.data() + t * width);
  });
}

void FloatPass::AddToStream() {
  for (size_t i = 0; i < x_.size(); ++i) x_[i] += out_[i];
}

void FloatPass::Layer(const FloatLayer& layer, Keys& keys) {
  NormRows(x_, layer.input_norm, c_.rms_norm_eps, normed_);
  Attention(layer.attention, keys);
  AddToStream();
  NormRows(x_, layer.post_norm, c_.rms_norm_eps, normed_);
  if (layer.dense) {
    DenseMlp(*layer.dense);
  } else {
    Experts(*layer.moe);
  }
  AddToStream();
}

void FloatPass::Attention(const FloatAttention& attention, Keys& keys) {
  AppendKeys(attention, keys);
  Multiply(pool_, attention.q_a, normed_, num_tokens_, q_a_);
  NormRows(q_a_, attention.q_a_norm, c_.lora_norm_eps, q_a_);
  if (attention.indexer) SelectKeys(*attention.indexer, keys);
  MakeQueries(attention);
  const int64_t heads = c_.num_heads, latent = c_.kv_lora_rank;
  latents_.resize(size_t(num_tokens_ * heads * latent));
  pool_.Run(num_tokens_, [&](int64_t t, int) { Attend(t, keys); });
  values_.resize(size_t(num_tokens_ * heads * c_.v_dim));
  for (int64_t h = 0; h < heads; ++h) {
    Multiply(pool_, attention.v_absorb[size_t(h)], {latents_.data() + h * latent, heads * latent},
             num_tokens_, {values_.data() + h * c_.v_dim, heads * c_.v_dim});
  }
  Multiply(pool_, attention.o, values_, num_tokens_, out_);
}

void FloatPass::AppendKeys(const FloatAttention& attention, Keys& keys) {
  const int64_t width = c_.kv_lora_rank + c_.qk_rope_dim;
  keys.rows.resize(size_t((first_ + num_tokens_) * width));
  float* rows = keys.rows.data() + first_ * width;
  Multiply(pool_, attention.kv_a, {normed_.data(), c_.hidden_size}, num_tokens_, {rows, width});
  pool_.Run(num_tokens_, [&](int64_t t, int) {
    float* row = rows + t * width;
    RmsNorm(row, attention.kv_a_norm, c_.lora_norm_eps, row);
    Rotate(t, row + c_.kv_lora_rank);
  });
  if (!attention.indexer) return;
  const int64_t dim = c_.index_head_dim;
  keys.index.resize(size_t((first_ + num_tokens_) * dim));
  float* index = keys.index.data() + first_ * dim;
  Multiply(pool_, attention.indexer->k, {normed_.data(), c_.hidden_size}, num_tokens_,
           {index, dim});
  pool_.Run(num_tokens_, [&](int64_t t, int) {
    LayerNorm(*attention.indexer, c_.index_norm_eps, index + t * dim);
    Rotate(t, index + t * dim);
  });
}

void FloatPass::SelectKeys(const FloatIndexer& indexer, const Keys& keys) {
  if (first_ + num_tokens_ <= c_.index_topk) return;
  const int64_t heads = c_.index_num_heads, dim = c_.index_head_dim;
  std::vector<float> q, head_weights;
  Multiply(pool_, indexer.q, q_a_, num_tokens_, q);
  Multiply(pool_, indexer.head_weights, normed_, num_tokens_, head_weights);
  const double scale = 1 / std::sqrt(double(heads)) / std::sqrt(double(dim));
  pool_.Run(num_tokens_, [&](int64_t t, int) {
    const int64_t num_keys = first_ + t + 1;
    if (num_keys <= c_.index_topk) return;
    float* queries = q.data() + t * heads * dim;
    for (int64_t h = 0; h < heads; ++h) Rotate(t, queries + h * dim);
    std::vector<float> scores;
    for (int64_t k = 0; k < num_keys; ++k) {
      double sum = 0;
      for (int64_t h = 0; h < heads; ++h) {
        const float dot = Dot(queries + h * dim, keys.index.data() + k * dim, dim);
        sum += double(head_weights[size_t(t * heads + h)]) * double(std::max(dot, 0.0f));
      }
      scores.push_back(float(sum * scale));
    }
    selection_[size_t(t)] = BestPositions(scores, c_.index_topk);
  });
}

// q_a_ -> queries_ [tokens, heads, latent + rope].
void FloatPass::MakeQueries(const FloatAttention& attention) {
  const int64_t heads = c_.num_heads, latent = c_.kv_lora_rank, rope = c_.qk_rope_dim;
  const int64_t width = latent + rope;
  Multiply(pool_, attention.q_b, q_a_, num_tokens_, q_);
  queries_.resize(size_t(num_tokens_ * heads * width));
  for (int64_t h = 0; h < heads; ++h) {
    Multiply(pool_, attention.k_absorb[size_t(h)],
             {q_.data() + h * c_.qk_dim(), heads * c_.qk_dim()}, num_tokens_,
             {queries_.data() + h * width, heads * width});
  }
  pool_.Run(num_tokens_ * heads, [&](int64_t i, int) {
    float* out = queries_.data() + i * width + latent;
    std::copy_n(q_.data() + i * c_.qk_dim() + c_.qk_nope_dim, rope, out);
    Rotate(i / heads, out);
  });
}

// A token's queries_ over its keys -> latents_ [tokens, heads, latent].
void FloatPass::Attend(int64_t token, const Keys& keys) {
  const int64_t heads = c_.num_heads, latent = c_.kv_lora_rank, width = latent + c_.qk_rope_dim;
  const std::vector<int32_t>& selected = selection_[size_t(token)];
  const auto num_keys = selected.empty() ? first_ + token + 1 : int64_t(selected.size());
  const auto row = [&](int64_t k) {
    return keys.rows.data() + (selected.empty() ? k : int64_t(selected[size_t(k)])) * width;
  };
  const double scale = 1 / std::sqrt(double(c_.qk_dim()));
  std::vector<double> scores(size_t(heads * num_keys));
  for (int64_t k = 0; k < num_keys; ++k) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* query = queries_.data() + (token * heads + h) * width;
      scores[size_t(h * num_keys + k)] = double(Dot(query, row(k), width)) * scale;
    }
  }
  std::vector<float> weights(scores.size());
  for (int64_t h = 0; h < heads; ++h) {
    double* of_head = scores.data() + h * num_keys;
    const double largest = *std::max_element(of_head, of_head + num_keys);
    double sum = 0;
    for (int64_t k = 0; k < num_keys; ++k) sum += of_head[k] = std::exp(of_head[k] - largest);
    for (int64_t k = 0; k < num_keys; ++k)
      weights[size_t(h * num_keys + k)] = float(of_head[k] / sum);
  }
  std::vector<double> totals(size_t(heads * latent));
  std::vector<float> sums(size_t(heads * latent));
  for (int64_t begin = 0; begin < num_keys; begin += kKeysOfSum) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t k = begin; k < std::min(begin + kKeysOfSum, num_keys); ++k) {
      const float* key = row(k);
      for (int64_t h = 0; h < heads; ++h) {
        const float weight = weights[size_t(h * num_keys + k)];
        float* sum = sums.data() + h * latent;
        for (int64_t d = 0; d < latent; ++d) sum[d] += weight * key[d];
      }
    }
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += double(sums[i]);
  }
  float* out = latents_.data() + token * heads * latent;
  for (size_t i = 0; i < totals.size(); ++i) out[i] = float(totals[i]);
}

void FloatPass::DenseMlp(const FloatMlp& mlp) {
  std::vector<float> gate, up;
  Multiply(pool_, mlp.gate, normed_, num_tokens_, gate);
  Multiply(pool_, mlp.up, normed_, num_tokens_, up);
  Gate(up, gate);
  Multiply(pool_, mlp.down, gate, num_tokens_, out_);
}

std::vector<FloatPass::Choice> FloatPass::Route(const FloatMoe& moe, const float* x) const {
  std::vector<double> gates, scores;
  for (int64_t e = 0; e < c_.num_experts; ++e) {
    double logit = 0;
    for (int64_t i = 0; i < c_.hidden_size; ++i)
      logit += double(moe.router.row(e)[i]) * double(x[i]);
    gates.push_back(Sigmoid(logit));
    scores.push_back(gates.back() + double(moe.router_bias[size_t(e)]));
  }
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return scores[size_t(a)] > scores[size_t(b)]; });
  order.resize(size_t(c_.num_experts_per_token));
  double sum = 1e-20;
  for (const int64_t e : order) sum += gates[size_t(e)];
  std::vector<Choice> choices;
  for (const int64_t e : order) {
    const double share = c_.norm_topk_prob ? gates[size_t(e)] / sum : gates[size_t(e)];
    choices.push_back({e, float(share * double(c_.routed_scaling_factor))});
  }
  return choices;
}

void FloatPass::Experts(const FloatMoe& moe) {
  const int64_t hidden = c_.hidden_size, chosen = c_.num_experts_per_token;
  std::vector<std::vector<Choice>> choices(static_cast<size_t>(num_tokens_));
  pool_.Run(num_tokens_,
            [&](int64_t t, int) { choices[size_t(t)] = Route(moe, normed_.data() + t * hidden); });
  std::vector<std::vector<int64_t>> places(moe.experts.size());  // token * chosen + rank
  for (int64_t i = 0; i < num_tokens_ * chosen; ++i) {
    const Choice& choice = choices[size_t(i / chosen)][size_t(i % chosen)];
    places[size_t(choice.expert)].push_back(i);
  }
  std::vector<float> rows(size_t(num_tokens_ * chosen * hidden));
  pool_.Run(c_.num_experts, [&](int64_t e, int) {
    const FloatMlp& expert = moe.experts[size_t(e)];
    const int64_t width = expert.gate.rows;
    for (const int64_t place : places[size_t(e)]) {
      const Rows<const float> x{normed_.data() + place / chosen * hidden, hidden};
      std::vector<float> gate(static_cast<size_t>(width)), up(static_cast<size_t>(width));
      MultiplyRows(expert.gate, 0, width, x, 1, {gate.data(), width});
      MultiplyRows(expert.up, 0, width, x, 1, {up.data(), width});
      Gate(up, gate);
      MultiplyRows(expert.down, 0, hidden, {gate.data(), width}, 1,
                   {rows.data() + place * hidden, hidden});
    }
  });
  out_.assign(size_t(num_tokens_ * hidden), 0.0f);
  if (moe.shared) DenseMlp(*moe.shared);
  pool_.Run(num_tokens_, [&](int64_t t, int) {
    float* out = out_.data() + t * hidden;
    for (int64_t rank = 0; rank < chosen; ++rank) {
      const float weight = choices[size_t(t)][size_t(rank)].weight;
      const float* row = rows.data() + (t * chosen + rank) * hidden;
      for (int64_t i = 0; i < hidden; ++i) out[i] += weight * row[i];
    }
  });
}

std::vector<int32_t> BestPositions(std::span<const float> scores, int64_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = scores[size_t(a)], y = scores[size_t(b)];
    return x > y || (x == y && a < b);
  };
  std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), better);
  order.resize(size_t(count));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace hillstar
