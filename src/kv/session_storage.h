// The file operations that a saved session needs, as interfaces, so that a test can put a disk that
// fails in their place. DiskPlace is the real thing. Used by one thread at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "formats/file_io.h"

namespace hillstar {

// One open file. Errors of all that do not return -1: kIo.
class SessionStorage {
 public:
  virtual ~SessionStorage() = default;
  virtual uint64_t size() const = 0;
  // Like pread and pwrite: bytes moved, 0 at the end of the file, or -1 with errno.
  virtual ssize_t ReadSome(void* out, size_t num_bytes, uint64_t offset) const = 0;
  virtual ssize_t WriteSome(const void* data, size_t num_bytes, uint64_t offset) = 0;
  virtual void Resize(uint64_t num_bytes) = 0;
  // Returns once everything written is on the drive. After a failure nothing written since the last
  // success may be relied on, even if a later call succeeds: the system has forgotten it.
  virtual void Sync() = 0;
  // Of a partial file: it becomes the session's file in place of what had the name. All or nothing
  // at once, durable after SyncFolder.
  virtual void TakeName() = 0;
  // What its name leads to now: this file still, nothing, or another file.
  enum class NameLeadsTo { kThis, kNothing, kOther };
  virtual NameLeadsTo name_leads_to() const = 0;
};

// All of `num_bytes`. `name` is for the message. Errors: kIo.
void ReadAll(const SessionStorage& storage, std::string_view name, uint64_t offset, void* out,
             size_t num_bytes);
void WriteAll(SessionStorage* storage, std::string_view name, uint64_t offset, const void* data,
              size_t num_bytes);

// Where a session's file lies, and its successor while that is written.
class SessionPlace {
 public:
  virtual ~SessionPlace() = default;
  // The path of the session's file, for messages.
  virtual const std::string& name() const = 0;
  // Errors: kNotFound, kBadFile (a folder, say), kIo.
  virtual std::unique_ptr<SessionStorage> Open() = 0;
  // Only to read: a file that may not be written serves as well. Errors: likewise.
  virtual std::unique_ptr<const SessionStorage> OpenToRead() = 0;
  // An empty file under another name; one that a crash left there is emptied. Errors: kIo, also
  // where something else has the name, which stays.
  virtual std::unique_ptr<SessionStorage> CreatePartial() = 0;
  // Nothing happens where there is none, where it cannot be removed, or where it is no session.
  virtual void RemovePartial() = 0;
  virtual void SyncFolder() = 0;
};

// A file in a folder; the successor is PATH.partial. Links are followed once, at the start: it is
// the file behind them that is replaced. Files are readable by their owner only, and locked: a
// SessionLock goes by the name, and a file may have several.
class DiskPlace final : public SessionPlace {
 public:
  explicit DiskPlace(const std::filesystem::path& path);

  const std::string& name() const override { return name_; }
  std::unique_ptr<SessionStorage> Open() override;
  std::unique_ptr<const SessionStorage> OpenToRead() override;
  std::unique_ptr<SessionStorage> CreatePartial() override;
  void RemovePartial() override;
  void SyncFolder() override;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_, partial_path_;
  std::string name_;
};

// Keeps a session to one owner. It is a lock on PATH.lock: the session's own file is replaced now
// and then, and a lock on it would go with the old one. The file is empty and removed with the
// lock; one that a crash leaves is free for the next.
class SessionLock {
 public:
  // Errors: kIo, naming the session, if somebody else has it, or if PATH.lock is not empty and so
  // something else, which stays.
  explicit SessionLock(const std::filesystem::path& session);
  ~SessionLock();
  SessionLock(const SessionLock&) = delete;
  SessionLock& operator=(const SessionLock&) = delete;

 private:
  std::filesystem::path path_;
  File file_;
};

}  // namespace hillstar
