#include "model/float_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "device/host_device.h"
#include "model/float_pass.h"

namespace hillstar {
namespace {

void CheckFits(const ModelSource& source, int64_t num_tokens) {
  const TensorTable& table = source.table();
  const uint64_t matrices = FloatWeightBytes(table);
  const uint64_t keys = uint64_t(num_tokens) * FloatPass::BytesPerToken(source.config());
  // While the matrices are made, the weights that they are made of lie beside them.
  const uint64_t weights = table.dense_bytes() + table.expert_bytes();
  const uint64_t available = AvailableMemoryBytes();
  if (matrices + keys + weights <= available) return;
  const auto gb = [](uint64_t bytes) { return double(bytes) / 1e9; };
  throw Error(
      ErrorCode::kBudget,
      fmt::format("the float32 reference needs {:.2f} GB of memory for its matrices, {:.2f} "
                  "for the weights that they are made of and {:.2f} for the keys of {} "
                  "tokens; {:.2f} are available (--reference none does without it)",
                  gb(matrices), gb(weights), gb(keys), num_tokens, gb(available)));
}

void CheckFinite(std::span<const float> logits, int64_t first, int64_t vocab) {
  const auto bad = std::ranges::find_if_not(logits, [](float x) { return std::isfinite(x); });
  if (bad == logits.end()) return;
  throw Error(ErrorCode::kNonFinite,
              fmt::format("the float32 reference left the range of finite numbers at position {}",
                          first + (bad - logits.begin()) / vocab));
}

}  // namespace

FloatReference::FloatReference(const ModelConfig& config, const ModelWeights& weights,
                               int num_threads)
    : config_(config), pool_(num_threads), weights_(ToFloat(config_, weights, pool_)) {}

std::unique_ptr<FloatReference> FloatReference::Load(const ModelSource& source, int64_t num_tokens,
                                                     int num_threads, AttentionMode attention,
                                                     const ProgressFn& progress) {
  CheckFits(source, num_tokens);
  HostMemory memory;
  const ModelWeights weights = LoadWeights(source, memory, num_threads, progress);
  ModelConfig config = source.config();
  // Everything is among the best of so many.
  if (!Selects(attention)) config.index_topk = std::numeric_limits<int64_t>::max() / 2;
  return std::make_unique<FloatReference>(config, weights, num_threads);
}

void FloatReference::Run(std::span<const int32_t> ids, int64_t chunk_tokens,
                         const LogitsFn& on_logits) {
  CHECK(chunk_tokens > 0);
  for (const int32_t id : ids) {
    if (id >= 0 && id < config_.vocab_size) continue;
    throw Error(ErrorCode::kBadRequest,
                fmt::format("token id {} is outside the vocabulary of {}", id, config_.vocab_size));
  }
  const auto num_ids = int64_t(ids.size());
  FloatPass pass(config_, weights_, pool_, num_ids);
  for (int64_t first = 0; first < num_ids; first += chunk_tokens) {
    const int64_t n = std::min(chunk_tokens, num_ids - first);
    const std::span<const float> logits = pass.Append(ids.subspan(size_t(first), size_t(n)));
    CheckFinite(logits, first, config_.vocab_size);
    on_logits(first, logits);
  }
}

}  // namespace hillstar
