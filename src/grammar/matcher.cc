#include "grammar/matcher.h"

#include <algorithm>
#include <string_view>

namespace hillstar {

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar,
                               std::shared_ptr<const TokenTrie> trie)
    : trie_(std::move(trie)),
      masks_(grammar->MasksWith(trie_)),
      states_(grammar->push_down()),
      current_(states_.Of({grammar->push_down()->start, ParseStates::kBottom})),
      mask_(trie_->num_words()) {}

void GrammarMatcher::Mask(std::span<uint32_t> allowed_bits) {
  if (!has_mask_) FindMask();
  has_mask_ = true;
  const size_t num_words = std::min(mask_.size(), allowed_bits.size());
  std::copy_n(mask_.begin(), num_words, allowed_bits.begin());
  std::fill(allowed_bits.begin() + ptrdiff_t(num_words), allowed_bits.end(), 0);
}

void GrammarMatcher::MakeRoom() {
  if (states_.has_many_frames()) {
    current_ = states_.Restart(current_);
  } else if (states_.is_full()) {
    states_.Drop({&current_, 1});
  }
}

void GrammarMatcher::FindMask() {
  std::fill(mask_.begin(), mask_.end(), 0);
  MakeRoom();
  const auto first = states_.places(current_);
  places_.assign(first.begin(), first.end());
  TrieWalk walk(&states_);
  bool was_cut = false;
  if (states_.was_clipped()) {
    WalkAll(&walk);
  } else {
    for (size_t i = 0; i < places_.size(); ++i) {
      const ParseStates::Place place = places_[i];
      const std::shared_ptr<const NodeMask> mask = masks_->Of(place.node);
      was_cut = was_cut || mask->was_cut;
      AddPlace(place, *mask, &walk);
    }
  }
  if (was_cut || walk.was_cut()) AddSingleBytes();
}

void GrammarMatcher::WalkAll(TrieWalk* walk) {
  for (const ParseStates::Place place : states_.open_places(current_)) {
    const PushDown::Node& node = states_.grammar().nodes[place.node];
    for (uint32_t i = node.token_begin; i < node.token_end; ++i) {
      const PushDown::TokenEdge& edge = states_.grammar().token_edges[i];
      const auto last = int32_t(std::min<int64_t>(edge.last, trie_->vocab_size() - 1));
      for (int32_t id = edge.first; id <= last; ++id) Set(id);
    }
  }
  walk->Walk(
      trie_->all(), 0, current_, {&current_, 1},
      [&](int32_t token) { SetTokens(trie_->all(), token); }, [](uint32_t) {});
}

void GrammarMatcher::AddPlace(ParseStates::Place place, const NodeMask& mask, TrieWalk* walk) {
  for (size_t i = 0; i < mask.bits.size(); ++i) mask_[i] |= mask.bits[i];
  for (const int32_t id : mask.ids) Set(id);
  if (mask.plain_characters > 0) {
    const auto plain = trie_->PlainTokens(mask.plain_characters);
    for (size_t i = 0; i < plain.size(); ++i) mask_[i] |= plain[i];
  }
  if (place.stack == ParseStates::kBottom) return;  // nothing follows the whole grammar
  const ParseStates::Place caller = states_.Returned(place.stack);
  if (mask.ends_here && std::ranges::find(places_, caller) == places_.end()) {
    places_.push_back(caller);
  }
  if (mask.exits.empty() || walk->was_cut()) return;
  const TokenTrie::Tree& tree = mask.tree(*trie_);
  ParseStates::State held[] = {current_, states_.Of(caller)};
  for (const uint32_t exit : mask.exits) {
    walk->Walk(
        tree, exit, held[1], held, [&](int32_t token) { SetTokens(tree, token); }, [](uint32_t) {});
    if (walk->was_cut()) break;
  }
  current_ = held[0];
}

void GrammarMatcher::SetTokens(const TokenTrie::Tree& tree, int32_t token) {
  for (auto i = size_t(token);; ++i) {
    Set(tree.tokens[i]);
    if (tree.is_last[i]) break;
  }
}

// Where the search for long tokens was given up, there is a way on all the same.
void GrammarMatcher::AddSingleBytes() {
  const TokenTrie::Tree& tree = trie_->all();
  for (uint32_t i = 1; i < tree.nodes.size(); i = tree.nodes[i].subtree_end) {
    const TokenTrie::Node& node = tree.nodes[i];
    if (node.token < 0 || states_.Next(current_, node.byte) == ParseStates::kDead) continue;
    SetTokens(tree, node.token);
  }
}

bool GrammarMatcher::MoveTo(ParseStates::State state) {
  has_mask_ = has_mask_ && state == current_;
  current_ = state;
  return true;
}

ParseStates::State GrammarMatcher::NextOfBytes(ParseStates::State state, std::string_view bytes) {
  for (const char c : bytes) {
    if (state == ParseStates::kDead) break;
    state = states_.Next(state, static_cast<uint8_t>(c));
  }
  return state;
}

bool GrammarMatcher::AcceptBytes(std::string_view bytes) {
  MakeRoom();
  const ParseStates::State state = NextOfBytes(current_, bytes);
  return state != ParseStates::kDead && MoveTo(state);
}

bool GrammarMatcher::Accept(int32_t id) {
  if (id < 0 || id >= trie_->vocab_size()) return false;
  // What the mask says has to hold, so the places stay as they are.
  if (!has_mask_) MakeRoom();
  ParseStates::State state = states_.NextOfToken(current_, id);
  const std::string& bytes = trie_->bytes(id);
  if (!bytes.empty()) state = states_.Either(state, NextOfBytes(current_, bytes));
  if (state != ParseStates::kDead) return MoveTo(state);
  // Too many places at once within the token: some were left out, and that were all.
  const bool was_allowed = has_mask_ && (mask_[size_t(id) / 32] >> (id % 32) & 1) != 0;
  return was_allowed && MoveTo(ParseStates::kDead);
}

}  // namespace hillstar
