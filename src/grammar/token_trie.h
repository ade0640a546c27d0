// The bytes of a tokenizer's tokens as a tree, to find which of them a grammar allows without
// looking at each. Immutable; shared by all matchers of the tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace hillstar {

class TokenTrie {
 public:
  // Nodes in the order of a walk into the depth; node 0 is the root.
  struct Node {
    uint32_t subtree_end;  // the node behind the last one below this
    int32_t token;         // an index of `tokens()`, or -1
    uint16_t depth;        // bytes from the root
    uint8_t byte;          // the last of them
  };
  struct Tree {
    std::vector<Node> nodes;
    // Tokens of one spelling follow each other; the first is a node's.
    std::vector<int32_t> tokens;
    std::vector<bool> is_last;  // of its spelling, by index of `tokens`
    uint32_t max_depth = 0;
  };

  // A plain character is a printable one of ASCII other than ", \ and <, or a whole one outside of
  // ASCII. Most tokens are plain: they hold nothing else. What takes any plain text takes all of
  // them, so that only the rest has to be looked at.
  static constexpr uint32_t kMaxPlainCharacters = 32;

  static std::shared_ptr<const TokenTrie> Of(const Tokenizer& tokenizer);
  // By id; an empty text is no token, or one that no text is made of.
  static std::shared_ptr<const TokenTrie> OfTokens(std::span<const std::string> bytes);

  const Tree& all() const { return all_; }
  // Without the plain tokens of at most kMaxPlainCharacters characters.
  const Tree& rest() const { return rest_; }
  // Bits of the plain tokens of at most `num_characters`. REQUIRES: 1 to kMaxPlainCharacters.
  std::span<const uint32_t> PlainTokens(uint32_t num_characters) const {
    return plain_[num_characters - 1];
  }
  // Bytes of a token; empty for added tokens, which only a grammar's token matches.
  const std::string& bytes(int32_t id) const { return bytes_[size_t(id)]; }
  int64_t vocab_size() const { return int64_t(bytes_.size()); }
  size_t num_words() const { return (bytes_.size() + 31) / 32; }  // of a mask

 private:
  explicit TokenTrie(std::vector<std::string> bytes);

  std::vector<std::string> bytes_;
  Tree all_, rest_;
  std::vector<std::vector<uint32_t>> plain_;
};

}  // namespace hillstar
