// What a model will take of memory, computed from headers alone.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "hillstar/engine.h"
#include "kv/kv_shape.h"
#include "model/attention_mode.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace hillstar {

// In one step.
inline constexpr int64_t kMaxSequences = 512;

// The sizes that an engine is made for.
struct EngineSizes {
  int64_t context_tokens = 0;  // the option, or the model's limit, at most 16,384
  int64_t prefill_chunk = 0;   // at most context_tokens
  int num_threads = 0;
  int64_t max_sequences = 1;
  int64_t step_tokens = 0;  // of a step at most
  AttentionMode attention = AttentionMode::kAuto;
  uint64_t kv_bytes = 0;  // the option; 0: as many pages as are needed
  int64_t kv_tokens = 0;  // of all sequences that are there at once, or 0
  bool may_take_less_kv = false;
  KvFormat kv_format = KvFormat::kQ15;
};
// Errors: kUsage naming the option, its value and its range.
EngineSizes ResolveSizes(const EngineOptions& options, const ModelConfig& config);

// Which rows the model's sequences hold.
KvShape KvShapeOf(const ModelSource& source, KvFormat format);

// What the operations are asked for by a model.
Ops::Limits OpsLimits(const ModelConfig& config, const KvShape& shape, const EngineSizes& sizes);

// Pages of the KV cache. Errors: kUsage where kv_bytes do not hold a context, or kv_tokens.
int64_t NumPages(const KvShape& shape, const EngineSizes& sizes);

// What Ops::Prepare takes.
using PreparedBytesFn = std::function<uint64_t(const Ops::Limits& limits)>;
// Of a CPU's operations.
PreparedBytesFn CpuPreparedBytes(const EngineSizes& sizes);

enum class DeviceKind { kCpu, kGpu };
MemoryPlan PlanMemory(const ModelSource& source, const EngineSizes& sizes, DeviceKind kind,
                      const PreparedBytesFn& prepared_bytes);

// The plan for what may be taken of `available` bytes: where sizes.kv_tokens is a wish it is halved
// until the plan leaves a fifth of them, or a context is left.
MemoryPlan PlanWithin(const ModelSource& source, DeviceKind kind,
                      const PreparedBytesFn& prepared_bytes, uint64_t available,
                      EngineSizes* sizes);

// Opens the model's headers only. Of a GPU where options.device insists on one, else of the CPU.
// With num_tokens, what an engine of these options has taken once its sequences have held so many
// tokens at most: of a GPU all but pages, of a CPU's buffers what was touched.
// Errors: as ParseDevice, ModelSource::Open and ResolveSizes; kDevice without a CUDA library, which
// knows what its kernels take.
MemoryPlan PredictMemory(const EngineOptions& options,
                         std::optional<int64_t> num_tokens = std::nullopt);

// Errors: kBudget with the plan's parts and what would fit, if the plan asks for more than the
// `available` bytes of a device: of the CPU all of it, of a GPU what is to lie there.
void CheckFits(const MemoryPlan& plan, const EngineSizes& sizes, uint64_t available,
               std::string_view device = "cpu");

}  // namespace hillstar
