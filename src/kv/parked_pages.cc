#include "kv/parked_pages.h"

#include <fmt/format.h>

#include "core/check.h"
#include "formats/container_checksum.h"
#include "hillstar/error.h"

namespace hillstar {

ParkedPages::ParkedPages(const std::filesystem::path& folder, int64_t num_pages, int64_t page_bytes,
                         const std::function<void(int64_t, std::span<uint8_t>)>& copy)
    : file_(File::CreateUnnamed(folder)), page_bytes_(page_bytes) {
  std::vector<uint8_t> page(static_cast<size_t>(page_bytes));
  for (int64_t i = 0; i < num_pages; ++i) {
    copy(i, page);
    checksums_.push_back(Checksum(page.data(), page.size()));
    file_.WriteAt(uint64_t(i * page_bytes), page.data(), page.size());
  }
}

void ParkedPages::Read(int64_t page, std::span<uint8_t> first, std::span<uint8_t> rest) const {
  CHECK(int64_t(first.size() + rest.size()) == page_bytes_);
  const auto offset = uint64_t(page * page_bytes_);
  file_.ReadAt(offset, first.data(), first.size());
  file_.ReadAt(offset + first.size(), rest.data(), rest.size());
  ChecksumStream checksum;
  checksum.Add(first.data(), first.size());
  checksum.Add(rest.data(), rest.size());
  if (checksum.value() == checksums_[size_t(page)]) return;
  throw Error(ErrorCode::kBadFile,
              fmt::format("page {} of {} changed while it was parked", page, file_.name()));
}

}  // namespace hillstar
