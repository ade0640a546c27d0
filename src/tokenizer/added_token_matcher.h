// Finds added tokens in a text: at each place, from the left, the longest one. Immutable after the
// last Add: any thread may search.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace hillstar {

class AddedTokenMatcher {
 public:
  struct Match {
    int32_t id = -1;  // -1: none
    size_t length = 0;
  };

  AddedTokenMatcher();
  // REQUIRES: `content` is not empty.
  void Add(std::string_view content, int32_t id);
  // The longest token that begins at text[pos] and ends by `end`.
  Match Longest(std::string_view text, size_t pos, size_t end) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    int32_t id = -1;
    std::vector<std::pair<char, uint32_t>> children;
  };
  // 0 where there is none: the root is nobody's child.
  uint32_t Child(uint32_t node, char byte) const;

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> first_{};  // the root's children
};

}  // namespace hillstar
