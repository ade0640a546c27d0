#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/cpu_topology.h"
#include "device/host_memory.h"
#include "engine/open_device.h"
#include "model/rope_table.h"
#include "model/workspace.h"
#include "ops/cpu_ops.h"
#include "ops/load_cuda_library.h"

namespace hillstar {
namespace {

constexpr int64_t kDefaultContext = 16384;
constexpr int64_t kMaxPrefillChunk = 8192;
// Program text, libraries and heap at rest, measured with small models.
constexpr uint64_t kProgramBytes = uint64_t{12} << 20;
// A tokenizer's tables for each byte of its JSON: 3 to 13 where measured, most without merges.
constexpr uint64_t kTokenizerFactor = 12;
// Where a page's latents and index keys lie, in a GPU's memory (StepTables).
constexpr uint64_t kPageAddressBytes = 2 * sizeof(uint8_t*);

int64_t ResolveContext(const EngineOptions& options, const ModelConfig& config) {
  if (options.context_tokens == 0) return std::min(config.max_positions, kDefaultContext);
  if (options.context_tokens < 1 || options.context_tokens > config.max_positions) {
    throw Error(
        ErrorCode::kUsage,
        fmt::format("a context of {} tokens is outside 1..{}, the model's limit (--context)",
                    options.context_tokens, config.max_positions));
  }
  return options.context_tokens;
}

uint64_t LogitBytes(const ModelConfig& config, const EngineSizes& sizes) {
  return uint64_t(sizes.max_sequences * config.vocab_size) * sizeof(float);
}

}  // namespace

EngineSizes ResolveSizes(const EngineOptions& options, const ModelConfig& config) {
  if (options.num_threads < 0) {
    throw Error(ErrorCode::kUsage, fmt::format("{} threads cannot compute", options.num_threads));
  }
  if (options.prefill_chunk < 1 || options.prefill_chunk > kMaxPrefillChunk) {
    throw Error(ErrorCode::kUsage, fmt::format("a prefill chunk of {} tokens is outside 1..{}",
                                               options.prefill_chunk, kMaxPrefillChunk));
  }
  EngineSizes sizes;
  sizes.context_tokens = ResolveContext(options, config);
  sizes.prefill_chunk = std::min(options.prefill_chunk, sizes.context_tokens);
  if (options.max_sequences < 1 || options.max_sequences > kMaxSequences) {
    throw Error(ErrorCode::kUsage, fmt::format("{} sequences at once are outside 1..{}",
                                               options.max_sequences, kMaxSequences));
  }
  sizes.max_sequences = options.max_sequences;
  sizes.step_tokens = std::max(sizes.prefill_chunk, sizes.max_sequences);
  sizes.attention = ParseAttention(options, config);
  sizes.kv_bytes = options.kv_bytes;
  sizes.kv_tokens = options.kv_tokens;
  sizes.may_take_less_kv = options.may_take_less_kv;
  sizes.num_threads = options.num_threads > 0 ? options.num_threads : NumUsableCores();
  sizes.kv_format = ParseKvFormat(options.kv_format);
  return sizes;
}

KvShape KvShapeOf(const ModelSource& source, KvFormat format) {
  const ModelConfig& c = source.config();
  KvShape shape;
  shape.row = {c.kv_lora_rank, c.qk_rope_dim, format};
  shape.index = {c.index_head_dim, NumIndexPlanes(format)};
  shape.num_layers = c.num_layers + c.num_mtp_layers;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.has_index_keys.push_back(source.table().HasIndexer(l));
  }
  return shape;
}

Ops::Limits OpsLimits(const ModelConfig& c, const KvShape& shape, const EngineSizes& sizes) {
  Ops::Limits limits;
  limits.max_row =
      std::max({2 * c.hidden_size, c.intermediate_size, c.moe_intermediate_size,
                c.shared_intermediate(), c.q_lora_rank, c.num_heads * c.v_dim, c.num_experts,
                c.kv_lora_rank + c.qk_rope_dim, c.qk_dim(), c.index_head_dim});
  limits.max_tokens = sizes.step_tokens;
  limits.max_sequences = sizes.max_sequences;
  limits.max_context = sizes.context_tokens;
  limits.max_pages = NumPages(shape, sizes);
  // An MTP layer without an indexer attends to everything, as every layer does without any.
  const bool has_dense_mtp = c.num_mtp_layers > 0 && !shape.has_index_keys.back();
  const bool has_indexer = shape.num_index_layers() > 0;
  limits.selects = has_indexer && Selects(sizes.attention) && sizes.context_tokens > c.index_topk;
  limits.max_keys = has_indexer && Selects(sizes.attention) && !has_dense_mtp
                        ? std::min(c.index_topk, sizes.context_tokens)
                        : sizes.context_tokens;
  limits.num_logits = c.vocab_size;
  limits.num_heads = c.num_heads;
  limits.row = shape.row;
  return limits;
}

int64_t NumPages(const KvShape& shape, const EngineSizes& sizes) {
  const int64_t context = KvShape::PagesOf(sizes.context_tokens);
  const int64_t asked = KvShape::PagesOf(sizes.kv_tokens), wanted = std::max(context, asked);
  if (sizes.kv_bytes == 0) return wanted;
  const auto pages = int64_t(sizes.kv_bytes / uint64_t(shape.page_bytes()));
  if (pages >= wanted) return pages;
  const bool has_context_only = wanted == context;
  throw Error(ErrorCode::kUsage,
              fmt::format("{:.1f} MB hold {} tokens, less than {} (--kv-memory {} or more{})",
                          double(sizes.kv_bytes) / 1e6, pages * kPageTokens,
                          has_context_only
                              ? fmt::format("the context of {}", sizes.context_tokens)
                              : fmt::format("the {} of all sequences at once", asked * kPageTokens),
                          CeilDiv(wanted * shape.page_bytes(), 1'000'000),
                          has_context_only && pages > 0 && pages >= asked
                              ? fmt::format(", or --context {} or less", pages * kPageTokens)
                              : ""));
}

PreparedBytesFn CpuPreparedBytes(const EngineSizes& sizes) {
  return [threads = sizes.num_threads](const Ops::Limits& limits) {
    return CpuOps::PreparedBytes(limits, threads);
  };
}

MemoryPlan PlanMemory(const ModelSource& source, const EngineSizes& sizes, DeviceKind kind,
                      const PreparedBytesFn& prepared_bytes) {
  const ModelConfig& c = source.config();
  const KvShape shape = KvShapeOf(source, sizes.kv_format);
  const int64_t pages = NumPages(shape, sizes);
  MemoryPlan plan;
  plan.dense_weights = source.table().dense_bytes();
  plan.experts = source.table().expert_bytes();
  plan.latent_kv = uint64_t(pages * shape.latent_page_bytes());
  plan.index_keys = uint64_t(pages * shape.index_page_bytes());
  plan.workspace = WorkspaceBytes(c, sizes.step_tokens, sizes.context_tokens, sizes.attention,
                                  kind == DeviceKind::kCpu) +
                   prepared_bytes(OpsLimits(c, shape, sizes)) +
                   RopeTable::Bytes(c.qk_rope_dim, sizes.context_tokens) + LogitBytes(c, sizes);
  plan.num_pages = pages;
  if (kind == DeviceKind::kGpu) plan.page_addresses = uint64_t(pages) * kPageAddressBytes;
  plan.program = kProgramBytes + kTokenizerFactor * source.files().tokenizer.size();
  return plan;
}

namespace {

// What is taken of a plan once num_tokens tokens have been there.
MemoryPlan TakenOf(MemoryPlan plan, const ModelSource& source, const EngineSizes& sizes,
                   DeviceKind kind, int64_t num_tokens) {
  const ModelConfig& c = source.config();
  const KvShape shape = KvShapeOf(source, sizes.kv_format);
  const int64_t pages = std::min(plan.num_pages, KvShape::PagesOf(num_tokens));
  const uint64_t latent_kv = uint64_t(pages * shape.latent_page_bytes());
  const uint64_t index_keys = uint64_t(pages * shape.index_page_bytes());
  if (kind == DeviceKind::kGpu) {
    plan.latent_kv = latent_kv;
    plan.index_keys = index_keys;
    return plan;
  }
  plan.latent_kv = ResidentBytes(plan.latent_kv, latent_kv);
  plan.index_keys = ResidentBytes(plan.index_keys, index_keys);
  EngineSizes used = sizes;
  used.context_tokens = std::min(sizes.context_tokens, num_tokens);
  used.step_tokens = std::min(sizes.step_tokens, num_tokens);
  const auto prepared = [&](const EngineSizes& s) {
    return CpuOps::PreparedBytes(OpsLimits(c, shape, s), s.num_threads);
  };
  plan.workspace = ResidentWorkspaceBytes(c, sizes.step_tokens, used.step_tokens,
                                          sizes.context_tokens, sizes.attention) +
                   ResidentBytes(prepared(sizes), prepared(used)) +
                   ResidentBytes(RopeTable::Bytes(c.qk_rope_dim, sizes.context_tokens),
                                 RopeTable::Bytes(c.qk_rope_dim, used.context_tokens)) +
                   LogitBytes(c, sizes);
  return plan;
}

}  // namespace

MemoryPlan PlanWithin(const ModelSource& source, DeviceKind kind,
                      const PreparedBytesFn& prepared_bytes, uint64_t available,
                      EngineSizes* sizes) {
  while (true) {
    MemoryPlan plan = PlanMemory(source, *sizes, kind, prepared_bytes);
    const uint64_t taken = kind == DeviceKind::kCpu ? plan.total() : plan.on_device();
    const bool is_larger = sizes->kv_bytes == 0 && sizes->kv_tokens > sizes->context_tokens;
    if (!sizes->may_take_less_kv || !is_larger || taken <= available / 5 * 4) return plan;
    sizes->kv_tokens = std::max(sizes->kv_tokens / 2, sizes->context_tokens);
  }
}

MemoryPlan PredictMemory(const EngineOptions& options, std::optional<int64_t> num_tokens) {
  const DeviceChoice choice = ParseDevice(options);
  const auto source = ModelSource::Open(options.model, options.weights, options.load_mtp);
  const EngineSizes sizes = ResolveSizes(options, source->config());
  DeviceKind kind = DeviceKind::kCpu;
  PreparedBytesFn prepared_bytes = CpuPreparedBytes(sizes);
  if (!choice.may_be_cpu) {
    const CudaLibraryFound found = LoadCudaLibrary(options.cuda_library);
    if (!found.library) {
      throw Error(ErrorCode::kDevice,
                  fmt::format("the CUDA library knows what a model takes on --device {}, and {}; a "
                              "build with CUDA makes it, --device cpu tells of the CPU",
                              options.device, found.why_not));
    }
    kind = DeviceKind::kGpu;
    prepared_bytes = found.library->prepared_bytes;
  }
  const MemoryPlan plan = PlanMemory(*source, sizes, kind, prepared_bytes);
  return num_tokens ? TakenOf(plan, *source, sizes, kind, *num_tokens) : plan;
}

namespace {

std::string WhatMakesTheRestSmaller(const EngineSizes& sizes) {
  return fmt::format("; {}--prefill-chunk and --context make the rest smaller",
                     sizes.max_sequences > 1 ? "fewer sequences at once, " : "");
}

// Of pages that were asked for by themselves, or for more tokens than a context has, when
// `available` bytes are left for them.
std::string PagesThatFit(const MemoryPlan& plan, const EngineSizes& sizes, uint64_t available) {
  const auto num_pages = uint64_t(plan.num_pages);
  const uint64_t page_bytes = (plan.latent_kv + plan.index_keys) / num_pages;
  const uint64_t megabytes =
      available / (page_bytes + plan.page_addresses / num_pages) * page_bytes / 1'000'000;
  const auto pages = int64_t(megabytes * 1'000'000 / page_bytes);  // of so many megabytes
  if (pages == 0) return "; no page fits" + WhatMakesTheRestSmaller(sizes);
  const bool has_too_many = sizes.kv_bytes == 0 || pages < KvShape::PagesOf(sizes.kv_tokens);
  std::string text = has_too_many
                         ? fmt::format("; pages of {} tokens fit, for fewer or shorter sequences",
                                       pages * kPageTokens)
                         : fmt::format("; {} MB of pages fit (--kv-memory)", megabytes);
  if (pages < KvShape::PagesOf(sizes.context_tokens)) {
    text += fmt::format(" with a context of {} tokens (--context)", pages * kPageTokens);
  }
  return text;
}

}  // namespace

void CheckFits(const MemoryPlan& plan, const EngineSizes& sizes, uint64_t available,
               std::string_view device) {
  const bool is_cpu = device == "cpu";
  const uint64_t total = is_cpu ? plan.total() : plan.on_device();
  if (total <= available) return;
  const auto gb = [](uint64_t bytes) { return double(bytes) / 1e9; };
  const uint64_t kv = plan.latent_kv + plan.index_keys, rest = total - kv - plan.page_addresses;
  // Pages were asked for by themselves, or for more tokens than a context has.
  const bool has_context_only = sizes.kv_bytes == 0 && sizes.kv_tokens <= sizes.context_tokens;
  std::string text = fmt::format(
      "{:.2f} GB of memory{} are available, and the model needs {:.2f}: {:.2f} for weights, {:.2f} "
      "for {}, {:.2f} for the rest",
      gb(available), is_cpu ? "" : fmt::format(" on {}", device), gb(total),
      gb(plan.dense_weights + plan.experts), gb(kv),
      has_context_only     ? fmt::format("a context of {} tokens", sizes.context_tokens)
      : sizes.kv_bytes > 0 ? fmt::format("pages (--kv-memory {})", sizes.kv_bytes / 1'000'000)
                           : fmt::format("the {} tokens of all sequences at once", sizes.kv_tokens),
      gb(total - kv - plan.dense_weights - plan.experts));
  if (!has_context_only && available > rest) {
    throw Error(ErrorCode::kBudget, text + PagesThatFit(plan, sizes, available - rest));
  }
  // Most of the rest does not depend on the context, so this is on the safe side.
  const int64_t fitting =
      available > rest ? int64_t(double(available - rest) / double(kv + plan.page_addresses) *
                                 double(sizes.context_tokens)) /
                             kPageTokens * kPageTokens
                       : 0;
  text += fitting > 0 ? fmt::format("; a context of {} tokens fits (--context){}", fitting,
                                    sizes.kv_tokens > fitting ? ", for shorter sequences" : "")
          : plan.dense_weights + plan.experts < available ? WhatMakesTheRestSmaller(sizes)
                                                          : "; the weights alone do not fit";
  throw Error(ErrorCode::kBudget, text);
}

}  // namespace hillstar
