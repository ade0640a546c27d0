// Full pages by the tokens that lead to them, so that a new sequence adopts what another has
// computed. A tree: a node is a page of 64 tokens below the page before it; its key is a hash chain
// over the token ids, begun with the identity of model and format, and the ids themselves are
// compared, so that no collision of hashes can give wrong rows. Policy only: owns no memory of
// pages and counts no references (see KvCache). Used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "kv/layout.h"

namespace hillstar {

class PrefixIndex {
 public:
  using NodeId = int32_t;
  static constexpr NodeId kRoot = 0;  // before the first page
  static constexpr NodeId kNone = -1;

  // Of a page's tokens, behind a page whose hash is `seed`.
  using HashFn = uint64_t (*)(std::span<const int32_t> tokens, uint64_t seed);
  static uint64_t HashTokens(std::span<const int32_t> tokens, uint64_t seed);

  explicit PrefixIndex(uint64_t identity, HashFn hash = HashTokens);

  // The page of exactly these 64 tokens below `parent`, or kNone.
  NodeId Find(NodeId parent, std::span<const int32_t> tokens) const;
  // The child of `parent` that shares the most tokens, at least one, with the beginning of
  // `tokens`, its page, and how many; kNone, -1, 0 where there is none.
  struct Partial {
    NodeId node = kNone;
    PageId page = -1;
    int64_t num_tokens = 0;
  };
  Partial FindPartial(NodeId parent, std::span<const int32_t> tokens) const;
  // REQUIRES 64 tokens and that Find gives kNone. The node is in use.
  NodeId Insert(NodeId parent, std::span<const int32_t> tokens, PageId page);

  PageId page(NodeId node) const { return nodes_[size_t(node)].page; }
  // The node of a page, or kNone.
  NodeId NodeOf(PageId page) const;
  int64_t num_nodes() const { return num_nodes_; }

  // A node that no sequence holds may be evicted, the longest unused first, children before their
  // parents. Whoever holds a node holds its parents too.
  void SetUnused(NodeId node);
  void SetUsed(NodeId node);
  int64_t num_unused() const { return int64_t(unused_.size()); }
  // Takes the next one out of the index and returns its page. REQUIRES num_unused() > 0.
  PageId Evict();
  // Takes a node in use out of the index. REQUIRES that it has no children.
  void Remove(NodeId node);

 private:
  struct Node {
    std::array<int32_t, kPageTokens> tokens{};
    uint64_t hash = 0;
    PageId page = -1;
    NodeId parent = kNone;
    int64_t depth = 0;
    int64_t last_use = 0;
    std::vector<NodeId> children;
  };
  // Oldest use first; of one use the deepest.
  using Rank = std::tuple<int64_t, int64_t, NodeId>;
  Rank RankOf(NodeId node) const {
    const Node& n = nodes_[size_t(node)];
    return {n.last_use, -n.depth, node};
  }
  uint64_t HashBelow(NodeId parent, std::span<const int32_t> tokens) const;

  const HashFn hash_;
  std::vector<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  int64_t num_nodes_ = 0;
  int64_t clock_ = 0;
  std::unordered_multimap<uint64_t, NodeId> by_hash_;
  std::unordered_map<PageId, NodeId> by_page_;
  std::set<Rank> unused_;
};

}  // namespace hillstar
