// Opens the model that a command names. Main thread only.
#pragma once

#include <memory>
#include <string>

#include "cli/reference_fn.h"
#include "core/options.h"
#include "hillstar/engine.h"

namespace hillstar {

struct OpenedModel {
  std::unique_ptr<Engine> engine;
  std::string folder;
  bool is_built_in = false;
  double load_seconds = 0;
};

// The folder `named`, or the built-in model's where it is empty. Errors: BuiltInModel's.
std::string ModelFolder(const std::string& named);

// What a command asks of the engine beside its options.
struct EngineSettings {
  bool for_chat = false;  // EngineOptions has the meanings
  int64_t max_sequences = 1;
  int64_t kv_tokens = 0;
  bool may_take_less_kv = false;
};

// Opens options.model or the built-in model, with progress on standard error, and logs what it is.
// Errors: kUsage for --weights with a container; the engine's.
OpenedModel OpenModel(const Options& options, bool load_mtp, const EngineSettings& settings = {});
// The float32 reference of an opened model, on the weights and with the attention that its engine
// has, for texts of num_tokens. Errors: FloatReference::Load's.
ReferenceFn LoadReference(const Options& options, const OpenedModel& model, int64_t num_tokens);
// As OpenModel, for talking to it.
OpenedModel OpenChatModel(const Options& options);

}  // namespace hillstar
