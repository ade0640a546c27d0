// A conversation that outlives the program: its messages, its tokens and their KV rows in a session
// file. Uses the engine from the caller's thread.
#pragma once

#include <filesystem>
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
  // Opens the session, which nobody else can use meanwhile, or begins a new one. `engine` must
  // outlive it. A file with less than `min_garbage_bytes` of no use is left as it is.
  // Errors: SessionFile::OpenOrCreate's.
  SavedChat(Engine& engine, const std::filesystem::path& path,
            uint64_t min_garbage_bytes = SessionFile::kMinGarbageBytes);

  // Brings the conversation back: messages, and rows without computing them again. Rows that are
  // damaged, or another model's or format's, come with the next answer. Returns sentences for the
  // user. Errors: kBudget where the context is too short; kBadFile where messages or tokens make
  // no sense; the engine's.
  std::vector<std::string> Restore(Conversation& conversation);

  // Writes what is new; returns once it is on the drive, with sentences for the user.
  // Errors: kIo; what was saved before stays.
  std::vector<std::string> Save(const Conversation& conversation);
  // The same, and nothing of what was saved before stays in the file; where that fails, the next
  // Save does it. Errors: likewise.
  void SaveAnew(const Conversation& conversation);

 private:
  // Rows [0, n) from the file's pages; n is what it returns.
  int64_t RestoreRows(Sequence& sequence);
  void Write(const Conversation& conversation);
  // A new file in place of this one, if that is due. Returns sentences for the user.
  std::vector<std::string> Compact();

  const int64_t context_tokens_;
  const KvShape& kv_shape_;
  SessionFile file_;
  size_t num_told_ = 0;  // of the file's findings
  const uint64_t min_garbage_bytes_;
  uint64_t compact_from_bytes_;  // of garbage
  bool must_forget_ = false;     // the file still holds what was forgotten
};

}  // namespace hillstar
