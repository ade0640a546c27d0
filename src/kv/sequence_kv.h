// One sequence's pages. Used by one thread at a time; the pages are read by many while a step runs.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/page_pool.h"

namespace hillstar {

class SequenceKv {
 public:
  // `pool` outlives the object.
  explicit SequenceKv(PagePool& pool) : pool_(pool) {}
  ~SequenceKv();
  SequenceKv(const SequenceKv&) = delete;
  SequenceKv& operator=(const SequenceKv&) = delete;

  // Makes room for rows 0 .. num_tokens - 1; what exists stays where it is.
  // Errors: kBudget; the pages made so far stay.
  void Reserve(int64_t num_tokens);

  PageTable latents(int64_t layer) const { return pool_.latents(pages_.data(), layer); }
  // REQUIRES shape.has_index_keys[layer].
  PageTable index_keys(int64_t layer) const { return pool_.index_keys(pages_.data(), layer); }

 private:
  PagePool& pool_;
  std::vector<PageId> pages_;
};

}  // namespace hillstar
