#include "cli/text_file.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <system_error>

#include "hillstar/error.h"

namespace hillstar {

std::string ReadTextFile(const std::filesystem::path& path) {
  constexpr uintmax_t kLargest = uintmax_t{1} << 30;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} is a folder, not a file", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(ErrorCode::kNotFound, fmt::format("the file {} cannot be opened", path.string()));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLargest) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} has {} bytes; a text file of this kind has at most {}",
                            path.string(), size, kLargest));
  }
  std::stringstream text;
  text << file.rdbuf();
  if (file.bad()) {
    throw Error(ErrorCode::kIo, fmt::format("the file {} cannot be read", path.string()));
  }
  return std::move(text).str();
}

bool CannotBeRead(const std::istream& in) {
  return in.bad() || (&in == &std::cin && std::ferror(stdin) != 0);
}

}  // namespace hillstar
