#include "cli/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <system_error>
#include <vector>

#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr size_t kLargestFile = size_t{1} << 30;
constexpr size_t kLargestPipe = size_t{64} << 20;

}  // namespace

std::string ReadTextFile(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} is a folder, not a file", path.string()));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(ErrorCode::kNotFound, fmt::format("the file {} cannot be opened: {}", path.string(),
                                                  std::strerror(errno)));
  }
  // A device may never end.
  const size_t largest =
      std::filesystem::is_regular_file(path, error) ? kLargestFile : kLargestPipe;
  std::string text;
  std::vector<char> piece(size_t{1} << 20);
  while (file.read(piece.data(), std::streamsize(piece.size())) || file.gcount() > 0) {
    text.append(piece.data(), size_t(file.gcount()));
    if (text.size() <= largest) continue;
    throw Error(ErrorCode::kBadFile, fmt::format("{} has more than {} bytes, the most that a text "
                                                 "of this kind may have",
                                                 path.string(), largest));
  }
  if (file.bad()) {
    throw Error(ErrorCode::kIo, fmt::format("the file {} cannot be read", path.string()));
  }
  return text;
}

bool CannotBeRead(const std::istream& in) {
  return in.bad() || (&in == &std::cin && std::ferror(stdin) != 0);
}

}  // namespace hillstar
