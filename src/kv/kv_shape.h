// Which rows a model's sequences hold, and where the layers lie in a page's memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kv/layout.h"

namespace hillstar {

struct KvShape {
  KvRowLayout row;
  IndexKeyLayout index;
  int64_t num_layers = 0;            // MTP layer included
  std::vector<bool> has_index_keys;  // one a layer

  int64_t num_index_layers() const {
    return std::count(has_index_keys.begin(), has_index_keys.end(), true);
  }
  // Bytes of a page of every layer.
  int64_t latent_page_bytes() const { return row.page_bytes() * num_layers; }
  int64_t index_page_bytes() const { return index.page_bytes() * num_index_layers(); }
  int64_t page_bytes() const { return latent_page_bytes() + index_page_bytes(); }
  // Pages that hold num_tokens tokens.
  static int64_t PagesOf(int64_t num_tokens) { return CeilDiv(num_tokens, kPageTokens); }
};

}  // namespace hillstar
