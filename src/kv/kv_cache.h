// All pages of an engine: those of its sequences and those that stay behind for others to adopt.
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_pool.h"
#include "kv/prefix_index.h"

namespace hillstar {

class KvCache {
 public:
  // `identity` stands for all that rows depend on besides the tokens: the model and the format.
  // `memory` outlives the object; none is taken yet.
  KvCache(const KvShape& shape, DeviceMemory& memory, int64_t max_pages, uint64_t identity)
      : pool_(shape, memory, max_pages), index_(identity) {}

  const PagePool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }
  // Pages that a sequence can get: free, or only kept for adoption.
  int64_t num_available() const { return pool_.num_free() + index_.num_unused(); }

  // A page of one's own with unknown rows. Evicts the longest unused prefix page where none is
  // free. Errors: kBudget if all pages are in use, or the system has no memory.
  PageId Take();
  // Gives back a reference. A page of the prefix index stays there.
  void Release(PageId page);
  // Of a chain, from the last page to the first.
  void ReleaseAll(std::span<const PageId> pages);
  // True if nobody else, the index included, refers to the page: its rows may be written.
  bool IsOwn(PageId page) const { return pool_.num_references(page) == 1; }
  // Makes a page one's own by taking it out of the prefix index, where no page is left for a copy.
  // False, and nothing done, where there is one, or where another sequence holds the page.
  bool MakeOwn(PageId page);
  // Sequences that hold the page.
  int64_t num_holders(PageId page) const {
    return pool_.num_references(page) - int64_t(index_.NodeOf(page) != PrefixIndex::kNone);
  }
  // A page of one's own with the rows of `from`. Errors: as Take.
  PageId TakeCopy(PageId from);
  // False where TakeCopy would find no page: `from` itself cannot make room for its copy.
  bool CanCopy(PageId from) const;

  // The longest chain of full pages whose tokens begin `ids`, with a reference to each.
  struct Chain {
    std::vector<PageId> pages;
    std::vector<PrefixIndex::NodeId> nodes;
  };
  Chain Adopt(std::span<const int32_t> ids);
  // A page that begins with the first tokens of `rest` behind `parent`, and how many. The caller
  // holds the parent; what is found may be gone after the next call.
  PrefixIndex::Partial FindPartial(PrefixIndex::NodeId parent,
                                   std::span<const int32_t> rest) const {
    return index_.FindPartial(parent, rest);
  }

  // Puts a full page into the index. Where its tokens are there already, the caller's reference
  // goes over to the page that is, since both hold the same bits.
  struct Published {
    PrefixIndex::NodeId node;
    PageId page;
  };
  Published Publish(PrefixIndex::NodeId parent, std::span<const int32_t> tokens, PageId page);

 private:
  void AddReference(PageId page);

  PagePool pool_;
  PrefixIndex index_;
};

}  // namespace hillstar
