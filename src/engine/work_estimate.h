// What a model asks of the machine, from headers alone: the bounds that bench compares with.
#pragma once

#include "model/weights.h"

namespace hillstar {

class WorkEstimate {
 public:
  WorkEstimate() = default;
  explicit WorkEstimate(const ModelSource& source);

  // Bytes of weights that a decoded token reads: all dense matrices but the embedding, and the
  // chosen experts.
  uint64_t weight_bytes_per_token() const { return weight_bytes_; }

  // Products of two bytes that the arithmetic contract asks for in a prompt of num_tokens from
  // position 0 of which only the last token's logits are wanted: two for each weight of w4 and w8,
  // four for one of w15, three for each dimension of a query or a value and its key (see
  // docs/numerics.md). Work in f32, a small share, is not counted.
  double PromptProducts(int64_t num_tokens) const;

 private:
  uint64_t weight_bytes_ = 0;
  double token_products_ = 0;  // of matrices, for each token
  double once_products_ = 0;   // of matrices, for the last token
  double key_products_ = 0;    // of all layers, for each token and key that it attends to
  double score_products_ = 0;  // of all indexers, for each token and key that it scores
  int64_t most_keys_ = 0;      // that a token attends to; 0: all
};

}  // namespace hillstar
