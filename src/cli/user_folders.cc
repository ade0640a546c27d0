#include "cli/user_folders.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <system_error>

#include "formats/file_io.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

namespace fs = std::filesystem;

fs::path Home() {
  const passwd* user = getpwuid(getuid());
  return user == nullptr || user->pw_dir == nullptr ? fs::path() : fs::path(user->pw_dir);
}

// ~/.local/state/hillstar or a folder in it, for the user alone; empty where it cannot be made.
fs::path StateFolder(const char* inside) {
  const fs::path home = Home();
  if (home.empty()) return {};
  const fs::path state = home / ".local/state/hillstar";
  const fs::path folder = *inside == '\0' ? state : state / inside;
  try {
    CreateFoldersDurably(folder);
  } catch (const Error&) {
    return {};
  }
  std::error_code error;
  fs::permissions(state, fs::perms::owner_all, error);
  return folder;
}

}  // namespace

fs::path UserConfigFile() {
  const fs::path home = Home();
  return home.empty() ? home : home / ".config/hillstar/config";
}

fs::path ChatHistoryFile() {
  const fs::path folder = StateFolder("");
  return folder.empty() ? folder : folder / "chat_history";
}

fs::path SessionFolder() { return StateFolder("sessions"); }

fs::path BuiltInModel() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path() / "../share/hillstar/models/pocket";
  const fs::path in_source_tree = fs::path(HILLSTAR_SOURCE_DIR) / "models/pocket";
  for (const fs::path& folder : {installed, in_source_tree}) {
    if (fs::is_directory(folder, error)) return fs::canonical(folder, error);
  }
  throw Error(ErrorCode::kNotFound,
              fmt::format("the built-in model is neither in {} nor in {}; --model names another",
                          installed.lexically_normal().string(), in_source_tree.string()));
}

}  // namespace hillstar
