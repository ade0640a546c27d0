// One sequence's pages. Rows are written only into pages that nobody else refers to; full pages are
// shared through the prefix index. Used by one thread at a time; the pages are read by many while a
// step runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_cache.h"

namespace hillstar {

class SequenceKv {
 public:
  // `cache` outlives the object. Without `shares` it neither adopts nor publishes pages.
  explicit SequenceKv(KvCache& cache, bool shares = true) : cache_(cache), shares_(shares) {}
  ~SequenceKv() { Truncate(0); }
  SequenceKv(const SequenceKv&) = delete;
  SequenceKv& operator=(const SequenceKv&) = delete;

  int64_t num_pages() const { return int64_t(pages_.size()); }
  std::span<const PageId> pages() const { return pages_; }
  // Changes whenever pages() does. Two lists that differ never have one version, whichever
  // sequences of the process they belong to.
  uint64_t version() const { return version_; }
  // Pages that other sequences hold too.
  int64_t num_shared() const;

  // Takes over the rows that the prefix index has of the first tokens of `ids`, full pages by
  // reference and the beginning of one more by a copy; returns how many tokens that is.
  // `num_held` rows are there already and stay if the index has no more. Where the copy finds no
  // page, it is left out.
  int64_t Adopt(std::span<const int32_t> ids, int64_t num_held);

  // Makes rows [first, end) writable: takes pages for what is new and copies a page that is shared.
  // What exists stays where it is. REQUIRES rows 0 .. first - 1 to be there.
  // Errors: kBudget; what was there stays, and the pages made so far.
  void Prepare(int64_t first, int64_t end);
  // All rows of `ids`, the sequence from its first token on, are computed: publishes full pages.
  void Commit(std::span<const int32_t> ids);
  // Gives back the pages behind the first num_tokens rows.
  void Truncate(int64_t num_tokens);

  PageList page_list() const { return {pages_.data(), num_pages(), id_, version_}; }
  PageAddresses page_addresses() const { return cache_.pool().addresses(); }
  PageTable latents(int64_t layer) const { return cache_.pool().latents(pages_.data(), layer); }
  // REQUIRES shape.has_index_keys[layer].
  PageTable index_keys(int64_t layer) const {
    return cache_.pool().index_keys(pages_.data(), layer);
  }
  // Page i's rows of all layers, latents then index keys: page_bytes() of the shape.
  void ReadPage(int64_t i, std::span<uint8_t> out) const;
  // Replaces the rows of pages `first` and later, whose bytes as ReadPage gives them lie one page
  // behind the other. REQUIRES Prepare for these pages.
  void WritePages(int64_t first, std::span<const uint8_t> packed);

 private:
  static uint64_t NewVersion();

  KvCache& cache_;
  const bool shares_;
  std::vector<PageId> pages_;
  const uint64_t id_ = NewVersion();
  uint64_t version_ = id_;
  std::vector<PrefixIndex::NodeId> nodes_;  // of the first pages, which are in the index
};

}  // namespace hillstar
