#include "kv/session_storage.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "hillstar/error.h"

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
  return error ? absolute : resolved;
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
  return std::make_unique<DiskStorage>(File::OpenForWriting(path_), path_);
}

std::unique_ptr<const SessionStorage> DiskPlace::OpenToRead() {
  return std::make_unique<const DiskStorage>(File::OpenForReading(path_), path_);
}

std::unique_ptr<SessionStorage> DiskPlace::CreatePartial() {
  File file = File::OpenForWriting(partial_path_);
  file.Resize(0);
  using std::filesystem::perms;
  std::error_code error;  // a file system without permissions serves as well
  std::filesystem::permissions(partial_path_, perms::owner_read | perms::owner_write, error);
  return std::make_unique<DiskStorage>(std::move(file), path_);
}

void DiskPlace::RemovePartial() {
  std::error_code error;
  std::filesystem::remove(partial_path_, error);
}

void DiskPlace::SyncFolder() { File::OpenFolder(path_.parent_path()).Sync(); }

SessionLock::SessionLock(const std::filesystem::path& session) : path_(Sibling(session, ".lock")) {
  while (true) {
    file_ = File::OpenForWriting(path_);
    if (!file_.TryLock()) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{} is in use by another process or conversation; close that first",
                              session.native()));
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
