#include "kv/kv_cache.h"

#include <fmt/format.h>

#include "hillstar/error.h"

namespace hillstar {

PageId KvCache::Take() {
  if (pool_.num_free() > 0) {
    const PageId page = pool_.Take();
    if (page >= 0) return page;
  }
  if (index_.num_unused() == 0) {
    throw Error(ErrorCode::kBudget,
                fmt::format("all {} pages of the KV cache, {} tokens, are in use (--kv-memory)",
                            pool_.max_pages(), pool_.max_pages() * kPageTokens));
  }
  pool_.Release(index_.Evict());
  return pool_.Take();
}

// Parents last: see PrefixIndex::SetUnused.
void KvCache::ReleaseAll(std::span<const PageId> pages) {
  for (size_t i = pages.size(); i > 0; --i) Release(pages[i - 1]);
}

bool KvCache::CanCopy(PageId from) const {
  const bool is_unused = pool_.num_references(from) == 1 && index_.NodeOf(from) >= 0;
  return num_available() > int64_t(is_unused);
}

PageId KvCache::TakeCopy(PageId from) {
  AddReference(from);  // or it could be evicted to make room for its own copy
  PageId page = -1;
  try {
    page = Take();
  } catch (const Error&) {
    Release(from);
    throw;
  }
  pool_.CopyPage(from, page);
  Release(from);
  return page;
}

// Pages behind it in the index are held by nobody who does not hold it too, and would be available.
bool KvCache::MakeOwn(PageId page) {
  if (num_available() > 0 || num_holders(page) > 1) return false;
  index_.Remove(index_.NodeOf(page));
  pool_.Release(page);
  return true;
}

void KvCache::AddReference(PageId page) {
  // So far only the index refers to it.
  if (pool_.num_references(page) == 1) {
    const PrefixIndex::NodeId node = index_.NodeOf(page);
    if (node != PrefixIndex::kNone) index_.SetUsed(node);
  }
  pool_.AddReference(page);
}

void KvCache::Release(PageId page) {
  pool_.Release(page);
  if (pool_.num_references(page) != 1) return;
  const PrefixIndex::NodeId node = index_.NodeOf(page);
  if (node != PrefixIndex::kNone) index_.SetUnused(node);
}

KvCache::Chain KvCache::Adopt(std::span<const int32_t> ids) {
  Chain chain;
  while (int64_t(ids.size()) >= kPageTokens) {
    const PrefixIndex::NodeId parent =
        chain.nodes.empty() ? PrefixIndex::kRoot : chain.nodes.back();
    const PrefixIndex::NodeId node = index_.Find(parent, ids.first(size_t(kPageTokens)));
    if (node == PrefixIndex::kNone) break;
    chain.nodes.push_back(node);
    chain.pages.push_back(index_.page(node));
    AddReference(chain.pages.back());
    ids = ids.subspan(size_t(kPageTokens));
  }
  return chain;
}

KvCache::Published KvCache::Publish(PrefixIndex::NodeId parent, std::span<const int32_t> tokens,
                                    PageId page) {
  const PrefixIndex::NodeId there = index_.Find(parent, tokens);
  if (there == PrefixIndex::kNone) {
    pool_.AddReference(page);
    return {index_.Insert(parent, tokens, page), page};
  }
  const PageId shared = index_.page(there);
  if (shared != page) {
    AddReference(shared);
    Release(page);
  }
  return {there, shared};
}

}  // namespace hillstar
