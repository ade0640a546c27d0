#include "cli/open_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "cli/request.h"
#include "cli/terminal.h"
#include "cli/user_folders.h"
#include "core/log.h"
#include "core/stopwatch.h"
#include "formats/container.h"
#include "kv/layout.h"
#include "model/config.h"
#include "model/float_reference.h"
#include "ops/backend.h"
#include "tokenizer/chat_format.h"

namespace hillstar {
namespace {

void LogModel(const OpenedModel& model) {
  const Engine& engine = *model.engine;
  const ModelConfig& c = engine.config();
  const MemoryPlan memory = engine.memory();
  LogInfo(fmt::format("{} is loaded in {:.2f} s: a {}, weights {}, KV {}; {}", model.folder,
                      model.load_seconds,
                      Container::IsContainer(model.folder) ? "Hillstar container" : "checkpoint",
                      engine.weight_summary(), engine.kv_format(), DeviceText(engine)));
  const bool is_cpu = IsCpu(engine);
  const int64_t num_tokens = std::max(engine.context_tokens(), memory.num_pages * kPageTokens);
  LogInfo(fmt::format("{} of {} will take {} of memory{}",
                      num_tokens > engine.context_tokens() ? "sequences" : "a full context",
                      CountText(num_tokens, "token"),
                      BytesText(is_cpu ? memory.total() : memory.on_device()),
                      is_cpu ? "" : " on " + engine.device().id));
  if (!is_cpu) LogDebug(fmt::format("{}: {}", engine.device().id, engine.device().detail));
  LogDebug(fmt::format(
      "of it experts {}, other weights {}, latent KV {}, index keys {}, workspace "
      "{}, program {}",
      BytesText(memory.experts), BytesText(memory.dense_weights), BytesText(memory.latent_kv),
      BytesText(memory.index_keys), BytesText(memory.workspace), BytesText(memory.program)));
  LogDebug(fmt::format("{}: {}, {} dense, {} MTP; chat template: {}", c.model_type,
                       CountText(c.num_layers, "layer"), c.num_dense_layers, c.num_mtp_layers,
                       engine.chat_format().source()));
}

}  // namespace

std::string ModelFolder(const std::string& named) {
  return named.empty() ? BuiltInModel().string() : named;
}

OpenedModel OpenModel(const Options& options, bool load_mtp, const EngineSettings& settings) {
  OpenedModel model;
  model.folder = ModelFolder(options.model);
  std::error_code none;  // a folder that is not there is said by Open
  model.is_built_in = std::filesystem::equivalent(model.folder, BuiltInModel(), none);
  const Stopwatch watch;
  {
    ProgressLine line("loading", ProgressLine::Unit::kBytes);
    EngineOptions engine = EngineOptionsFrom(options, model.folder, load_mtp);
    engine.for_chat = settings.for_chat;
    engine.max_sequences = settings.max_sequences;
    engine.kv_tokens = settings.kv_tokens;
    engine.may_take_less_kv = settings.may_take_less_kv;
    model.engine =
        Engine::Open(engine, [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  }
  model.load_seconds = watch.seconds();
  LogModel(model);
  return model;
}

ReferenceFn LoadReference(const Options& options, const OpenedModel& model, int64_t num_tokens) {
  const auto source = ModelSource::Open(model.folder, options.weights, /*with_mtp=*/false);
  ProgressLine line("loading the reference", ProgressLine::Unit::kBytes);
  const AttentionMode attention =
      model.engine->selects_keys() ? AttentionMode::kSparse : AttentionMode::kDense;
  const std::shared_ptr<FloatReference> reference =
      FloatReference::Load(*source, num_tokens, model.engine->num_threads(), attention,
                           [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  return [reference](std::span<const int32_t> ids, const ReferenceLogitsFn& on_logits) {
    reference->Run(ids, kReferencePiece, on_logits);
  };
}

OpenedModel OpenChatModel(const Options& options) {
  return OpenModel(options, /*load_mtp=*/false, {.for_chat = true});
}

}  // namespace hillstar
