// One answer of `hillstar run`, apart from the model's loading.
#pragma once

#include <istream>
#include <ostream>

#include "core/options.h"
#include "hillstar/engine.h"

namespace hillstar {

struct RunSession {
  Engine& engine;
  const Options& options;
  bool is_built_in;
  bool has_terminal;  // `out` is one
  std::istream& in;   // where the prompt "-" is read from
  std::ostream& out;
  std::ostream& notes;
};

// Errors: kUsage for options that are of no use together; those of ReadToolsFile. RunOnce checks
// this as well; a command does so before it loads a model.
void CheckRunOptions(const Options& options);

// Returns 0, or kInterruptedExitCode if Ctrl-C has stopped the answer; what came is printed.
// Errors: those of CheckRunOptions and Generate.
int RunOnce(const RunSession& session);

}  // namespace hillstar
