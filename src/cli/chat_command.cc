#include <iostream>
#include <optional>

#include "cli/chat.h"
#include "cli/colibri_chat.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/saved_chat.h"
#include "cli/terminal.h"
#include "cli/user_folders.h"

namespace hillstar {

int ChatCommand(const Options& options) {
  const OpenedModel model = OpenChatModel(options);
  const bool has_terminal = StandardInputIsTerminal() && StandardOutputIsTerminal();
  const std::unique_ptr<LineSource> lines =
      has_terminal ? TerminalLines(ChatHistoryFile()) : StreamLines(std::cin);
  std::optional<SavedChat> saved;
  if (options.is_given("session")) saved.emplace(*model.engine, SessionPath(options.session));
  ChatSession session{*model.engine, options,   model.is_built_in, has_terminal,
                      *lines,        std::cout, std::cerr};
  if (saved) session.saved = &*saved;
  if (options.is_given("import-session")) {
    session.import = [&](Conversation& conversation) {
      return ImportColibriChat(*model.engine, options.import_session, conversation);
    };
  }
  return Chat(session);
}

}  // namespace hillstar
