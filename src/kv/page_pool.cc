#include "kv/page_pool.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace hillstar {

int64_t KvShape::num_index_layers() const {
  return std::count(has_index_keys.begin(), has_index_keys.end(), true);
}

PagePool::PagePool(const KvShape& shape, MemoryBudget& budget, int64_t max_pages)
    : shape_(shape),
      budget_(budget),
      max_pages_(max_pages),
      latent_memory_(size_t(max_pages)),
      index_memory_(size_t(max_pages)),
      references_(size_t(max_pages)) {
  CHECK(max_pages >= 1);
  int64_t offset = 0;
  for (bool has_keys : shape.has_index_keys) {
    index_offset_.push_back(offset);
    if (has_keys) offset += shape.index.page_bytes();
  }
}

void PagePool::Allocate() {
  const size_t page = buffers_.size() / 2;
  HostBuffer latents(budget_, MemoryTag::kLatentKv, size_t(shape_.latent_page_bytes()));
  HostBuffer keys(budget_, MemoryTag::kIndexKeys, size_t(shape_.index_page_bytes()));
  latent_memory_[page] = latents.data();
  index_memory_[page] = keys.data();
  buffers_.push_back(std::move(latents));
  buffers_.push_back(std::move(keys));
  free_.push_back(PageId(page));
}

PageId PagePool::Take() {
  CHECK(num_free() > 0);
  if (free_.empty()) Allocate();
  const PageId page = free_.back();
  free_.pop_back();
  references_[size_t(page)] = 1;
  ++num_used_;
  return page;
}

void PagePool::AddReference(PageId page) {
  CHECK(references_[size_t(page)] > 0);
  ++references_[size_t(page)];
}

void PagePool::Release(PageId page) {
  CHECK(references_[size_t(page)] > 0);
  if (--references_[size_t(page)] > 0) return;
  free_.push_back(page);
  --num_used_;
}

void PagePool::CopyPage(PageId from, PageId to) {
  CHECK(references_[size_t(to)] == 1);
  std::memcpy(latent_bytes(to).data(), latent_bytes(from).data(), latent_bytes(to).size());
  std::memcpy(index_bytes(to).data(), index_bytes(from).data(), index_bytes(to).size());
}

}  // namespace hillstar
