#include "kv/sequence_kv.h"

#include "hillstar/error.h"

namespace hillstar {

SequenceKv::~SequenceKv() {
  for (PageId page : pages_) pool_.Release(page);
}

void SequenceKv::Reserve(int64_t num_tokens) {
  while (int64_t(pages_.size()) * kPageTokens < num_tokens) {
    if (pool_.num_free() == 0) throw Error(ErrorCode::kBudget, "all pages are in use");
    pages_.push_back(pool_.Take());
  }
}

}  // namespace hillstar
