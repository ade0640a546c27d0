#include <cstdio>

#include "cli/commands.h"

namespace hillstar {

int OptionsCommand(const Options& options) {
  std::fputs((options.markdown ? OptionsMarkdown() : OptionsList()).c_str(), stdout);
  return 0;
}

}  // namespace hillstar
