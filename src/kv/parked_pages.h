// A sequence's pages in a file without a name, while others need their memory. The file is gone
// with the object, or with the process. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "formats/file_io.h"

namespace hillstar {

class ParkedPages {
 public:
  // Writes num_pages pages of page_bytes bytes, which `copy` gives one after another.
  // Errors: kIo, kNotFound; nothing is left on the disk.
  ParkedPages(const std::filesystem::path& folder, int64_t num_pages, int64_t page_bytes,
              const std::function<void(int64_t page, std::span<uint8_t> out)>& copy);

  // Reads page i's first bytes and those behind them. REQUIRES that both make a page.
  // Errors: kIo; kBadFile if the bytes are not those that were written.
  void Read(int64_t page, std::span<uint8_t> first, std::span<uint8_t> rest) const;

 private:
  File file_;
  int64_t page_bytes_;
  std::vector<uint64_t> checksums_;
};

}  // namespace hillstar
