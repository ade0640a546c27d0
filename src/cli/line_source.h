// Lines that a person types, or that a pipe brings. Main thread only.
#pragma once

#include <filesystem>
#include <istream>
#include <memory>
#include <string>

namespace hillstar {

struct Input {
  enum class Kind {
    kText,
    kDropped,  // by Ctrl-C; of a message also where the input ended within it
    kEnd,      // Ctrl-D on an empty line, or the pipe's end
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of kText
};

class LineSource {
 public:
  virtual ~LineSource() = default;
  // The next line without its newline.
  virtual Input Next(const std::string& prompt) = 0;
};

// Reads lines from a stream; shows no prompt. `stream` must outlive it.
std::unique_ptr<LineSource> StreamLines(std::istream& stream);
// Lets a person edit lines on the terminal with libedit, with a history kept in `history_file`
// (none if empty).
std::unique_ptr<LineSource> TerminalLines(const std::filesystem::path& history_file);

// One message: lines joined while they end in a backslash. Two backslashes at the end of a line are
// one of the text and end the message.
Input NextMessage(LineSource& lines, const std::string& prompt);

}  // namespace hillstar
