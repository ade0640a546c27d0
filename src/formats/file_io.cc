#include "formats/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "hillstar/error.h"

namespace hillstar {
namespace {

// Linux moves at most 2 GiB - 4 KiB a call; a round number below keeps direct reads aligned.
constexpr size_t kMaxTransferBytes = size_t{1} << 30;

std::string Reason(int error_number) {
  return std::error_code(error_number, std::generic_category()).message();
}

[[noreturn]] void ThrowIo(std::string_view what, std::string_view name, int error_number) {
  const bool absent = error_number == ENOENT || error_number == ENOTDIR;
  throw Error(absent ? ErrorCode::kNotFound : ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", what, name, Reason(error_number)));
}

int OpenRetried(const char* path, int flags) {
  while (true) {
    const int fd = ::open(path, flags | O_CLOEXEC, 0644);
    if (fd >= 0 || errno != EINTR) return fd;
  }
}

void RequireRegular(int fd, const std::string& name) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) ThrowIo("inspect", name, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} is not a regular file", name));
  }
}

// Bytes moved until the transfer ended or failed; then `error_number` is 0 or errno.
struct Transfer {
  size_t num_bytes = 0;
  int error_number = 0;
};

template <typename Fn>
Transfer MoveAll(size_t num_bytes, const Fn& move) {
  Transfer done;
  while (done.num_bytes < num_bytes) {
    const size_t want = std::min(num_bytes - done.num_bytes, kMaxTransferBytes);
    const ssize_t got = move(done.num_bytes, want);
    if (got > 0) {
      done.num_bytes += size_t(got);
    } else if (got == 0) {
      break;
    } else if (errno != EINTR) {
      done.error_number = errno;
      break;
    }
  }
  return done;
}

Transfer MoveIn(const ReadSomeFn& pread, uint64_t offset, void* out, size_t num_bytes) {
  return MoveAll(num_bytes, [&](size_t at, size_t want) {
    return pread(static_cast<char*>(out) + at, want, offset + at);
  });
}

void RequireRead(const Transfer& got, std::string_view name, uint64_t offset, size_t num_bytes) {
  if (got.num_bytes == num_bytes) return;
  throw Error(
      ErrorCode::kIo,
      fmt::format("read {} of {} bytes at offset {} of {}: {}", got.num_bytes, num_bytes, offset,
                  name, got.error_number == 0 ? "the file ends there" : Reason(got.error_number)));
}

Transfer MoveOut(const WriteSomeFn& pwrite, uint64_t offset, const void* data, size_t num_bytes) {
  return MoveAll(num_bytes, [&](size_t at, size_t want) {
    return pwrite(static_cast<const char*>(data) + at, want, offset + at);
  });
}

void RequireWritten(const Transfer& done, std::string_view name, uint64_t offset,
                    size_t num_bytes) {
  if (done.num_bytes == num_bytes) return;
  throw Error(ErrorCode::kIo, fmt::format("wrote {} of {} bytes at offset {} of {}: {}",
                                          done.num_bytes, num_bytes, offset, name,
                                          done.error_number == 0 ? "the file takes no more"
                                                                 : Reason(done.error_number)));
}

WriteSomeFn PwriteOf(int fd) {
  return [fd](const void* data, size_t n, uint64_t at) { return ::pwrite(fd, data, n, off_t(at)); };
}

ReadSomeFn PreadOf(int fd) {
  return [fd](void* out, size_t n, uint64_t at) { return ::pread(fd, out, n, off_t(at)); };
}

}  // namespace

void ReadFully(const ReadSomeFn& pread, std::string_view name, uint64_t offset, void* out,
               size_t num_bytes) {
  RequireRead(MoveIn(pread, offset, out, num_bytes), name, offset, num_bytes);
}

void WriteFully(const WriteSomeFn& pwrite, std::string_view name, uint64_t offset, const void* data,
                size_t num_bytes) {
  RequireWritten(MoveOut(pwrite, offset, data, num_bytes), name, offset, num_bytes);
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), name_(std::move(other.name_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    name_ = std::move(other.name_);
  }
  return *this;
}

File File::OpenForReading(const std::filesystem::path& path) {
  // O_NONBLOCK: a named pipe must be refused below, not waited for.
  const int fd = OpenRetried(path.c_str(), O_RDONLY | O_NONBLOCK);
  if (fd < 0) ThrowIo("open", path.native(), errno);
  File file(fd, path.native());
  RequireRegular(fd, file.name_);
  return file;
}

std::optional<File> File::TryOpenDirect(const std::filesystem::path& path) {
  const int fd = OpenRetried(path.c_str(), O_RDONLY | O_NONBLOCK | O_DIRECT);
  if (fd < 0) return std::nullopt;
  return File(fd, path.native());
}

std::optional<File> File::TryOpenDirectForWriting(const std::filesystem::path& path) {
  const int fd = OpenRetried(path.c_str(), O_WRONLY | O_NONBLOCK | O_DIRECT);
  if (fd < 0) return std::nullopt;
  return File(fd, path.native());
}

File File::OpenForWriting(const std::filesystem::path& path) {
  const int fd = OpenRetried(path.c_str(), O_RDWR | O_CREAT | O_NONBLOCK);
  if (fd < 0) ThrowIo("open for writing", path.native(), errno);
  File file(fd, path.native());
  RequireRegular(fd, file.name_);
  return file;
}

File File::CreateUnnamed(const std::filesystem::path& folder) {
  int fd = ::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EOPNOTSUPP) {  // a file system without such files
    std::string name = (folder / "unnamed-XXXXXX").native();
    fd = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(name.c_str());
  }
  if (fd < 0) ThrowIo("create a file in", folder.native(), errno);
  return File(fd, fmt::format("a file without a name in {}", folder.native()));
}

File File::OpenFolder(const std::filesystem::path& path) {
  const int fd = OpenRetried(path.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) ThrowIo("open", path.native(), errno);
  return File(fd, path.native());
}

uint64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) ThrowIo("inspect", name_, errno);
  return uint64_t(status.st_size);
}

ssize_t File::ReadSome(void* out, size_t num_bytes, uint64_t offset) const {
  return ::pread(fd_, out, num_bytes, off_t(offset));
}

ssize_t File::WriteSome(const void* data, size_t num_bytes, uint64_t offset) const {
  return ::pwrite(fd_, data, num_bytes, off_t(offset));
}

void File::ReadAt(uint64_t offset, void* out, size_t num_bytes) const {
  ReadFully(PreadOf(fd_), name_, offset, out, num_bytes);
}

bool File::TryReadAt(uint64_t offset, void* out, size_t num_bytes) const {
  const Transfer got = MoveIn(PreadOf(fd_), offset, out, num_bytes);
  if (got.error_number == EINVAL) return false;
  RequireRead(got, name_, offset, num_bytes);
  return true;
}

bool File::IsCached(uint64_t offset) const {
  char byte = 0;
  const iovec place = {&byte, 1};
  return ::preadv2(fd_, &place, 1, off_t(offset), RWF_NOWAIT) == 1;
}

void File::WriteAt(uint64_t offset, const void* data, size_t num_bytes) const {
  WriteFully(PwriteOf(fd_), name_, offset, data, num_bytes);
}

bool File::TryWriteAt(uint64_t offset, const void* data, size_t num_bytes) const {
  const Transfer done = MoveOut(PwriteOf(fd_), offset, data, num_bytes);
  if (done.error_number == EINVAL) return false;
  RequireWritten(done, name_, offset, num_bytes);
  return true;
}

void File::Resize(uint64_t num_bytes) const {
  while (::ftruncate(fd_, off_t(num_bytes)) != 0) {
    if (errno != EINTR) ThrowIo(fmt::format("set the size {} of", num_bytes), name_, errno);
  }
}

void File::Sync() const {
  while (::fsync(fd_) != 0) {
    if (errno != EINTR) ThrowIo("sync", name_, errno);
  }
}

bool File::TryLock() const {
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) ThrowIo("lock", name_, errno);
  }
  return true;
}

bool File::HasItsName() const {
  struct stat mine {
  }, named{};
  if (::fstat(fd_, &mine) != 0) ThrowIo("inspect", name_, errno);
  return ::stat(name_.c_str(), &named) == 0 && mine.st_dev == named.st_dev &&
         mine.st_ino == named.st_ino;
}

void File::RenameTo(const std::filesystem::path& path) {
  if (::rename(name_.c_str(), path.c_str()) != 0) {
    ThrowIo(fmt::format("rename {} to", name_), path.native(), errno);
  }
  name_ = path.native();
}

std::string ReadWholeFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file = File::OpenForReading(path);
  const uint64_t size = file.size();
  if (size > max_bytes) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} has {} bytes; at most {} are expected",
                                                 path.native(), size, max_bytes));
  }
  std::string content(size_t(size), '\0');
  file.ReadAt(0, content.data(), content.size());
  return content;
}

void WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path partial = path;
  partial += ".partial";
  {
    const File file = File::OpenForWriting(partial);
    file.Resize(0);
    file.WriteAt(0, content.data(), content.size());
    file.Sync();
  }
  RenameDurably(partial, path);
}

void CreateFoldersDurably(const std::filesystem::path& folder) {
  std::error_code error;
  if (folder.empty() || std::filesystem::is_directory(folder, error)) return;
  const std::filesystem::path parent = folder.has_parent_path() ? folder.parent_path() : ".";
  CreateFoldersDurably(parent);
  if (!std::filesystem::create_directory(folder, error) && error) {
    ThrowIo("make the folder", folder.native(), error.value());
  }
  File::OpenFolder(parent).Sync();
}

void RenameDurably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    ThrowIo(fmt::format("rename {} to", from.native()), to.native(), errno);
  }
  File::OpenFolder(to.has_parent_path() ? to.parent_path() : ".").Sync();
}

void OpenClosedStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest free descriptor is this stream's: those below are open. Without /dev/null nobody
    // can be told.
    if (::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) std::_Exit(1);
  }
}

}  // namespace hillstar
