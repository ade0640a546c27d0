// Which tokens may follow a node of a grammar as far as its rule alone can tell. It does not depend
// on what called the rule, so it is found once for a grammar and a tokenizer and kept.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/parse_states.h"
#include "grammar/push_down.h"
#include "grammar/token_trie.h"

namespace hillstar {

struct NodeMask {
  // Tokens that fit into the rule as a whole: these, and where it is not 0 the plain tokens of so
  // many characters.
  std::vector<uint32_t> bits;  // of all tokens, or empty
  std::vector<int32_t> ids;
  uint32_t plain_characters = 0;
  bool ends_here = false;  // the rule may end before any token
  // Nodes of the trie where the rule may have ended within a token: what called it has to say
  // whether the tokens below fit.
  std::vector<uint32_t> exits;
  bool exits_of_rest = false;  // they are nodes of TokenTrie::rest
  bool was_cut = false;        // the search was given up; single bytes have to be looked at apart

  size_t num_bytes() const {
    return sizeof(NodeMask) + 4 * (bits.capacity() + ids.capacity() + exits.capacity());
  }
  const TokenTrie::Tree& tree(const TokenTrie& trie) const {
    return exits_of_rest ? trie.rest() : trie.all();
  }
};

// Walks a trie along with the states of a grammar.
class TrieWalk {
 public:
  // What may be new on one walk: states of this many places. About 30 ms.
  static constexpr int64_t kMaxWork = 500'000;
  // Nodes that may be visited for one mask. About 20 ms.
  static constexpr int64_t kMaxVisits = 2'000'000;

  explicit TrieWalk(ParseStates* states) : states_(states) {}

  // Calls on_token(index of the tree's tokens) for each token below `from` that the grammar allows,
  // `state` being where it stands at `from`, and on_exit(node) where the lowest rule may have ended
  // with tokens below. `held` are states that the caller goes on using.
  template <typename OnToken, typename OnExit>
  void Walk(const TokenTrie::Tree& tree, uint32_t from, ParseStates::State state,
            std::span<ParseStates::State> held, const OnToken& on_token, const OnExit& on_exit);
  // Whether a walk went on too long and left tokens out.
  bool was_cut() const { return was_cut_; }

 private:
  void DropStates(std::span<ParseStates::State> held, size_t num_on_path);

  ParseStates* states_;
  std::vector<ParseStates::State> path_;
  int64_t num_visits_ = 0;
  bool was_cut_ = false;
};

// Threads may share one.
class MaskCache {
 public:
  // The masks of a grammar may take so much memory; beyond it those not used for longest go.
  static constexpr size_t kMaxBytes = size_t{8} << 20;

  MaskCache(std::shared_ptr<const PushDown> grammar, std::shared_ptr<const TokenTrie> trie)
      : trie_(std::move(trie)), states_(std::move(grammar)) {}

  std::shared_ptr<const NodeMask> Of(uint32_t node);

 private:
  struct Entry {
    uint32_t node;
    std::shared_ptr<const NodeMask> mask;
  };

  NodeMask Find(uint32_t node);
  void AddTokens(ParseStates::State state, std::vector<uint32_t>* bits) const;

  std::shared_ptr<const TokenTrie> trie_;
  std::mutex mutex_;
  ParseStates states_;        // those below are guarded by mutex_ too
  std::list<Entry> entries_;  // the last used first
  std::unordered_map<uint32_t, std::list<Entry>::iterator> by_node_;
  size_t num_bytes_ = 0;
};

template <typename OnToken, typename OnExit>
void TrieWalk::Walk(const TokenTrie::Tree& tree, uint32_t from, ParseStates::State state,
                    std::span<ParseStates::State> held, const OnToken& on_token,
                    const OnExit& on_exit) {
  const int64_t last_work = states_->work() + kMaxWork;
  const size_t base = size_t{tree.nodes[from].depth} + 1;
  const uint32_t end = tree.nodes[from].subtree_end;
  path_.resize(tree.max_depth + 2);
  path_[0] = state;
  for (uint32_t i = from + 1; i < end;) {
    const TokenTrie::Node& node = tree.nodes[i];
    const size_t depth = size_t{node.depth} - base;
    const ParseStates::State next = states_->Next(path_[depth], node.byte);
    ++num_visits_;
    if (next == ParseStates::kDead) {
      i = node.subtree_end;
      continue;
    }
    path_[depth + 1] = next;
    if (node.token >= 0) on_token(node.token);
    if (node.subtree_end > i + 1 && states_->can_end(next)) on_exit(i);
    if (states_->is_full()) DropStates(held, depth + 2);
    if (states_->work() > last_work || num_visits_ > kMaxVisits) {
      was_cut_ = true;
      return;
    }
    ++i;
  }
}

}  // namespace hillstar
