// Small text files that a command is given, read whole. Main thread only.
#pragma once

#include <filesystem>
#include <string>

namespace hillstar {

// Errors: kNotFound, kIo; kBadFile past 1 GiB, which no such file has.
std::string ReadTextFile(const std::filesystem::path& path);

}  // namespace hillstar
