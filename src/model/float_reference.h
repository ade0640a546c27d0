// The whole model in float32, as the yardstick for what the integer arithmetic and the formats of
// the KV cache cost: it shares the engine's weights and configuration and none of its arithmetic.
// Slow, and without the MTP layer. One thread at a time calls; it computes on threads of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/thread_pool.h"
#include "model/attention_mode.h"
#include "model/float_weights.h"
#include "model/weights.h"

namespace hillstar {

class FloatReference {
 public:
  // Takes what it needs of `weights`, which may go afterwards.
  FloatReference(const ModelConfig& config, const ModelWeights& weights, int num_threads);

  // Loads the weights of `source` and makes them float32; tokens attend as in `attention`. Beside
  // the matrices there is memory for the keys of texts of `num_tokens`. Errors: kBudget where this
  // would not fit the available memory, with the sizes; LoadWeights'.
  static std::unique_ptr<FloatReference> Load(const ModelSource& source, int64_t num_tokens,
                                              int num_threads, AttentionMode attention,
                                              const ProgressFn& progress);

  // Called with the logits f32 [n, vocab] of the positions from `first` on.
  using LogitsFn = std::function<void(int64_t first, std::span<const float> logits)>;
  // Runs a text from position 0 on, at most `chunk_tokens` tokens at once, in order.
  // Errors: kBadRequest for an id outside the vocabulary, kNonFinite naming the position;
  // on_logits'.
  void Run(std::span<const int32_t> ids, int64_t chunk_tokens, const LogitsFn& on_logits);

 private:
  ModelConfig config_;
  ThreadPool pool_;
  FloatWeights weights_;
};

}  // namespace hillstar
