// A conversation that outlives the program: its messages, its tokens and their KV rows in a session
// file. Uses the engine from the caller's thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/conversation.h"
#include "hillstar/engine.h"
#include "kv/session_file.h"

namespace hillstar {

// The file of `--session NAME`: ~/.local/state/hillstar/sessions/NAME.session; a NAME with a slash
// is the file itself. The folder is made if need be. Errors: kUsage for a name that is empty,
// begins with a dot, or holds control characters; kIo where there is no folder to keep it in.
std::filesystem::path SessionPath(const std::string& name);

class SavedChat {
 public:
  // Opens the session, which nobody else can use meanwhile, or begins a new one.
  // Errors: SessionFile's, but for another model or KV format (see Restore).
  SavedChat(Engine& engine, const std::filesystem::path& path);

  // Brings the conversation back: messages, and rows without computing them again. What is damaged
  // is computed from the tokens; of another model's or format's session the messages are kept and
  // the rows come with the next answer. Returns sentences for the user.
  // Errors: kBudget where the context is too short; kBadFile where messages or tokens make no
  // sense; the engine's.
  std::vector<std::string> Restore(Conversation& conversation);

  // Writes what is new; returns once it is on the drive. Errors: kIo; what was saved before stays.
  void Save(const Conversation& conversation);

 private:
  // Rows [0, n) from the file's pages; n is what it returns.
  int64_t RestoreRows(Sequence& sequence);

  const std::filesystem::path path_;
  const SessionIdentity identity_;
  std::optional<SessionFile> file_;
  std::vector<std::string> told_;  // while the file was opened
  std::string meta_;
};

}  // namespace hillstar
