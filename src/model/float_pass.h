// One text through a model in plain float32. Sums of products are float32 in sixteen partial sums;
// norms, the router, softmax sums, sigmoids and RoPE are double, rounded once. There is no
// quantisation, no paging and no batch: the mathematics of the model and nothing else. One thread
// at a time calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "model/config.h"
#include "model/float_weights.h"

namespace hillstar {

class FloatPass {
 public:
  // All three must outlive the pass. Takes the memory of the keys of `max_tokens` at once.
  FloatPass(const ModelConfig& config, const FloatWeights& weights, ThreadPool& pool,
            int64_t max_tokens);

  // Appends tokens to the text, at most max_tokens in all; returns their logits f32 [ids.size(),
  // vocab], valid until the next call. REQUIRES ids inside the vocabulary.
  std::span<const float> Append(std::span<const int32_t> ids);

  // Bytes that a token's keys take on all layers.
  static uint64_t BytesPerToken(const ModelConfig& config);

 private:
  // What later tokens need of earlier ones, on one layer.
  struct Keys {
    std::vector<float> rows;   // [tokens, latent + rope], normed and rotated
    std::vector<float> index;  // [tokens, index dim], likewise; empty without an indexer
  };
  struct Choice {
    int64_t expert = 0;
    float weight = 0;
  };

  void FindAngles();
  void Layer(const FloatLayer& layer, Keys& keys);
  // normed_ -> out_.
  void Attention(const FloatAttention& attention, Keys& keys);
  void AppendKeys(const FloatAttention& attention, Keys& keys);
  void SelectKeys(const FloatIndexer& indexer, const Keys& keys);
  void MakeQueries(const FloatAttention& attention);
  void Attend(int64_t token, const Keys& keys);
  // normed_ -> out_.
  void DenseMlp(const FloatMlp& mlp);
  void Experts(const FloatMoe& moe);
  std::vector<Choice> Route(const FloatMoe& moe, const float* x) const;

  // Rotates the pairs of v[0, rope) of token `t`: pairs in, halves out.
  void Rotate(int64_t t, float* v) const;
  void NormRows(const std::vector<float>& x, const std::vector<float>& weight, float eps,
                std::vector<float>& y);
  void AddToStream();

  const ModelConfig& c_;
  const FloatWeights& weights_;
  ThreadPool& pool_;
  std::vector<Keys> keys_;                       // one a layer
  int64_t first_ = 0;                            // position of the first of the tokens in hand
  int64_t num_tokens_ = 0;                       // in hand
  std::vector<double> cos_, sin_;                // [tokens, rope / 2]
  std::vector<std::vector<int32_t>> selection_;  // one a token; empty: every position up to it
  std::vector<float> x_, normed_, q_a_, q_, queries_, latents_, values_, out_, logits_;
};

// The `count` best of `scores` by (value descending, index ascending), in ascending order of index.
// REQUIRES count <= scores.size(), no NaN.
std::vector<int32_t> BestPositions(std::span<const float> scores, int64_t count);

}  // namespace hillstar
