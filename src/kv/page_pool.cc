#include "kv/page_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/log.h"
#include "hillstar/error.h"

namespace hillstar {

namespace {

int64_t PagesPerSlab(int64_t page_bytes, int64_t max_pages, size_t slab_bytes) {
  if (page_bytes == 0) return max_pages;
  return std::min(CeilDiv(int64_t(slab_bytes), page_bytes), max_pages);
}

// Of num_pages pages in whole slabs, the last of which ends at max_pages.
int64_t BytesInSlabs(int64_t page_bytes, int64_t num_pages, int64_t max_pages, size_t slab_bytes) {
  const int64_t whole = RoundUp(num_pages, PagesPerSlab(page_bytes, max_pages, slab_bytes));
  return std::min(whole, max_pages) * page_bytes;
}

}  // namespace

uint64_t PagePool::LatentBytes(const KvShape& shape, int64_t num_pages, int64_t max_pages,
                               size_t slab_bytes) {
  return uint64_t(BytesInSlabs(shape.latent_page_bytes(), num_pages, max_pages, slab_bytes));
}

uint64_t PagePool::IndexBytes(const KvShape& shape, int64_t num_pages, int64_t max_pages,
                              size_t slab_bytes) {
  return uint64_t(BytesInSlabs(shape.index_page_bytes(), num_pages, max_pages, slab_bytes));
}

PagePool::PagePool(const KvShape& shape, DeviceMemory& memory, int64_t max_pages)
    : shape_(shape),
      memory_(memory),
      planned_pages_(max_pages),
      max_pages_(max_pages),
      references_(size_t(max_pages)) {
  CHECK(max_pages >= 1);
  latent_memory_.reserve(size_t(max_pages));  // page tables point to the first
  index_memory_.reserve(size_t(max_pages));
  int64_t offset = 0;
  for (bool has_keys : shape.has_index_keys) {
    index_offset_.push_back(offset);
    if (has_keys) offset += shape.index.page_bytes();
  }
}

void PagePool::AddSlab(MemoryTag tag, int64_t page_bytes, std::vector<uint8_t*>* memory) {
  const int64_t num_pages = std::min(PagesPerSlab(page_bytes, planned_pages_, memory_.slab_bytes()),
                                     planned_pages_ - int64_t(memory->size()));
  slabs_.push_back(memory_.Alloc(tag, size_t(num_pages * page_bytes)));
  for (int64_t i = 0; i < num_pages; ++i) {
    memory->push_back(slabs_.back().data() + i * page_bytes);
  }
}

void PagePool::Grow() {
  if (size_t(num_allocated_) == latent_memory_.size()) {
    AddSlab(MemoryTag::kLatentKv, shape_.latent_page_bytes(), &latent_memory_);
  }
  if (size_t(num_allocated_) == index_memory_.size()) {
    AddSlab(MemoryTag::kIndexKeys, shape_.index_page_bytes(), &index_memory_);
  }
}

PageId PagePool::Take() {
  CHECK(num_free() > 0);
  PageId page = PageId(num_allocated_);
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    try {
      Grow();
    } catch (const Error& error) {
      LogWarn(fmt::format("the KV cache stays at {} of {} pages: {}", num_allocated_,
                          planned_pages_, error.what()));
      max_pages_ = num_allocated_;
      return -1;
    }
    ++num_allocated_;
  }
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
  const DeviceSpan latents = latent_bytes(to), keys = index_bytes(to);
  memory_.Copy(latents.data, latent_bytes(from).data, latents.size);
  if (keys.size > 0) memory_.Copy(keys.data, index_bytes(from).data, keys.size);
}

}  // namespace hillstar
