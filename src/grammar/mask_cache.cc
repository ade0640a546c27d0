#include "grammar/mask_cache.h"

#include <algorithm>
#include <bit>

namespace hillstar {
namespace {

void SetRange(int64_t first, int64_t last, std::vector<uint32_t>* bits) {
  for (int64_t id = first; id <= last;) {
    if (id % 32 == 0 && last - id >= 31) {
      (*bits)[size_t(id / 32)] = ~0u;
      id += 32;
    } else {
      (*bits)[size_t(id / 32)] |= uint32_t{1} << (id % 32);
      ++id;
    }
  }
}

// Few tokens are kept as a list, which takes less memory and time.
void Shorten(NodeMask* mask) {
  size_t count = 0;
  for (const uint32_t word : mask->bits) count += size_t(std::popcount(word));
  if (count > mask->bits.size() / 2) return;
  mask->ids.reserve(count);
  for (size_t i = 0; i < mask->bits.size(); ++i) {
    for (uint32_t word = mask->bits[i]; word != 0; word &= word - 1) {
      mask->ids.push_back(int32_t(32 * i + size_t(std::countr_zero(word))));
    }
  }
  mask->bits.clear();
  mask->bits.shrink_to_fit();
}

}  // namespace

void TrieWalk::DropStates(std::span<ParseStates::State> held, size_t num_on_path) {
  std::vector<ParseStates::State> keep(held.begin(), held.end());
  keep.insert(keep.end(), path_.begin(), path_.begin() + ptrdiff_t(num_on_path));
  states_->Drop(keep);
  std::copy_n(keep.begin(), held.size(), held.begin());
  std::copy_n(keep.begin() + ptrdiff_t(held.size()), num_on_path, path_.begin());
}

std::shared_ptr<const NodeMask> MaskCache::Of(uint32_t node) {
  const std::lock_guard lock(mutex_);
  const auto found = by_node_.find(node);
  if (found != by_node_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front().mask;
  }
  entries_.push_front({node, std::make_shared<const NodeMask>(Find(node))});
  by_node_[node] = entries_.begin();
  num_bytes_ += entries_.front().mask->num_bytes();
  while (num_bytes_ > kMaxBytes && entries_.size() > 1) {
    num_bytes_ -= entries_.back().mask->num_bytes();
    by_node_.erase(entries_.back().node);
    entries_.pop_back();
  }
  return entries_.front().mask;
}

NodeMask MaskCache::Find(uint32_t node) {
  if (states_.has_many_frames()) states_.Restart(ParseStates::kDead);
  const PushDown::Node& at = states_.grammar().nodes[node];
  NodeMask mask;
  mask.plain_characters = std::min(at.text_run, TokenTrie::kMaxPlainCharacters);
  mask.exits_of_rest = at.text_run > 0;
  mask.bits.resize(trie_->num_words());
  const ParseStates::State state = states_.Of({node, ParseStates::kBottom});
  mask.ends_here = states_.can_end(state);
  AddTokens(state, &mask.bits);
  const TokenTrie::Tree& tree = mask.tree(*trie_);
  TrieWalk walk(&states_);
  walk.Walk(
      tree, 0, state, {},
      [&](int32_t token) {
        for (auto i = size_t(token);; ++i) {
          SetRange(tree.tokens[i], tree.tokens[i], &mask.bits);
          if (tree.is_last[i]) break;
        }
      },
      [&](uint32_t exit) { mask.exits.push_back(exit); });
  mask.was_cut = walk.was_cut();
  Shorten(&mask);
  mask.exits.shrink_to_fit();
  return mask;
}

void MaskCache::AddTokens(ParseStates::State state, std::vector<uint32_t>* bits) const {
  for (const ParseStates::Place place : states_.open_places(state)) {
    const PushDown::Node& node = states_.grammar().nodes[place.node];
    for (uint32_t i = node.token_begin; i < node.token_end; ++i) {
      const PushDown::TokenEdge& edge = states_.grammar().token_edges[i];
      SetRange(edge.first, std::min<int64_t>(edge.last, trie_->vocab_size() - 1), bits);
    }
  }
}

}  // namespace hillstar
