#include "kv/session_storage.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "hillstar/error.h"
#include "kv/session_records.h"

namespace hillstar {
namespace {

std::filesystem::path Sibling(std::filesystem::path path, const char* suffix) {
  path += suffix;
  return path;
}

std::filesystem::path Resolved(const std::filesystem::path& path) {
  std::error_code error;
  // Made absolute first: a relative path to nothing stays relative otherwise.
  const auto absolute = std::filesystem::absolute(path, error);
  if (error) return path;
  const auto resolved = std::filesystem::weakly_canonical(absolute, error);
  if (error) return absolute;
  // A link to nothing is not followed by then.
  const auto target = std::filesystem::read_symlink(resolved, error);
  return error ? resolved : (resolved.parent_path() / target).lexically_normal();
}

Error InUse(const std::string& session) {
  return {
      ErrorCode::kIo,
      fmt::format("{} is in use by another process or conversation; close that first", session)};
}

// What a crash may leave of a file that was being written: nothing, a session, or, after a cut of
// the power, zeros.
bool IsUnfinishedSession(const File& file) {
  std::string start(8, '\0');
  if (file.size() < start.size()) return file.size() == 0;
  file.ReadAt(0, start.data(), start.size());
  return start == kSessionMagic || start == std::string(8, '\0');
}

class DiskStorage final : public SessionStorage {
 public:
  DiskStorage(File file, std::filesystem::path final_path)
      : file_(std::move(file)), final_path_(std::move(final_path)) {}

  uint64_t size() const override { return file_.size(); }
  ssize_t ReadSome(void* out, size_t num_bytes, uint64_t offset) const override {
    return file_.ReadSome(out, num_bytes, offset);
  }
  ssize_t WriteSome(const void* data, size_t num_bytes, uint64_t offset) override {
    return file_.WriteSome(data, num_bytes, offset);
  }
  void Resize(uint64_t num_bytes) override { file_.Resize(num_bytes); }
  void Sync() override { file_.Sync(); }
  void TakeName() override { file_.RenameTo(final_path_); }
  NameLeadsTo name_leads_to() const override {
    if (file_.HasItsName()) return NameLeadsTo::kThis;
    std::error_code error;
    const auto status = std::filesystem::symlink_status(final_path_, error);
    return status.type() == std::filesystem::file_type::not_found ? NameLeadsTo::kNothing
                                                                  : NameLeadsTo::kOther;
  }

 private:
  File file_;
  std::filesystem::path final_path_;
};

}  // namespace

void ReadAll(const SessionStorage& storage, std::string_view name, uint64_t offset, void* out,
             size_t num_bytes) {
  const ReadSomeFn read = [&storage](void* to, size_t n, uint64_t at) {
    return storage.ReadSome(to, n, at);
  };
  ReadFully(read, name, offset, out, num_bytes);
}

void WriteAll(SessionStorage* storage, std::string_view name, uint64_t offset, const void* data,
              size_t num_bytes) {
  const WriteSomeFn write = [storage](const void* from, size_t n, uint64_t at) {
    return storage->WriteSome(from, n, at);
  };
  WriteFully(write, name, offset, data, num_bytes);
}

DiskPlace::DiskPlace(const std::filesystem::path& path)
    : path_(Resolved(path)), partial_path_(Sibling(path_, ".partial")), name_(path_.native()) {}

std::unique_ptr<SessionStorage> DiskPlace::Open() {
  // Opened for reading first: it refuses what is absent or no file, where the other would create.
  File::OpenForReading(path_);
  File file = File::OpenForWriting(path_);
  if (!file.TryLock()) throw InUse(name_);
  return std::make_unique<DiskStorage>(std::move(file), path_);
}

std::unique_ptr<const SessionStorage> DiskPlace::OpenToRead() {
  return std::make_unique<const DiskStorage>(File::OpenForReading(path_), path_);
}

std::unique_ptr<SessionStorage> DiskPlace::CreatePartial() {
  File file = File::OpenForWriting(partial_path_);
  if (!file.TryLock()) throw InUse(name_);
  if (!IsUnfinishedSession(file)) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{} is in the way: it is no session, and {} would be written there first",
                    partial_path_.native(), name_));
  }
  file.Resize(0);
  using std::filesystem::perms;
  std::error_code error;  // a file system without permissions serves as well
  std::filesystem::permissions(partial_path_, perms::owner_read | perms::owner_write, error);
  return std::make_unique<DiskStorage>(std::move(file), path_);
}

void DiskPlace::RemovePartial() {
  std::error_code error;
  if (!std::filesystem::is_regular_file(partial_path_, error)) return;
  try {
    if (!IsUnfinishedSession(File::OpenForReading(partial_path_))) return;
  } catch (const Error&) {
    return;
  }
  std::filesystem::remove(partial_path_, error);
}

void DiskPlace::SyncFolder() { File::OpenFolder(path_.parent_path()).Sync(); }

SessionLock::SessionLock(const std::filesystem::path& session) : path_(Sibling(session, ".lock")) {
  while (true) {
    file_ = File::OpenForWriting(path_);
    if (!file_.TryLock()) throw InUse(session.native());
    if (file_.size() > 0) {
      throw Error(ErrorCode::kIo, fmt::format("{} is in the way: it is not empty, so it is not the "
                                              "lock that keeps {} to one conversation",
                                              path_.native(), session.native()));
    }
    // Its last owner may have removed it between the two calls.
    if (file_.HasItsName()) return;
  }
}

SessionLock::~SessionLock() {
  std::error_code error;
  std::filesystem::remove(path_, error);
}

}  // namespace hillstar
