// A saved session: a sequence's token ids, its pages of rows and a text of the caller's, in one
// file that survives a crash, a full disk and a pulled plug. docs/session.md describes the file and
// says why it is safe.
//
// A page holds the rows of page_tokens tokens of all layers; to the file it is page_bytes opaque
// bytes. Page i belongs to tokens i * page_tokens and on; of the last one, the leading rows count.
// A row depends on the ids up to its own token and on the identity only, so a stored row is good as
// long as those are the same.
//
// A SessionFile owns its file and the lock on it. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/session_records.h"
#include "kv/session_scan.h"
#include "kv/session_storage.h"

namespace hillstar {

class SessionFile {
 public:
  // Copies page `page` to `out`, page_bytes of it. Rows that the sequence lacks may hold anything.
  using PageSource = std::function<void(int64_t page, std::span<uint8_t> out)>;

  // The saved session at `path`. What is damaged is told by findings(), of pages once they are
  // read. Errors: kNotFound; kBadFile if it is no session or nothing of it is left; kUnsupported
  // for a newer version or another identity; kIo if another process has it or it cannot be read.
  // After any Error the file is as it was.
  static SessionFile Open(const std::filesystem::path& path, const SessionIdentity& identity);
  // The saved session at `path`, or a new one where there is none. One of another identity has its
  // ids and its text but no rows; findings() says so, and the next Save replaces the file.
  // Errors: as Open's and Create's otherwise.
  static SessionFile OpenOrCreate(const std::filesystem::path& path,
                                  const SessionIdentity& identity);
  // A session without tokens. The first Save makes the file; one that is there is replaced then,
  // and not before the new one is durable. REQUIRES IsValid(identity). Errors: kIo if another
  // process has it or its folder cannot be written.
  static SessionFile Create(const std::filesystem::path& path, const SessionIdentity& identity);

  // The same on any storage, without a lock.
  static SessionFile OpenAt(std::unique_ptr<SessionPlace> place, const SessionIdentity& identity);
  static SessionFile CreateAt(std::unique_ptr<SessionPlace> place, const SessionIdentity& identity);

  const std::string& name() const { return place_->name(); }
  const SessionIdentity& identity() const { return head_.identity; }
  const std::vector<int32_t>& ids() const { return state_.ids; }
  const std::string& meta() const { return state_.meta; }
  // Leading rows of the page that are stored; 0 if it is absent.
  int64_t page_rows(int64_t page) const;
  // Rows 0 .. this - 1 are stored without a gap; at most ids().size().
  int64_t num_leading_rows() const;
  // Sentences, one for each thing that Open or ReadPage found wrong.
  const std::vector<std::string>& findings() const { return findings_; }

  // Copies a page; bytes of rows from page_rows() on are unspecified. False if it is absent or
  // turns out to be damaged: then it is absent from now on and findings() says so.
  // REQUIRES out.size() == identity().page_bytes.
  bool ReadPage(int64_t page, std::span<uint8_t> out);

  // Makes `ids`, rows 0 .. num_rows - 1 and `meta` (UTF-8 by custom, opaque here) the session, and
  // returns once all of it is on the drive. Only pages that the file lacks are asked for and
  // written; stored rows whose ids are unchanged are kept, even past num_rows.
  // REQUIRES 0 <= num_rows <= ids.size().
  // Errors: kBadRequest past kMaxSessionTokens or kMaxSessionMetaBytes; kIo where the disk is full
  // or fails; what `page` throws. Then what was saved before is still saved, and the same call may
  // be made again. (Where only the name of the file could not be made durable, ids() and meta()
  // are the new ones already.) A file that was removed meanwhile is written anew; kIo where another
  // one has its name.
  void Save(std::span<const int32_t> ids, int64_t num_rows, std::string_view meta,
            const PageSource& page);

  // Bytes that nothing needs any more: former pages and commits.
  uint64_t garbage_bytes() const;
  // Writes the session into a new file that replaces this one, without what was there before.
  // Takes as long as copying the session and needs that much room. To be called after Save.
  // Errors: kIo, as for Save.
  void Compact();
  // Does so if garbage is more than half of the file and at least `min_garbage_bytes`; then true.
  bool CompactIfDue(uint64_t min_garbage_bytes = kMinGarbageBytes);

  static constexpr uint64_t kMinGarbageBytes = uint64_t{64} << 20;

 private:
  // As PageSource; false if there is no such page.
  using MaybePageSource = std::function<bool(int64_t page, std::span<uint8_t> out)>;

  SessionFile(std::unique_ptr<SessionPlace> place, const SessionIdentity& identity);

  enum class PageLoad { kGood, kDamaged };
  PageLoad LoadPage(int64_t page);
  void LosePage(int64_t page, std::string_view why);

  SessionState Keep(std::span<const int32_t> ids, std::string_view meta) const;
  std::vector<int64_t> MissingPages(SessionState* next, int64_t num_rows) const;
  uint32_t RowsOf(int64_t page, int64_t num_rows) const;
  void Append(SessionState next, const std::vector<int64_t>& pages, const PageSource& source);
  void WriteNewFile(SessionState next, const std::vector<int64_t>& pages,
                    const MaybePageSource& source);
  bool WritePage(SessionStorage* storage, uint64_t offset, int64_t page,
                 const MaybePageSource& source, SavedPage* saved);
  uint64_t WriteCommit(SessionStorage* storage, const SessionHead& head, const SessionState& state,
                       uint64_t offset);
  void RepairHead();
  void CutTail();
  void SyncFolderIfDirty();
  uint64_t LiveBytes() const;
  void ForgetRemovedFile();
  uint64_t stored_page_bytes() const { return StoredPageBytes(head_.identity); }

  std::unique_ptr<SessionLock> lock_;  // none on other storage
  std::unique_ptr<SessionPlace> place_;
  std::unique_ptr<SessionStorage> storage_;  // none before the first Save of a created session
  SessionHead head_;
  SessionState state_;
  uint64_t commit_number_ = 0;    // the last one used, for a failed commit as well
  uint64_t end_ = 0;              // what follows belongs to no commit
  bool tail_is_dirty_ = false;    // there may be something after end_
  bool folder_is_dirty_ = false;  // the name of the file is not durable yet
  bool needs_commit_ = false;     // even if a Save changes nothing
  bool head_copy_damaged_[2] = {};
  std::vector<std::string> findings_;
  std::vector<uint8_t> buffer_;  // one page as it is stored
};

// What a saved session says, whatever its identity, without its pages: for lists, and to compute
// the rows again for another model or KV format. Takes no lock; the file may be in use.
struct SessionContent {
  SessionIdentity identity;
  std::vector<int32_t> ids;
  std::string meta;
  std::vector<std::string> findings;
};
// Errors: as for SessionFile::Open, but of the identity only what is no identity at all.
SessionContent ReadSession(const std::filesystem::path& path);
SessionContent ReadSessionAt(SessionPlace* place);

}  // namespace hillstar
