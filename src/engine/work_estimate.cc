#include "engine/work_estimate.h"

#include <fmt/format.h>

#include <algorithm>

namespace hillstar {
namespace {

// Of one weight and one activation, both in planes.
double ProductsPerWeight(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW4:
    case WeightFormat::kW8: return 2;
    case WeightFormat::kW15: return 4;
    case WeightFormat::kF32: return 0;
  }
  return 0;
}
// Of two planes' product in one dimension.
constexpr double kPlaneProducts = 3;

double MatrixProducts(WeightFormat format, int64_t rows, int64_t cols) {
  return ProductsPerWeight(format) * double(rows) * double(NumGroups(cols) * kGroup);
}

// Keys that tokens [0, num_tokens) attend to in all, if at most `limit` each.
double KeysSeen(int64_t num_tokens, int64_t limit) {
  const double grow = double(std::min(num_tokens, limit));
  return grow * (grow + 1) / 2 + double(std::max<int64_t>(0, num_tokens - limit)) * double(limit);
}

bool IsKeyProjection(const std::string& name) {
  return name.ends_with(".kv_a") || name.ends_with(".index_k");
}

}  // namespace

WorkEstimate::WorkEstimate(const ModelSource& source) {
  const ModelConfig& c = source.config();
  const std::string mtp = fmt::format("layers.{}.", c.num_layers);
  const std::string last = fmt::format("layers.{}.", c.num_layers - 1);
  for (const TensorSpec& spec : source.table().dense) {
    if (spec.name == "embed" || spec.name.starts_with(mtp)) continue;
    weight_bytes_ += spec.num_bytes();
    // Of the last layer, all tokens need the keys and one the rest.
    const bool in_last = spec.name.starts_with(last);
    const bool once = spec.name == "head" || (in_last && !IsKeyProjection(spec.name));
    (once ? once_products_ : token_products_) += MatrixProducts(spec.format, spec.rows, spec.cols);
    if (spec.name.ends_with(".index_q")) {
      most_keys_ = c.index_topk;
      const double dims = double(c.index_num_heads) * double(c.index_head_dim);
      if (!in_last) score_products_ += dims * kPlaneProducts;
    }
  }
  for (const ExpertLayerSpec& layer : source.table().experts) {
    if (layer.layer >= c.num_layers) continue;
    const ExpertShape& e = layer.shape;
    const auto chosen = uint64_t(c.num_experts_per_token);
    weight_bytes_ += chosen * ExpertImageBytes(e);
    const double expert = 2 * MatrixProducts(e.format, e.intermediate, e.hidden) +
                          MatrixProducts(e.format, e.hidden, e.intermediate);
    const bool once = layer.layer + 1 == c.num_layers;
    (once ? once_products_ : token_products_) += double(chosen) * expert;
  }
  const double dims = double(c.num_heads) * double(2 * c.kv_lora_rank + c.qk_rope_dim);
  key_products_ = double(c.num_layers - 1) * dims * kPlaneProducts;
}

double WorkEstimate::PromptProducts(int64_t num_tokens) const {
  const int64_t limit = most_keys_ > 0 ? std::min(most_keys_, num_tokens) : num_tokens;
  // Tokens beyond the limit score all keys to choose.
  const double scored = KeysSeen(num_tokens, num_tokens) - KeysSeen(limit, limit);
  return double(num_tokens) * token_products_ + once_products_ +
         KeysSeen(num_tokens, limit) * key_products_ + scored * score_products_;
}

}  // namespace hillstar
