// One sequence's latent KV rows and index keys, in pages of 64 tokens, all layers. Used by one
// thread at a time; the pages are read by many while a step runs.
#pragma once

#include <cstdint>
#include <vector>

#include "device/host_memory.h"
#include "kv/layout.h"

namespace hillstar {

// Which rows a model's sequences hold.
struct KvShape {
  KvRowLayout row;
  IndexKeyLayout index;
  int64_t num_layers = 0;            // MTP layer included
  std::vector<bool> has_index_keys;  // one a layer

  int64_t num_index_layers() const;
  // Bytes of a page of every layer.
  int64_t latent_page_bytes() const { return row.page_bytes() * num_layers; }
  int64_t index_page_bytes() const { return index.page_bytes() * num_index_layers(); }
};

class SequenceKv {
 public:
  // `shape` and `budget` outlive the object.
  SequenceKv(const KvShape& shape, MemoryBudget& budget);

  // Makes room for rows 0 .. num_tokens - 1; what exists stays where it is.
  // Errors: kBudget; the pages made so far stay.
  void Reserve(int64_t num_tokens);

  PageTable latents(int64_t layer) const { return {latent_pages_[size_t(layer)].data()}; }
  // REQUIRES shape.has_index_keys[layer].
  PageTable index_keys(int64_t layer) const { return {index_pages_[size_t(layer)].data()}; }

 private:
  const KvShape& shape_;
  MemoryBudget& budget_;
  int64_t num_pages_ = 0;
  std::vector<HostBuffer> buffers_;
  std::vector<std::vector<uint8_t*>> latent_pages_;  // [layer][page]
  std::vector<std::vector<uint8_t*>> index_pages_;
};

}  // namespace hillstar
