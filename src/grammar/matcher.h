// Follows an answer through a grammar, token by token, and says which tokens may come next. It
// works on the bytes of tokens, so a token may cover several parts of the grammar or a part of a
// character.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/mask_cache.h"
#include "grammar/parse_states.h"
#include "grammar/token_trie.h"

namespace hillstar {

// Belongs to one sequence; one thread at a time. A copy goes its own way from there, which is how
// to look ahead. Nothing but the constructors and copies throws, and those only for want of memory.
class GrammarMatcher {
 public:
  GrammarMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  // Sets bit i % 32 of word i / 32 where token i may come next and clears all others. Tokens that
  // end an answer are not in it: whether one may come is can_end(). Words beyond the vocabulary
  // are cleared, words that are missing left out.
  void Mask(std::span<uint32_t> allowed_bits);
  // Takes a token. False, and nothing has changed, if the grammar does not allow it.
  bool Accept(int32_t id);
  // The same for bytes of text, whatever tokens they come as.
  bool AcceptBytes(std::string_view bytes);

  // What came is a whole sentence of the grammar.
  bool can_end() const { return states_.can_end(current_); }
  // Nothing may follow: the sentence is whole and has no longer form.
  bool is_ended() const { return can_end() && states_.open_places(current_).empty(); }
  // Nothing may follow, and the sentence is not whole. Only grammars get here that say the same in
  // more ways at once than can be followed; the answer should fail.
  bool is_stuck() const { return !can_end() && states_.open_places(current_).empty(); }
  // Bytes of the shortest text that completes the sentence; a token of the grammar counts as one.
  uint32_t min_bytes_to_end() const { return states_.MinBytes(current_); }

 private:
  void FindMask();
  // Gives memory back, where there is much of it. Numbers of states change, but for current_.
  void MakeRoom();
  // By trying every token from where the answer stands.
  void WalkAll(TrieWalk* walk);
  // Adds what the rule allows in which the place is, and what called it where the rule may end.
  void AddPlace(ParseStates::Place place, const NodeMask& mask, TrieWalk* walk);
  void AddSingleBytes();
  void Set(int32_t id) { mask_[size_t(id) / 32] |= uint32_t{1} << (id % 32); }
  void SetTokens(const TokenTrie::Tree& tree, int32_t token);
  bool MoveTo(ParseStates::State state);
  ParseStates::State NextOfBytes(ParseStates::State state, std::string_view bytes);

  std::shared_ptr<const TokenTrie> trie_;
  std::shared_ptr<MaskCache> masks_;
  ParseStates states_;
  ParseStates::State current_;
  std::vector<uint32_t> mask_;  // of current_
  bool has_mask_ = false;
  std::vector<ParseStates::Place> places_;  // scratch of FindMask
};

}  // namespace hillstar
