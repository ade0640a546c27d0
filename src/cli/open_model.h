// Opens the model that a command names. Main thread only.
#pragma once

#include <memory>
#include <string>

#include "core/options.h"
#include "hillstar/engine.h"

namespace hillstar {

struct OpenedModel {
  std::unique_ptr<Engine> engine;
  std::string folder;
  bool is_built_in = false;
  double load_seconds = 0;
};

// Opens options.model or the built-in model, with progress on standard error.
// Errors: kUsage for --weights with a container; the engine's.
OpenedModel OpenModel(const Options& options, bool load_mtp);

}  // namespace hillstar
