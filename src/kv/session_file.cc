#include "kv/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "core/check.h"
#include "core/integers.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

uint64_t RandomId() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

void RefuseOtherIdentity(const SessionIdentity& saved, const SessionIdentity& wanted,
                         const std::string& name) {
  if (saved == wanted) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} was saved with {}: its rows are of no use here, but can be computed "
                          "again from its tokens",
                          name, DescribeDifference(saved, wanted)));
}

void DropAbsentPagesAtEnd(std::vector<SavedPage>* pages) {
  while (!pages->empty() && pages->back().rows == 0) pages->pop_back();
}

}  // namespace

SessionFile::SessionFile(std::unique_ptr<SessionPlace> place, const SessionIdentity& identity)
    : place_(std::move(place)), head_{identity, 0}, buffer_(StoredPageBytes(identity)) {
  CHECK(IsValid(identity));
}

SessionFile SessionFile::Open(const std::filesystem::path& path, const SessionIdentity& identity) {
  auto place = std::make_unique<DiskPlace>(path);
  // Without this a lock would be made, and a missing folder be reported, for nothing.
  place->OpenToRead();
  auto lock = std::make_unique<SessionLock>(place->path());
  SessionFile session = OpenAt(std::move(place), identity);
  session.lock_ = std::move(lock);
  return session;
}

SessionFile SessionFile::OpenOrCreate(const std::filesystem::path& path,
                                      const SessionIdentity& identity) {
  DiskPlace place(path);
  auto lock = std::make_unique<SessionLock>(place.path());
  std::optional<SessionFile> session;
  try {
    session = OpenAt(std::make_unique<DiskPlace>(path), identity);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotFound) {
      session = CreateAt(std::make_unique<DiskPlace>(path), identity);
    } else if (error.code() == ErrorCode::kUnsupported) {
      SessionContent saved = ReadSessionAt(&place);  // throws for a newer version
      session = CreateAt(std::make_unique<DiskPlace>(path), identity);
      session->state_.ids = std::move(saved.ids);
      session->state_.meta = std::move(saved.meta);
      session->findings_ = std::move(saved.findings);
      session->findings_.push_back(fmt::format(
          "{} was saved with {}: its rows are of no use here, and what is saved next replaces it",
          place.name(), DescribeDifference(saved.identity, identity)));
    } else {
      throw;
    }
  }
  session->lock_ = std::move(lock);
  return std::move(*session);
}

SessionFile SessionFile::Create(const std::filesystem::path& path,
                                const SessionIdentity& identity) {
  auto place = std::make_unique<DiskPlace>(path);
  auto lock = std::make_unique<SessionLock>(place->path());
  SessionFile session = CreateAt(std::move(place), identity);
  session.lock_ = std::move(lock);
  return session;
}

SessionFile SessionFile::CreateAt(std::unique_ptr<SessionPlace> place,
                                  const SessionIdentity& identity) {
  SessionFile session(std::move(place), identity);
  session.place_->RemovePartial();
  return session;
}

SessionFile SessionFile::OpenAt(std::unique_ptr<SessionPlace> place,
                                const SessionIdentity& identity) {
  SessionFile session(std::move(place), identity);
  session.storage_ = session.place_->Open();
  // What a killed process left in the page cache reaches the drive before anybody sees it.
  session.storage_->Sync();
  session.place_->SyncFolder();
  const std::string& name = session.name();
  RefuseOtherIdentity(ReadSessionHead(*session.storage_, name).head.identity, identity, name);
  SessionScan scan = ScanSession(*session.storage_, name);
  session.head_ = scan.head;
  session.state_ = std::move(scan.state);
  session.commit_number_ = scan.commit_number;
  session.end_ = scan.end;
  session.tail_is_dirty_ = session.storage_->size() != scan.end;
  // A sync that failed in a process that was then killed may have lost the last commit, although
  // the page cache still has it. Its pages were synced before it, so a new one makes up for it.
  session.needs_commit_ = true;
  std::copy_n(scan.head_copy_damaged, 2, session.head_copy_damaged_);
  session.findings_ = std::move(scan.findings);
  session.place_->RemovePartial();
  return session;
}

int64_t SessionFile::page_rows(int64_t page) const {
  CHECK(page >= 0);
  return page < int64_t(state_.pages.size()) ? state_.pages[size_t(page)].rows : 0;
}

int64_t SessionFile::num_leading_rows() const {
  const int64_t page_tokens = head_.identity.page_tokens;
  int64_t page = 0;
  while (page_rows(page) == page_tokens) ++page;
  return page * page_tokens + page_rows(page);
}

// The page is in buffer_ afterwards. Errors: kIo.
SessionFile::PageLoad SessionFile::LoadPage(int64_t page) {
  const SavedPage& saved = state_.pages[size_t(page)];
  ReadAll(*storage_, name(), saved.offset, buffer_.data(), buffer_.size());
  return PageChecksum(buffer_) == saved.checksum ? PageLoad::kGood : PageLoad::kDamaged;
}

void SessionFile::LosePage(int64_t page, std::string_view why) {
  const int64_t first = page * head_.identity.page_tokens;
  findings_.push_back(fmt::format("page {} of {} {}: tokens {} to {} will be computed again", page,
                                  name(), why, first, first + page_rows(page) - 1));
  state_.pages[size_t(page)] = SavedPage{};
  DropAbsentPagesAtEnd(&state_.pages);
}

bool SessionFile::ReadPage(int64_t page, std::span<uint8_t> out) {
  CHECK(out.size() == head_.identity.page_bytes);
  if (page_rows(page) == 0) return false;
  try {
    if (LoadPage(page) == PageLoad::kDamaged) {
      LosePage(page, "is damaged");
      return false;
    }
  } catch (const Error& error) {
    LosePage(page, fmt::format("cannot be read ({})", error.what()));
    return false;
  }
  std::memcpy(out.data(), buffer_.data(), out.size());
  return true;
}

uint32_t SessionFile::RowsOf(int64_t page, int64_t num_rows) const {
  const int64_t page_tokens = head_.identity.page_tokens;
  return uint32_t(std::clamp(num_rows - page * page_tokens, int64_t{0}, page_tokens));
}

// The session with these ids and the stored rows that fit them.
SessionState SessionFile::Keep(std::span<const int32_t> ids, std::string_view meta) const {
  SessionState next;
  next.ids.assign(ids.begin(), ids.end());
  next.meta = meta;
  next.pages = state_.pages;
  const auto differ = std::mismatch(ids.begin(), ids.end(), state_.ids.begin(), state_.ids.end());
  const int64_t num_same = differ.first - ids.begin();
  for (int64_t page = 0; page < int64_t(next.pages.size()); ++page) {
    SavedPage& saved = next.pages[size_t(page)];
    saved.rows = std::min(saved.rows, RowsOf(page, num_same));
    if (saved.rows == 0) saved = SavedPage{};
  }
  DropAbsentPagesAtEnd(&next.pages);
  return next;
}

// The pages that lack rows; they get the number of rows that they will have.
std::vector<int64_t> SessionFile::MissingPages(SessionState* next, int64_t num_rows) const {
  std::vector<int64_t> missing;
  const int64_t num_pages = CeilDiv(num_rows, head_.identity.page_tokens);
  next->pages.resize(std::max(next->pages.size(), size_t(num_pages)));
  for (int64_t page = 0; page < num_pages; ++page) {
    SavedPage& saved = next->pages[size_t(page)];
    if (saved.rows >= RowsOf(page, num_rows)) continue;
    saved.rows = RowsOf(page, num_rows);
    missing.push_back(page);
  }
  return missing;
}

void SessionFile::Save(std::span<const int32_t> ids, int64_t num_rows, std::string_view meta,
                       const PageSource& page) {
  CHECK(num_rows >= 0 && num_rows <= int64_t(ids.size()));
  if (int64_t(ids.size()) > kMaxSessionTokens || meta.size() > kMaxSessionMetaBytes) {
    throw Error(
        ErrorCode::kBadRequest,
        fmt::format("{} tokens and {} bytes of text are to be saved in {}; a session holds "
                    "at most {} and {}",
                    ids.size(), meta.size(), name(), kMaxSessionTokens, kMaxSessionMetaBytes));
  }
  ForgetRemovedFile();
  SessionState next = Keep(ids, meta);
  const std::vector<int64_t> missing = MissingPages(&next, num_rows);
  if (!storage_) {
    WriteNewFile(std::move(next), missing, [&page](int64_t i, std::span<uint8_t> out) {
      page(i, out);
      return true;
    });
    return;
  }
  const bool is_durable = !tail_is_dirty_ && !folder_is_dirty_ && !needs_commit_;
  if (is_durable && missing.empty() && next == state_) return;
  Append(std::move(next), missing, page);
}

void SessionFile::ForgetRemovedFile() {
  using NameLeadsTo = SessionStorage::NameLeadsTo;
  if (!storage_) return;
  const NameLeadsTo now = storage_->name_leads_to();
  if (now == NameLeadsTo::kThis) return;
  if (now == NameLeadsTo::kOther) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} is another file than the one that was opened, and is left as it is",
                            name()));
  }
  findings_.push_back(fmt::format("{} was removed and is written anew", name()));
  storage_.reset();
  state_.pages.clear();
}

void SessionFile::Append(SessionState next, const std::vector<int64_t>& pages,
                         const PageSource& source) {
  CutTail();
  tail_is_dirty_ = true;
  uint64_t at = end_;
  try {
    RepairHead();
    for (const int64_t page : pages) {
      const MaybePageSource always = [&source](int64_t i, std::span<uint8_t> out) {
        source(i, out);
        return true;
      };
      WritePage(storage_.get(), at, page, always, &next.pages[size_t(page)]);
      at += stored_page_bytes();
    }
    // A commit must not reach the drive before its pages: it would replace pages that are whole.
    if (!pages.empty()) storage_->Sync();
    at = WriteCommit(storage_.get(), head_, next, at);
    storage_->Sync();
    SyncFolderIfDirty();
  } catch (...) {
    // Now rather than at the next Save: the disk may be full, and others wait for the room.
    try {
      CutTail();
    } catch (const Error&) {
      // tail_is_dirty_ stands; the next Save begins with it.
    }
    throw;
  }
  state_ = std::move(next);
  end_ = at;
  tail_is_dirty_ = needs_commit_ = false;
  std::fill_n(head_copy_damaged_, 2, false);
}

// The new file is complete and durable before it has the name, and the old one stays until then.
void SessionFile::WriteNewFile(SessionState next, const std::vector<int64_t>& pages,
                               const MaybePageSource& source) {
  const SessionHead head = {head_.identity, RandomId()};
  std::unique_ptr<SessionStorage> file;
  uint64_t at = kSessionHeadBytes;
  try {
    file = place_->CreatePartial();
    const std::string sector = EncodeHead(head);
    WriteAll(file.get(), name(), 0, (sector + sector).data(), kSessionHeadBytes);
    for (const int64_t page : pages) {
      if (WritePage(file.get(), at, page, source, &next.pages[size_t(page)])) {
        at += stored_page_bytes();
      }
    }
    DropAbsentPagesAtEnd(&next.pages);
    at = WriteCommit(file.get(), head, next, at);
    file->Sync();
    file->TakeName();
  } catch (...) {
    file.reset();
    place_->RemovePartial();
    throw;
  }
  storage_ = std::move(file);
  head_ = head;
  state_ = std::move(next);
  end_ = at;
  tail_is_dirty_ = needs_commit_ = false;
  std::fill_n(head_copy_damaged_, 2, false);
  folder_is_dirty_ = true;
  SyncFolderIfDirty();
}

bool SessionFile::WritePage(SessionStorage* storage, uint64_t offset, int64_t page,
                            const MaybePageSource& source, SavedPage* saved) {
  const size_t page_bytes = size_t(head_.identity.page_bytes);
  std::fill(buffer_.begin() + ptrdiff_t(page_bytes), buffer_.end(), uint8_t{0});
  if (!source(page, std::span(buffer_).first(page_bytes))) {
    *saved = SavedPage{};
    return false;
  }
  WriteAll(storage, name(), offset, buffer_.data(), buffer_.size());
  saved->offset = offset;
  saved->checksum = PageChecksum(buffer_);
  return true;
}

uint64_t SessionFile::WriteCommit(SessionStorage* storage, const SessionHead& head,
                                  const SessionState& state, uint64_t offset) {
  const std::string commit = EncodeCommit(state, head, ++commit_number_, offset);
  WriteAll(storage, name(), offset, commit.data(), commit.size());
  return offset + commit.size();
}

// Only a damaged copy is written over; the other one is whole.
void SessionFile::RepairHead() {
  for (const uint64_t copy : {uint64_t{0}, uint64_t{1}}) {
    if (!head_copy_damaged_[copy]) continue;
    const std::string sector = EncodeHead(head_);
    WriteAll(storage_.get(), name(), copy * kSessionSectorBytes, sector.data(), sector.size());
  }
}

// After a failure the system may hold bytes as written that never reached the drive, and a commit
// may have reached it without being acknowledged. Both go, for good, before anything is written
// where they were.
void SessionFile::CutTail() {
  if (!tail_is_dirty_) return;
  storage_->Resize(end_);
  storage_->Sync();
  tail_is_dirty_ = false;
}

void SessionFile::SyncFolderIfDirty() {
  if (!folder_is_dirty_) return;
  place_->SyncFolder();
  folder_is_dirty_ = false;
}

uint64_t SessionFile::LiveBytes() const {
  const auto stored = std::count_if(state_.pages.begin(), state_.pages.end(),
                                    [](const SavedPage& page) { return page.rows > 0; });
  return kSessionHeadBytes + uint64_t(stored) * stored_page_bytes() + 2 * CommitBytes(state_);
}

uint64_t SessionFile::garbage_bytes() const {
  const uint64_t live = LiveBytes();
  return end_ > live ? end_ - live : 0;
}

bool SessionFile::CompactIfDue(uint64_t min_garbage_bytes) {
  const uint64_t garbage = garbage_bytes();
  if (!storage_ || garbage < min_garbage_bytes || garbage <= end_ / 2) return false;
  Compact();
  return true;
}

void SessionFile::Compact() {
  CHECK(storage_);
  std::vector<int64_t> pages;
  for (int64_t page = 0; page < int64_t(state_.pages.size()); ++page) {
    if (page_rows(page) > 0) pages.push_back(page);
  }
  WriteNewFile(state_, pages, [this](int64_t page, std::span<uint8_t> out) {
    CHECK(out.data() == buffer_.data());
    // A page that cannot be read ends this; only one that is damaged for certain is left out.
    if (LoadPage(page) == PageLoad::kGood) return true;
    LosePage(page, "is damaged");
    return false;
  });
}

SessionContent ReadSessionAt(SessionPlace* place) {
  SessionScan scan = ScanSession(*place->OpenToRead(), place->name());
  return {std::move(scan.head.identity), std::move(scan.state.ids), std::move(scan.state.meta),
          std::move(scan.findings)};
}

SessionContent ReadSession(const std::filesystem::path& path) {
  DiskPlace place(path);
  return ReadSessionAt(&place);
}

}  // namespace hillstar
