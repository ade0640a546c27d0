#include "cli/open_model.h"

#include <chrono>
#include <filesystem>

#include "cli/request.h"
#include "cli/terminal.h"
#include "cli/user_folders.h"

namespace hillstar {

OpenedModel OpenModel(const Options& options, bool load_mtp) {
  OpenedModel model;
  model.folder = options.model.empty() ? BuiltInModel().string() : options.model;
  std::error_code none;  // a folder that is not there is said by Open
  model.is_built_in = std::filesystem::equivalent(model.folder, BuiltInModel(), none);
  const auto start = std::chrono::steady_clock::now();
  ProgressLine line("loading", ProgressLine::Unit::kBytes);
  model.engine = Engine::Open(EngineOptionsFrom(options, model.folder, load_mtp),
                              [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  model.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace hillstar
