#include <iostream>

#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "cli/user_folders.h"

namespace hillstar {

int ChatCommand(const Options& options) {
  const OpenedModel model = OpenChatModel(options);
  const bool has_terminal = StandardInputIsTerminal() && StandardOutputIsTerminal();
  const std::unique_ptr<LineSource> lines =
      has_terminal ? TerminalLines(ChatHistoryFile()) : StreamLines(std::cin);
  return Chat(
      {*model.engine, options, model.is_built_in, has_terminal, *lines, std::cout, std::cerr});
}

}  // namespace hillstar
