#include "formats/container_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/check.h"
#include "formats/container_manifest.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// Below this the page cache is faster than waiting for the drive.
constexpr size_t kMinDirectBytes = size_t{1} << 20;
constexpr size_t kVerifyBytes = size_t{8} << 20;
// A line has at most 20 + 16 + 16 digits and three separators; a layer has at most 2^16 experts.
constexpr uint64_t kMaxJournalBytes = uint64_t{16} << 20;

// "ITEM CHECKSUM CHECK\n" where CHECK is the checksum of what stands before it, so that a line that
// was cut off or overwritten is recognised.
std::string JournalLine(size_t item, uint64_t checksum) {
  const std::string entry = fmt::format("{} {:016x}", item, checksum);
  return fmt::format("{} {:016x}\n", entry, Checksum(entry.data(), entry.size()));
}

struct JournalEntry {
  size_t item = 0;
  uint64_t checksum = 0;
};

// `line` without its end.
std::optional<JournalEntry> ParseJournalLine(std::string_view line) {
  JournalEntry entry;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), entry.item);
  if (error != std::errc()) return std::nullopt;
  const size_t digits = size_t(end - line.data());
  constexpr size_t kHex = 16;
  if (line.size() != digits + 2 * (kHex + 1)) return std::nullopt;
  const auto checksum = ParseChecksumHex(line.substr(digits + 1, kHex));
  if (!checksum) return std::nullopt;
  entry.checksum = *checksum;
  const std::string expected = JournalLine(entry.item, entry.checksum);
  if (expected.substr(0, expected.size() - 1) != line) return std::nullopt;
  return entry;
}

std::filesystem::path Sibling(std::filesystem::path path, const char* suffix) {
  path += suffix;
  return path;
}

}  // namespace

ContainerPart::ContainerPart(const std::filesystem::path& folder, std::string name, uint64_t job,
                             std::vector<PartItem> items, uint64_t file_bytes)
    : final_path_(folder / name),
      partial_path_(Sibling(final_path_, ".partial")),
      journal_path_(Sibling(final_path_, ".journal")),
      name_(std::move(name)),
      job_(job),
      items_(std::move(items)),
      file_bytes_(file_bytes),
      checksums_(items_.size()) {}

std::string ContainerPart::JournalHead() const {
  return fmt::format("hillstar-journal 1 {} {:016x}\n", name_, job_);
}

void ContainerPart::ReadJournal(std::string_view text) {
  const std::string head = JournalHead();
  if (!text.starts_with(head)) return;
  for (size_t at = head.size(); at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string_view::npos) return;
    const auto entry = ParseJournalLine(text.substr(at, end - at));
    if (!entry || entry->item >= items_.size()) return;
    checksums_[entry->item] = entry->checksum;
    at = end + 1;
  }
}

void ContainerPart::Inspect() {
  checksums_.assign(items_.size(), std::nullopt);
  const bool journalled = std::filesystem::exists(journal_path_);
  if (journalled) ReadJournal(ReadWholeFile(journal_path_, kMaxJournalBytes));
  finished_ = std::filesystem::exists(final_path_);
  if (!finished_) {
    if (!std::filesystem::exists(partial_path_)) checksums_.assign(items_.size(), std::nullopt);
    return;
  }
  const uint64_t size = std::filesystem::file_size(final_path_);
  const size_t known = size_t(std::count_if(checksums_.begin(), checksums_.end(),
                                            [](const auto& c) { return c.has_value(); }));
  if (size == file_bytes_ && known == items_.size()) return;
  throw Error(ErrorCode::kBadFile,
              fmt::format("{} is finished, but has {} of {} bytes and {} of {} entries in its "
                          "journal; delete it to have it written again",
                          final_path_.native(), size, file_bytes_, known, items_.size()));
}

void ContainerPart::Start(const std::function<bool()>& cancelled) {
  if (finished_) return;
  file_ = File::OpenForWriting(partial_path_);
  direct_ = File::TryOpenDirectForWriting(partial_path_);
  std::vector<char> buffer;
  for (size_t item = 0; item < items_.size(); ++item) {
    if (!has(item)) continue;
    if (cancelled()) throw Error(ErrorCode::kCancelled, "stopped while checking what is written");
    VerifyItem(item, &buffer);
  }
  RewriteJournal();
}

void ContainerPart::VerifyItem(size_t item, std::vector<char>* buffer) {
  const PartItem& range = items_[item];
  if (range.offset + range.num_bytes > file_.size()) {
    checksums_[item].reset();
    return;
  }
  buffer->resize(kVerifyBytes);
  ChecksumStream checksum;
  for (uint64_t done = 0; done < range.num_bytes;) {
    const size_t piece = size_t(std::min<uint64_t>(kVerifyBytes, range.num_bytes - done));
    file_.ReadAt(range.offset + done, buffer->data(), piece);
    checksum.Add(buffer->data(), piece);
    done += piece;
  }
  if (checksum.value() != checksums_[item]) checksums_[item].reset();
}

void ContainerPart::RewriteJournal() {
  std::string text = JournalHead();
  for (size_t item = 0; item < items_.size(); ++item) {
    if (has(item)) text += JournalLine(item, checksum(item));
  }
  WriteFileAtomically(journal_path_, text);
  journal_ = File::OpenForWriting(journal_path_);
  journal_bytes_ = text.size();
}

uint64_t ContainerPart::written_bytes() const {
  uint64_t sum = 0;
  for (size_t item = 0; item < items_.size(); ++item) {
    if (has(item)) sum += items_[item].num_bytes;
  }
  return sum;
}

void ContainerPart::Write(size_t item, uint64_t offset_in_item, const void* data,
                          size_t num_bytes) {
  const PartItem& range = items_[item];
  CHECK(!finished_ && offset_in_item + num_bytes <= range.num_bytes);
  const uint64_t offset = range.offset + offset_in_item;
  size_t done = 0;
  if (num_bytes >= kMinDirectBytes && offset % kPageBytes == 0 && IsPageAligned(data) && direct_ &&
      direct_works_.load(std::memory_order_relaxed)) {
    done = num_bytes / kPageBytes * kPageBytes;
    if (!direct_->TryWriteAt(offset, data, done)) {
      direct_works_.store(false, std::memory_order_relaxed);
      done = 0;
    }
  }
  file_.WriteAt(offset + done, static_cast<const uint8_t*>(data) + done, num_bytes - done);
}

void ContainerPart::Complete(size_t item, uint64_t checksum) {
  const std::string line = JournalLine(item, checksum);
  std::lock_guard lock(mutex_);
  journal_.WriteAt(journal_bytes_, line.data(), line.size());
  journal_bytes_ += line.size();
  checksums_[item] = checksum;
}

void ContainerPart::Finish() {
  for (size_t item = 0; item < items_.size(); ++item) CHECK(has(item));
  file_.Resize(file_bytes_);
  file_.Sync();
  // The journal must be whole on the drive before the part has its name: Inspect relies on it.
  journal_.Sync();
  RenameDurably(partial_path_, final_path_);
  finished_ = true;
  file_ = File();
  direct_.reset();
  journal_ = File();
}

void ContainerPart::RemoveJournal() { std::filesystem::remove(journal_path_); }

void ItemWriter::Append(const void* data, size_t num_bytes) {
  part_->Write(item_, written_, data, num_bytes);
  checksum_.Add(data, num_bytes);
  written_ += num_bytes;
}

void ItemWriter::Complete() {
  CHECK(written_ == part_->items()[item_].num_bytes);
  part_->Complete(item_, checksum_.value());
}

}  // namespace hillstar
