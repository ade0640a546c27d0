// From argv to a command and its checked options. Plain functions, main thread only.
#pragma once

#include <string>
#include <vector>

#include "core/options.h"

namespace hillstar {

struct CommandLine {
  Command command = Command::kChat;
  Options options;
  // Help or the version. Not empty: print it and end, with nothing else to do.
  std::string text;
};

// `arguments` without the program's name. Reads the configuration file that --config names, or the
// user's where there is one. Errors: kUsage, kNotFound for a --config file that is not there.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace hillstar
