// Lines that a person types, or that a pipe brings. Main thread only.
#pragma once

#include <filesystem>
#include <istream>
#include <memory>
#include <optional>
#include <string>

namespace hillstar {

class LineSource {
 public:
  virtual ~LineSource() = default;
  // The next line without its newline; nothing at the end (Ctrl-D).
  virtual std::optional<std::string> Next(const std::string& prompt) = 0;
};

// Reads lines from a stream; shows no prompt. `stream` must outlive it.
std::unique_ptr<LineSource> StreamLines(std::istream& stream);
// Lets a person edit lines on the terminal with libedit, with a history kept in `history_file`
// (none if empty). Ctrl-C empties the line.
std::unique_ptr<LineSource> TerminalLines(const std::filesystem::path& history_file);

// One message: lines joined while they end in a backslash.
std::optional<std::string> NextMessage(LineSource& lines, const std::string& prompt);

}  // namespace hillstar
