// Small text files that a command is given, read whole. Main thread only.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

namespace hillstar {

// Errors: kNotFound, kIo; kBadFile past 1 GiB (64 MiB of a pipe or device), which no such file has.
std::string ReadTextFile(const std::filesystem::path& path);

// True if reading `in` ended with an error, not at its end; for std::cin C's stream knows that.
bool CannotBeRead(const std::istream& in);

}  // namespace hillstar
