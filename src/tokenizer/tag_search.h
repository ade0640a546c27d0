// Finds tags such as <think> in a text that may go on. Pure; any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hillstar {

struct FoundTag {
  // Where the tag begins, or what may become one when the text goes on, or the text's size.
  size_t pos;
  int tag;  // which of the tags; -1: none is there as a whole
};

// The first of those `tags` whose bits are set in `wanted`. A tag begins with '<' and holds no
// other one, and no tag is the beginning of another.
inline FoundTag FindTag(std::string_view text, std::span<const std::string_view> tags,
                        uint32_t wanted = ~0u) {
  for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
    const std::string_view rest = text.substr(pos);
    for (size_t t = 0; t < tags.size(); ++t) {
      if ((wanted >> t & 1) == 0) continue;
      if (rest.starts_with(tags[t])) return {pos, int(t)};
      if (tags[t].starts_with(rest)) return {pos, -1};
    }
  }
  return {text.size(), -1};
}

}  // namespace hillstar
