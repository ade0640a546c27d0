#include "kv/session_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "hillstar/error.h"

namespace hillstar {
namespace {

// Sectors are searched from the end of the file in pieces of this size.
constexpr uint64_t kSearchBytes = uint64_t{1} << 20;

// Up to `num_bytes` of the file, less at its end. Errors: kIo.
std::string ReadUpTo(const SessionStorage& storage, const std::string& name, uint64_t offset,
                     uint64_t num_bytes) {
  const uint64_t size = storage.size();
  std::string bytes(offset < size ? std::min(num_bytes, size - offset) : 0, '\0');
  ReadAll(storage, name, offset, bytes.data(), bytes.size());
  return bytes;
}

// The search for the last commit. Every copy that is found names its own place, so copies are
// looked for sector by sector.
class CommitSearch {
 public:
  CommitSearch(const SessionStorage& storage, const std::string& name, const SessionHead& head)
      : storage_(storage), name_(name), head_(head), size_(storage.size()) {}

  // Sets everything in `scan` that concerns commits.
  void Run(SessionScan* scan) {
    uint64_t sector = size_ / kSessionSectorBytes * kSessionSectorBytes;
    for (; sector >= kSessionHeadBytes; sector -= kSessionSectorBytes) {
      const auto copy = ReadCopy(sector);
      if (!copy) continue;
      Adopt(*copy, sector, scan);
      return;
    }
    if (unreadable_) throw *unreadable_;
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} holds no whole commit: its head is that of a saved session, but of "
                            "its tokens nothing is left",
                            name_));
  }

 private:
  struct Copy {
    CommitHeader header;
    SessionState state;
  };

  void Adopt(const Copy& copy, uint64_t offset, SessionScan* scan) {
    const uint64_t record_bytes = copy.header.record_bytes();
    scan->state = copy.state;
    scan->commit_number = copy.header.number;
    scan->end = offset + record_bytes;
    const bool both_whole = copy.header.is_second && FirstIsWhole(copy.header, offset);
    // An unreadable sector of the second copy is no more than damage; beyond it there may have been
    // a later commit.
    const uint64_t both_end = copy.header.is_second ? scan->end : scan->end + record_bytes;
    if (unreadable_ && unreadable_at_ >= both_end) throw *unreadable_;
    if (!both_whole) {
      scan->findings.push_back(
          fmt::format("one of the two copies of the last commit in {} is damaged; the other one "
                      "is whole",
                      name_));
    }
    if (size_ > both_end) {
      scan->findings.push_back(
          fmt::format("the last {} bytes of {} belong to no whole commit: writing them was cut off "
                      "or they are damaged; they do not count",
                      size_ - both_end, name_));
    }
  }

  // Of the commit whose second copy is at `offset`.
  bool FirstIsWhole(const CommitHeader& second, uint64_t offset) {
    if (offset < kSessionHeadBytes + second.record_bytes()) return false;
    const auto first = ReadCopy(offset - second.record_bytes());
    return first && !first->header.is_second && first->header.number == second.number;
  }

  std::optional<Copy> ReadCopy(uint64_t offset) {
    const std::string_view sector = Sector(offset);
    const auto header = DecodeCommitHeader(sector, head_, offset);
    if (!header || header->record_bytes() > size_ - offset) return std::nullopt;
    std::string record(header->record_bytes(), '\0');
    try {
      ReadAll(storage_, name_, offset, record.data(), record.size());
    } catch (const Error& error) {
      NoteUnreadable(offset, error);
      return std::nullopt;
    }
    auto state = DecodeCommit(record, *header, head_, offset);
    if (!state) return std::nullopt;
    return Copy{*header, std::move(*state)};
  }

  // The sector at `offset`, shorter at the end of the file, empty if it cannot be read.
  std::string_view Sector(uint64_t offset) {
    if (offset < piece_offset_ || offset >= piece_offset_ + piece_.size()) LoadPiece(offset);
    const size_t at = size_t(offset - piece_offset_);
    if (at >= piece_.size()) return {};
    return std::string_view(piece_).substr(at, kSessionSectorBytes);
  }

  // The piece that ends with the sector, as the search goes backwards; the sector alone if the
  // piece cannot be read.
  void LoadPiece(uint64_t sector) {
    const uint64_t end = sector + kSessionSectorBytes;
    piece_offset_ = end > kSearchBytes ? end - kSearchBytes : 0;
    try {
      piece_ = ReadUpTo(storage_, name_, piece_offset_, end - piece_offset_);
      return;
    } catch (const Error&) {
      piece_offset_ = sector;
    }
    try {
      piece_ = ReadUpTo(storage_, name_, sector, kSessionSectorBytes);
    } catch (const Error& error) {
      piece_.clear();
      NoteUnreadable(sector, error);
    }
  }

  void NoteUnreadable(uint64_t offset, const Error& error) {
    if (unreadable_ && unreadable_at_ >= offset) return;
    unreadable_ = error;
    unreadable_at_ = offset;
  }

  const SessionStorage& storage_;
  const std::string& name_;
  const SessionHead& head_;
  const uint64_t size_;
  std::string piece_;
  uint64_t piece_offset_ = 0;
  std::optional<Error> unreadable_;  // the one closest to the end of the file
  uint64_t unreadable_at_ = 0;
};

DecodedHead ReadHeadCopy(const SessionStorage& storage, const std::string& name, int copy,
                         std::optional<Error>* unreadable) {
  try {
    return DecodeHead(
        ReadUpTo(storage, name, uint64_t(copy) * kSessionSectorBytes, kSessionSectorBytes));
  } catch (const Error& error) {
    *unreadable = error;
    return {};
  }
}

[[noreturn]] void RefuseHead(const DecodedHead (&copies)[2], const std::string& name) {
  for (const DecodedHead& copy : copies) {
    if (copy.state != HeadState::kNewerVersion) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} is a saved session of version {}; this program reads up to version "
                            "{}",
                            name, copy.version, kSessionVersion));
  }
  for (const DecodedHead& copy : copies) {
    if (copy.state != HeadState::kDamaged) continue;
    throw Error(ErrorCode::kBadFile,
                fmt::format("both copies of the head of {}, a saved session, are damaged", name));
  }
  throw Error(ErrorCode::kBadFile, fmt::format("{} is not a saved session", name));
}

}  // namespace

FoundHead ReadSessionHead(const SessionStorage& storage, const std::string& name) {
  std::optional<Error> unreadable;
  const DecodedHead copies[2] = {ReadHeadCopy(storage, name, 0, &unreadable),
                                 ReadHeadCopy(storage, name, 1, &unreadable)};
  FoundHead found;
  for (int copy = 1; copy >= 0; --copy) {
    found.copy_damaged[copy] = copies[copy].state != HeadState::kWhole;
    if (!found.copy_damaged[copy]) found.head = copies[copy].head;
  }
  if (found.copy_damaged[0] && found.copy_damaged[1]) {
    if (unreadable) throw *unreadable;
    RefuseHead(copies, name);
  }
  // Two whole heads that differ: the first one counts.
  if (!found.copy_damaged[0] && copies[1].head != found.head) found.copy_damaged[1] = true;
  return found;
}

SessionScan ScanSession(const SessionStorage& storage, const std::string& name) {
  SessionScan scan;
  const FoundHead found = ReadSessionHead(storage, name);
  scan.head = found.head;
  for (int copy : {0, 1}) {
    scan.head_copy_damaged[copy] = found.copy_damaged[copy];
    if (!found.copy_damaged[copy]) continue;
    scan.findings.push_back(
        fmt::format("the {} of the two copies of the head of {} is damaged; the other one is whole",
                    copy == 0 ? "first" : "second", name));
  }
  CommitSearch(storage, name, scan.head).Run(&scan);
  return scan;
}

}  // namespace hillstar
