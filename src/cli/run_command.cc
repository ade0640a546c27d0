#include <iostream>

#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/run.h"
#include "cli/terminal.h"

namespace hillstar {

int RunCommand(const Options& options) {
  CheckRunOptions(options);
  const OpenedModel model =
      options.raw ? OpenModel(options, /*load_mtp=*/false) : OpenChatModel(options);
  return RunOnce({*model.engine, options, model.is_built_in, StandardOutputIsTerminal(), std::cin,
                  std::cout, std::cerr});
}

}  // namespace hillstar
