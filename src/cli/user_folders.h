// Where things lie that belong to the user or to the installed program. Reads the password database
// and /proc, never the environment. Main thread only.
#pragma once

#include <filesystem>

namespace hillstar {

// ~/.config/hillstar/config; empty where the user has no home.
std::filesystem::path UserConfigFile();
// ~/.local/state/hillstar/chat_history, its folder made if need be; empty where that fails.
std::filesystem::path ChatHistoryFile();
// ~/.local/state/hillstar/sessions, made if need be; empty where that fails.
std::filesystem::path SessionFolder();
// The built-in model: share/hillstar/models/pocket beside the program's folder, else models/pocket
// of the source tree that it was built from. Errors: kNotFound, saying where it was looked for.
std::filesystem::path BuiltInModel();

}  // namespace hillstar
