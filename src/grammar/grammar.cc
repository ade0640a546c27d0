#include "grammar/grammar.h"

#include "grammar/mask_cache.h"

namespace hillstar {

std::shared_ptr<MaskCache> Grammar::MasksWith(const std::shared_ptr<const TokenTrie>& trie) const {
  const std::lock_guard lock(mutex_);
  if (trie_ != trie) {
    masks_ = std::make_shared<MaskCache>(push_down_, trie);
    trie_ = trie;
  }
  return masks_;
}

}  // namespace hillstar
