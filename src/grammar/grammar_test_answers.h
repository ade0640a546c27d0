// What tests of grammars share: the built-in tokenizer, and whether a grammar takes a text, told in
// several ways that have to agree.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "hillstar/error.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

inline const Tokenizer& PocketTokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    std::ifstream file(std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket/tokenizer.json");
    std::stringstream text;
    text << file.rdbuf();
    return Tokenizer::FromJson(text.str());
  }();
  return *tokenizer;
}

inline const std::shared_ptr<const TokenTrie>& PocketTrie() {
  static const std::shared_ptr<const TokenTrie> trie = TokenTrie::Of(PocketTokenizer());
  return trie;
}

inline bool Allows(GrammarMatcher* matcher, int32_t id) {
  std::vector<uint32_t> mask(PocketTrie()->num_words());
  matcher->Mask(mask);
  return (mask[size_t(id) / 32] >> (id % 32) & 1) != 0;
}

// Whether the grammar takes these tokens as a whole answer. Each has to be in the mask exactly if
// it is accepted.
inline bool TakesIds(const std::shared_ptr<const Grammar>& grammar,
                     const std::vector<int32_t>& ids) {
  GrammarMatcher matcher(grammar, PocketTrie());
  for (const int32_t id : ids) {
    const bool is_allowed = Allows(&matcher, id);
    const bool is_accepted = matcher.Accept(id);
    EXPECT_EQ(is_allowed, is_accepted) << PocketTokenizer().TokenBytes(id);
    if (!is_accepted) return false;
  }
  return matcher.can_end();
}

// The text cut into tokens at random.
inline std::vector<int32_t> CutAtRandom(std::string_view text, std::mt19937* random) {
  const TokenTrie::Tree& tree = PocketTrie()->all();
  std::vector<int32_t> ids;
  for (size_t pos = 0; pos < text.size();) {
    // Tokens that the rest of the text begins with.
    std::vector<int32_t> fitting;
    uint32_t at = 0;
    for (size_t i = pos; i < text.size(); ++i) {
      uint32_t child = at + 1;
      while (child < tree.nodes[at].subtree_end && tree.nodes[child].byte != uint8_t(text[i])) {
        child = tree.nodes[child].subtree_end;
      }
      if (child >= tree.nodes[at].subtree_end) break;
      at = child;
      if (tree.nodes[at].token >= 0) fitting.push_back(tree.tokens[size_t(tree.nodes[at].token)]);
    }
    ids.push_back(fitting[(*random)() % fitting.size()]);
    pos += PocketTokenizer().TokenBytes(ids.back()).size();
  }
  return ids;
}

// Whether the grammar takes the text as a whole answer: byte by byte, as the tokenizer cuts it, and
// cut at random a few times.
inline bool Takes(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar, PocketTrie());
  const bool takes = matcher.AcceptBytes(text) && matcher.can_end();
  std::mt19937 random(uint32_t(text.size()));
  std::vector<std::vector<int32_t>> cuts = {PocketTokenizer().Encode(text, AddedTokens::kAsText)};
  for (int i = 0; i < 3; ++i) cuts.push_back(CutAtRandom(text, &random));
  for (const std::vector<int32_t>& ids : cuts) EXPECT_EQ(TakesIds(grammar, ids), takes) << text;
  return takes;
}

// The sentence of the Error that `make` throws; "" if it throws none.
template <typename Make>
std::string ErrorOf(const Make& make) {
  try {
    make();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadRequest);
    return error.what();
  }
  return "";
}

// Walks at random through what the masks allow, and compares each mask with what Accept says of
// every token. Returns the text; it is whole if `ends` says so.
inline std::string RandomAnswer(const std::shared_ptr<const Grammar>& grammar, uint32_t seed,
                                int num_tokens, bool checks_masks, bool* ends) {
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar, PocketTrie());
  std::vector<uint32_t> mask(PocketTrie()->num_words());
  std::string text;
  for (int step = 0; step < num_tokens; ++step) {
    matcher.Mask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < PocketTrie()->vocab_size(); ++id) {
      const bool is_allowed = (mask[size_t(id) / 32] >> (id % 32) & 1) != 0;
      if (checks_masks) {
        GrammarMatcher copy = matcher;
        EXPECT_EQ(copy.Accept(id), is_allowed) << text << "|" << PocketTokenizer().TokenBytes(id);
      }
      if (is_allowed) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    if (matcher.can_end() && random() % 8 == 0) break;
    const int32_t id = allowed[random() % allowed.size()];
    EXPECT_TRUE(matcher.Accept(id));
    text += PocketTokenizer().TokenBytes(id);
  }
  *ends = matcher.can_end();
  return text;
}

}  // namespace hillstar
