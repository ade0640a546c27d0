// One file of weights while it is written: NAME.partial, filled item by item in any order, and
// NAME.journal, a line for each finished item, so that a process that dies repeats unfinished items
// only. docs/container.md gives the journal's form. Writing methods may be called from any threads
// at once, each item by one of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/container_checksum.h"
#include "formats/file_io.h"

namespace hillstar {

// A tensor or an expert's image.
struct PartItem {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};

class ContainerPart {
 public:
  // `job` binds the journal to one job: a journal of another is an error.
  ContainerPart(const std::filesystem::path& folder, std::string name, uint64_t job,
                std::vector<PartItem> items, uint64_t file_bytes);

  // Reads what an earlier process left; writes nothing. Errors: kBadFile if the finished file's
  // journal is missing or incomplete or its size is wrong (it is never written again).
  void Inspect();
  // Opens the partial file and compares what the journal calls finished with its checksums; items
  // that do not agree count as not written. Nothing for a finished part. `cancelled` is asked
  // between items; then kCancelled.
  void Start(const std::function<bool()>& cancelled);

  const std::string& name() const { return name_; }
  uint64_t file_bytes() const { return file_bytes_; }
  const std::vector<PartItem>& items() const { return items_; }
  bool is_finished() const { return finished_; }
  bool has(size_t item) const { return checksums_[item].has_value(); }
  // REQUIRES has(item).
  uint64_t checksum(size_t item) const { return *checksums_[item]; }
  uint64_t written_bytes() const;  // of finished items

  // Whole pages from page-aligned memory go past the page cache where the file system allows it.
  void Write(size_t item, uint64_t offset_in_item, const void* data, size_t num_bytes);
  // Enters the item, whose bytes have all been written, in the journal.
  void Complete(size_t item, uint64_t checksum);
  // Syncs file and journal and gives the file its name. REQUIRES every item.
  void Finish();
  // Removes the journal, once the manifest holds its checksums.
  void RemoveJournal();

 private:
  std::string JournalHead() const;
  void ReadJournal(std::string_view text);
  void VerifyItem(size_t item, std::vector<char>* buffer);
  void RewriteJournal();

  std::filesystem::path final_path_, partial_path_, journal_path_;
  std::string name_;
  uint64_t job_;
  std::vector<PartItem> items_;
  uint64_t file_bytes_;
  bool finished_ = false;
  File file_, journal_;
  std::optional<File> direct_;  // file_ once more, past the page cache
  std::atomic<bool> direct_works_{true};
  std::mutex mutex_;  // guards the journal and checksums_ while items are written
  uint64_t journal_bytes_ = 0;
  std::vector<std::optional<uint64_t>> checksums_;
};

// Writes one item front to back.
class ItemWriter {
 public:
  ItemWriter(ContainerPart* part, size_t item) : part_(part), item_(item) {}
  void Append(const void* data, size_t num_bytes);
  void Complete();

 private:
  ContainerPart* part_;
  size_t item_;
  uint64_t written_ = 0;
  ChecksumStream checksum_;
};

}  // namespace hillstar
