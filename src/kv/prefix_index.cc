#include "kv/prefix_index.h"

#include <xxhash.h>

#include <algorithm>

#include "core/check.h"

namespace hillstar {

uint64_t PrefixIndex::HashTokens(std::span<const int32_t> tokens, uint64_t seed) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), seed);
}

PrefixIndex::PrefixIndex(uint64_t identity, HashFn hash) : hash_(hash), nodes_(1) {
  nodes_[kRoot].hash = identity;
}

uint64_t PrefixIndex::HashBelow(NodeId parent, std::span<const int32_t> tokens) const {
  return hash_(tokens, nodes_[size_t(parent)].hash);
}

PrefixIndex::NodeId PrefixIndex::Find(NodeId parent, std::span<const int32_t> tokens) const {
  CHECK(int64_t(tokens.size()) == kPageTokens);
  const auto [first, last] = by_hash_.equal_range(HashBelow(parent, tokens));
  for (auto it = first; it != last; ++it) {
    const Node& node = nodes_[size_t(it->second)];
    if (node.parent == parent && std::ranges::equal(node.tokens, tokens)) return it->second;
  }
  return kNone;
}

PrefixIndex::Partial PrefixIndex::FindPartial(NodeId parent,
                                              std::span<const int32_t> tokens) const {
  Partial best;
  for (NodeId child : nodes_[size_t(parent)].children) {
    const auto& theirs = nodes_[size_t(child)].tokens;
    const auto common = std::ranges::mismatch(theirs, tokens).in2 - tokens.begin();
    if (common > best.num_tokens) best = {child, page(child), common};
  }
  return best;
}

PrefixIndex::NodeId PrefixIndex::Insert(NodeId parent, std::span<const int32_t> tokens,
                                        PageId page) {
  CHECK(Find(parent, tokens) == kNone);
  NodeId id = NodeId(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& node = nodes_[size_t(id)];
  std::ranges::copy(tokens, node.tokens.begin());
  node.hash = HashBelow(parent, tokens);
  node.page = page;
  node.parent = parent;
  node.depth = nodes_[size_t(parent)].depth + 1;
  node.last_use = ++clock_;
  nodes_[size_t(parent)].children.push_back(id);
  by_hash_.emplace(node.hash, id);
  CHECK(by_page_.emplace(page, id).second);
  ++num_nodes_;
  return id;
}

PrefixIndex::NodeId PrefixIndex::NodeOf(PageId page) const {
  const auto it = by_page_.find(page);
  return it == by_page_.end() ? kNone : it->second;
}

// Sequences give their pages back from the last to the first, so a parent's last use is never
// before its children's.
void PrefixIndex::SetUnused(NodeId node) {
  nodes_[size_t(node)].last_use = ++clock_;
  CHECK(unused_.insert(RankOf(node)).second);
}

void PrefixIndex::SetUsed(NodeId node) { CHECK(unused_.erase(RankOf(node)) == 1); }

PageId PrefixIndex::Evict() {
  CHECK(!unused_.empty());
  const NodeId id = std::get<NodeId>(*unused_.begin());
  unused_.erase(unused_.begin());
  Remove(id);
  return nodes_[size_t(id)].page;
}

void PrefixIndex::Remove(NodeId id) {
  Node& node = nodes_[size_t(id)];
  CHECK(node.children.empty());
  std::erase(nodes_[size_t(node.parent)].children, id);
  const auto [first, last] = by_hash_.equal_range(node.hash);
  by_hash_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == id; }));
  by_page_.erase(node.page);
  free_nodes_.push_back(id);
  --num_nodes_;
}

}  // namespace hillstar
