// A stretch of bytes in a text.
#pragma once

#include <cstddef>
#include <string_view>

namespace hillstar {

struct TextRange {
  size_t begin, end;  // bytes, end exclusive
  size_t size() const { return end - begin; }
  std::string_view of(std::string_view text) const { return text.substr(begin, end - begin); }
};

}  // namespace hillstar
