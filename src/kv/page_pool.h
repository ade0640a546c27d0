// The pages of all sequences: memory of a device for the rows of 64 tokens in every layer, counted
// by references; addresses are the device's. Used by one thread at a time; while a step runs, many
// threads read pages and each row is written by one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device_memory.h"
#include "kv/kv_shape.h"

namespace hillstar {

class PagePool {
 public:
  // Takes no memory yet. `memory` outlives the object. REQUIRES max_pages >= 1.
  PagePool(const KvShape& shape, DeviceMemory& memory, int64_t max_pages);

  const KvShape& shape() const { return shape_; }
  DeviceMemory& memory() const { return memory_; }
  // Less than what it was made with once the system had no memory for more.
  int64_t max_pages() const { return max_pages_; }
  // Pages that nobody refers to, whether their memory was ever taken or not.
  int64_t num_free() const { return max_pages_ - num_used_; }
  int64_t num_used() const { return num_used_; }
  // Bytes that the rows of num_pages pages take: latents and index keys of some pages lie together
  // in slabs of about the memory's slab_bytes(). All max_pages take no more than their rows.
  static uint64_t LatentBytes(const KvShape& shape, int64_t num_pages, int64_t max_pages,
                              size_t slab_bytes);
  static uint64_t IndexBytes(const KvShape& shape, int64_t num_pages, int64_t max_pages,
                             size_t slab_bytes);

  // A free page with one reference; its rows hold what the last user left. -1 if the system has no
  // memory for it: from then on the pages that have memory are all. REQUIRES num_free() > 0.
  PageId Take();
  void AddReference(PageId page);
  // The page is free once its last reference is gone.
  void Release(PageId page);
  int64_t num_references(PageId page) const { return references_[size_t(page)]; }

  // Copies all rows of all layers. REQUIRES that nobody else refers to `to`.
  void CopyPage(PageId from, PageId to);

  // Of the pages `ids`. REQUIRES shape().has_index_keys[layer] for index keys.
  PageTable latents(const PageId* ids, int64_t layer) const {
    return {ids, latent_memory_.data(), shape_.row.page_bytes() * layer};
  }
  PageTable index_keys(const PageId* ids, int64_t layer) const {
    return {ids, index_memory_.data(), index_offset_[size_t(layer)]};
  }
  // Where all pages that have memory lie.
  PageAddresses addresses() const {
    return {latent_memory_.data(), index_memory_.data(), num_allocated_};
  }
  // A page's bytes of all layers.
  DeviceSpan latent_bytes(PageId page) const {
    return {latent_memory_[size_t(page)], size_t(shape_.latent_page_bytes())};
  }
  DeviceSpan index_bytes(PageId page) const {
    return {index_memory_[size_t(page)], size_t(shape_.index_page_bytes())};
  }
  // Where the pages' bytes of all layers begin, by page id: of those that have memory, which grow
  // in number, but stay where they are.
  std::span<uint8_t* const> latent_memory() const { return latent_memory_; }
  std::span<uint8_t* const> index_memory() const { return index_memory_; }

 private:
  // Makes page num_allocated_ have memory. Errors: kBudget.
  void Grow();
  // Memory for more pages of one kind. Errors: kBudget.
  void AddSlab(MemoryTag tag, int64_t page_bytes, std::vector<uint8_t*>* memory);

  const KvShape shape_;
  DeviceMemory& memory_;
  const int64_t planned_pages_;  // sizes of slabs follow from it
  int64_t max_pages_;
  int64_t num_used_ = 0;
  std::vector<DeviceBuffer> slabs_;
  std::vector<uint8_t*> latent_memory_;  // of each page that has memory; room for max_pages
  std::vector<uint8_t*> index_memory_;   // likewise
  int64_t num_allocated_ = 0;            // pages that were ever in use
  std::vector<int64_t> index_offset_;    // [layer] in a page's index keys
  std::vector<int32_t> references_;      // [planned_pages]
  std::vector<PageId> free_;             // with memory
};

}  // namespace hillstar
