#include "grammar/token_trie.h"

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

// Longer tokens (runs of blanks and the like) are never allowed; no text needs one.
constexpr size_t kMaxTokenBytes = 1024;

// Characters of a plain token; 0 for one that is not plain.
uint32_t NumPlainCharacters(std::string_view bytes) {
  uint32_t count = 0;
  for (size_t pos = 0; pos < bytes.size(); ++count) {
    const char c = bytes[pos];
    if (c == '"' || c == '\\' || c == '<') return 0;
    const Utf8Step step = ScanUtf8(bytes, pos);
    if (step.status != Utf8Status::kCharacter || step.code < 0x20 || step.code == 0x7F) return 0;
    pos += step.length;
  }
  return count;
}

TokenTrie::Tree TreeOf(std::vector<std::pair<std::string_view, int32_t>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  TokenTrie::Tree tree;
  tree.nodes.push_back({0, -1, 0, 0});
  std::vector<uint32_t> path = {0};  // nodes of the last token's prefixes
  std::string_view last;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      tree.nodes[path.back()].subtree_end = uint32_t(tree.nodes.size());
    }
  };
  for (const auto& [bytes, id] : tokens) {
    if (bytes == last && !tree.tokens.empty()) {
      tree.is_last.back() = false;
    } else {
      const auto [differs, unused] = std::ranges::mismatch(last, bytes);
      close(size_t(differs - last.begin()));
      for (size_t depth = path.size() - 1; depth < bytes.size(); ++depth) {
        path.push_back(uint32_t(tree.nodes.size()));
        tree.nodes.push_back({0, -1, uint16_t(depth + 1), uint8_t(bytes[depth])});
      }
      tree.nodes[path.back()].token = int32_t(tree.tokens.size());
      tree.max_depth = std::max(tree.max_depth, uint32_t(bytes.size()));
      last = bytes;
    }
    tree.tokens.push_back(id);
    tree.is_last.push_back(true);
  }
  close(0);
  tree.nodes[0].subtree_end = uint32_t(tree.nodes.size());
  return tree;
}

}  // namespace

std::shared_ptr<const TokenTrie> TokenTrie::Of(const Tokenizer& tokenizer) {
  std::vector<std::string> bytes(size_t(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view text = tokenizer.TokenBytes(id);
    // Added tokens are control, special or not: <tool_call> is one of the text's tags and no text.
    if (tokenizer.IsSpecial(id) || tokenizer.AddedTokenId(text) == id) continue;
    bytes[size_t(id)] = std::string(text);
  }
  return std::shared_ptr<const TokenTrie>(new TokenTrie(std::move(bytes)));
}

std::shared_ptr<const TokenTrie> TokenTrie::OfTokens(std::span<const std::string> bytes) {
  return std::shared_ptr<const TokenTrie>(
      new TokenTrie(std::vector<std::string>(bytes.begin(), bytes.end())));
}

TokenTrie::TokenTrie(std::vector<std::string> bytes)
    : bytes_(std::move(bytes)), plain_(kMaxPlainCharacters, std::vector<uint32_t>(num_words())) {
  std::vector<std::pair<std::string_view, int32_t>> all, rest;
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id].size() > kMaxTokenBytes) bytes_[id].clear();
    if (bytes_[id].empty()) continue;
    all.emplace_back(bytes_[id], int32_t(id));
    const uint32_t length = NumPlainCharacters(bytes_[id]);
    if (length == 0 || length > kMaxPlainCharacters) {
      rest.emplace_back(bytes_[id], int32_t(id));
      continue;
    }
    for (uint32_t i = length; i <= kMaxPlainCharacters; ++i) {
      plain_[i - 1][id / 32] |= uint32_t{1} << (id % 32);
    }
  }
  all_ = TreeOf(std::move(all));
  rest_ = TreeOf(std::move(rest));
}

}  // namespace hillstar
