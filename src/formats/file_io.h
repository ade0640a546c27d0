// Owners of file descriptors and the loops around pread and pwrite. A File is owned by one object;
// its reads and writes name their offset, so any threads may use them at once.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace hillstar {

// Like pread/pwrite without the descriptor: bytes moved, 0 at the end of the file, or -1 with
// errno.
using ReadSomeFn = std::function<ssize_t(void* out, size_t num_bytes, uint64_t offset)>;
using WriteSomeFn = std::function<ssize_t(const void* data, size_t num_bytes, uint64_t offset)>;

// Moves all of `num_bytes`: short transfers are continued, EINTR is tried again. `name` is for the
// message. Errors: kIo with what was got and what was expected.
void ReadFully(const ReadSomeFn& pread, std::string_view name, uint64_t offset, void* out,
               size_t num_bytes);
void WriteFully(const WriteSomeFn& pwrite, std::string_view name, uint64_t offset, const void* data,
                size_t num_bytes);

class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Errors of all: kNotFound, kIo. A folder or a device is refused with kBadFile.
  static File OpenForReading(const std::filesystem::path& path);
  // Past the page cache: offsets, sizes and addresses must be multiples of 4096 (kPageBytes).
  // Nothing where the file system does not allow it.
  static std::optional<File> TryOpenDirect(const std::filesystem::path& path);
  // Creates the file where it does not exist; keeps its content where it does.
  static File OpenForWriting(const std::filesystem::path& path);
  // Writes to an existing file past the page cache, under the same conditions as TryOpenDirect.
  static std::optional<File> TryOpenDirectForWriting(const std::filesystem::path& path);
  // A file without a name for reading and writing; gone once it is closed.
  static File CreateUnnamed(const std::filesystem::path& folder);
  // To sync the names in a folder.
  static File OpenFolder(const std::filesystem::path& path);

  bool is_open() const { return fd_ >= 0; }
  const std::string& name() const { return name_; }  // the path, for messages
  uint64_t size() const;

  // One pread or pwrite, see ReadSomeFn and WriteSomeFn.
  ssize_t ReadSome(void* out, size_t num_bytes, uint64_t offset) const;
  ssize_t WriteSome(const void* data, size_t num_bytes, uint64_t offset) const;
  void ReadAt(uint64_t offset, void* out, size_t num_bytes) const;
  // As ReadAt, but false, with the content of `out` unspecified, where the file system refuses this
  // transfer as such (EINVAL: a direct read of a size it does not take).
  bool TryReadAt(uint64_t offset, void* out, size_t num_bytes) const;
  // Whether the byte at `offset` lies in the page cache; false also where that cannot be known.
  bool IsCached(uint64_t offset) const;
  void WriteAt(uint64_t offset, const void* data, size_t num_bytes) const;
  // As WriteAt, but false, with the range partly written, where the file system refuses this
  // transfer as such (EINVAL).
  bool TryWriteAt(uint64_t offset, const void* data, size_t num_bytes) const;
  void Resize(uint64_t num_bytes) const;
  void Sync() const;
  // Takes the file for this process until it is closed; false if another process has it.
  bool TryLock() const;
  // Whether the path that it was opened by, or renamed to, still leads to this file.
  bool HasItsName() const;
  // Renames the file within its folder; durable once the folder is synced.
  void RenameTo(const std::filesystem::path& path);

 private:
  File(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}

  int fd_ = -1;
  std::string name_;
};

// The whole content of a small file. Errors: kNotFound, kIo, kBadFile past `max_bytes`.
std::string ReadWholeFile(const std::filesystem::path& path, uint64_t max_bytes);
// Writes `path`.partial, syncs it and renames it, so that `path` is whole or absent at any moment.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view content);
// Makes what is missing of `folder` and of the folders that it lies in, and syncs the names.
// Errors: kIo.
void CreateFoldersDurably(const std::filesystem::path& folder);
// Renames within a folder and syncs the folder.
void RenameDurably(const std::filesystem::path& from, const std::filesystem::path& to);

// For the start of a program: a standard stream that is closed would otherwise become the next file
// that is opened, and a report be written into a model. What stands in can be neither read (input)
// nor written (output), so that use of the stream fails as it would have.
void OpenClosedStandardStreams();

}  // namespace hillstar
