#include "tokenizer/added_token_matcher.h"

namespace hillstar {

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1) {}

uint32_t AddedTokenMatcher::Child(uint32_t node, char byte) const {
  if (node == 0) return first_[static_cast<uint8_t>(byte)];
  for (const auto& [child_byte, child] : nodes_[node].children) {
    if (child_byte == byte) return child;
  }
  return 0;
}

void AddedTokenMatcher::Add(std::string_view content, int32_t id) {
  uint32_t node = 0;
  for (const char byte : content) {
    uint32_t child = Child(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      if (node == 0) {
        first_[static_cast<uint8_t>(byte)] = child;
      } else {
        nodes_[node].children.emplace_back(byte, child);
      }
    }
    node = child;
  }
  nodes_[node].id = id;
}

AddedTokenMatcher::Match AddedTokenMatcher::Longest(std::string_view text, size_t pos,
                                                    size_t end) const {
  Match best;
  uint32_t node = 0;
  for (size_t i = pos; i < end; ++i) {
    node = Child(node, text[i]);
    if (node == 0) break;
    if (nodes_[node].id >= 0) best = {nodes_[node].id, i + 1 - pos};
  }
  return best;
}

}  // namespace hillstar
