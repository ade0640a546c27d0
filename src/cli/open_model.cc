#include "cli/open_model.h"

#include <chrono>

#include "cli/request.h"
#include "cli/terminal.h"
#include "cli/user_folders.h"

namespace hillstar {

OpenedModel OpenModel(const Options& options, bool load_mtp) {
  OpenedModel model;
  model.is_built_in = options.model.empty();
  model.folder = model.is_built_in ? BuiltInModel().string() : options.model;
  const auto start = std::chrono::steady_clock::now();
  ProgressLine line("loading", ProgressLine::Unit::kBytes);
  model.engine = Engine::Open(EngineOptionsFrom(options, model.folder, load_mtp),
                              [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  model.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace hillstar
