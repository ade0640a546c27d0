#include <cstdio>

#include "cli/commands.h"

namespace hillstar {

int OptionsCommand(const Options& options) {
  if (options.markdown) {
    std::fputs(OptionsMarkdown().c_str(), stdout);
    return 0;
  }
  std::fputs(GeneralHelp().c_str(), stdout);
  for (const CommandSpec& spec : CommandTable()) {
    std::fprintf(stdout, "\n%s", CommandHelp(spec.command).c_str());
  }
  return 0;
}

}  // namespace hillstar
