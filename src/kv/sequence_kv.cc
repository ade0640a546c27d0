#include "kv/sequence_kv.h"

#include <algorithm>

namespace hillstar {

int64_t KvShape::num_index_layers() const {
  return std::count(has_index_keys.begin(), has_index_keys.end(), true);
}

SequenceKv::SequenceKv(const KvShape& shape, MemoryBudget& budget)
    : shape_(shape),
      budget_(budget),
      latent_pages_(size_t(shape.num_layers)),
      index_pages_(size_t(shape.num_layers)) {}

void SequenceKv::Reserve(int64_t num_tokens) {
  while (num_pages_ * kPageTokens < num_tokens) {
    HostBuffer latents(budget_, MemoryTag::kLatentKv, size_t(shape_.latent_page_bytes()));
    HostBuffer keys(budget_, MemoryTag::kIndexKeys, size_t(shape_.index_page_bytes()));
    uint8_t *latent = latents.data(), *key = keys.data();
    buffers_.push_back(std::move(latents));
    buffers_.push_back(std::move(keys));
    for (size_t layer = 0; layer < latent_pages_.size(); ++layer) {
      latent_pages_[layer].push_back(latent);
      latent += shape_.row.page_bytes();
      if (!shape_.has_index_keys[layer]) continue;
      index_pages_[layer].push_back(key);
      key += shape_.index.page_bytes();
    }
    ++num_pages_;
  }
}

}  // namespace hillstar
