#include "formats/file_io.h"

#include <cerrno>

#include "formats/safetensors_test_files.h"

namespace hillstar {
namespace {

// A pread over `content` that moves at most `step` bytes a call and fails with EINTR every other
// call.
ReadSomeFn Halting(const std::string& content, size_t step, int* calls) {
  return [&content, step, calls](void* out, size_t num_bytes, uint64_t offset) -> ssize_t {
    if (++*calls % 2 == 0) {
      errno = EINTR;
      return -1;
    }
    if (offset >= content.size()) return 0;
    const size_t n = std::min({num_bytes, step, content.size() - size_t(offset)});
    std::memcpy(out, content.data() + offset, n);
    return ssize_t(n);
  };
}

TEST(FileIo, ShortReadsAndInterruptionsAreContinued) {
  const std::string content = "0123456789abcdef";
  for (size_t step : {size_t{1}, size_t{5}, size_t{8}, size_t{100}}) {
    int calls = 0;
    std::string out(10, '?');
    ReadFully(Halting(content, step, &calls), "a file", 3, out.data(), out.size());
    EXPECT_EQ(out, "3456789abc") << step;
  }
}

TEST(FileIo, AReadPastTheEndSaysWhatItGot) {
  const std::string content = "0123456789";
  int calls = 0;
  std::string out(10, '?');
  ExpectError(ErrorCode::kIo, {"read 7 of 10 bytes", "offset 3", "a file", "ends there"},
              [&] { ReadFully(Halting(content, 4, &calls), "a file", 3, out.data(), out.size()); });
}

TEST(FileIo, AFailedReadGivesTheReason) {
  char out = 0;
  ExpectError(ErrorCode::kIo, {"read 0 of 1 bytes", "Input/output error"}, [&] {
    ReadFully(
        [](void*, size_t, uint64_t) -> ssize_t {
          errno = EIO;
          return -1;
        },
        "a file", 0, &out, 1);
  });
}

TEST(FileIo, ShortWritesAreContinuedAndAFullDiskIsNamed) {
  std::string disk(8, '.');
  int calls = 0;
  const WriteSomeFn write = [&](const void* data, size_t num_bytes, uint64_t offset) -> ssize_t {
    if (++calls % 3 == 0) {
      errno = EINTR;
      return -1;
    }
    if (offset >= disk.size()) {
      errno = ENOSPC;
      return -1;
    }
    const size_t n = std::min({num_bytes, size_t{3}, disk.size() - size_t(offset)});
    std::memcpy(disk.data() + offset, data, n);
    return ssize_t(n);
  };
  WriteFully(write, "a file", 1, "abcdefg", 7);
  EXPECT_EQ(disk, ".abcdefg");
  ExpectError(ErrorCode::kIo, {"wrote 2 of 5 bytes", "offset 6", "No space left"},
              [&] { WriteFully(write, "a file", 6, "vwxyz", 5); });
}

TEST(FileIo, FilesAreReadWrittenAndRefused) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  {
    const File file = File::OpenForWriting(path);
    file.WriteAt(2, "abc", 3);
    file.Resize(6);
    file.Sync();
    EXPECT_EQ(file.size(), 6u);
  }
  EXPECT_EQ(ReadWholeFile(path, 6), std::string("\0\0abc\0", 6));
  ExpectError(ErrorCode::kBadFile, {"6 bytes", "at most 5"}, [&] { ReadWholeFile(path, 5); });
  ExpectError(ErrorCode::kNotFound, {"absent"},
              [&] { File::OpenForReading(folder.path() / "absent"); });
  ExpectError(ErrorCode::kBadFile, {"not a regular file"},
              [&] { File::OpenForReading(folder.path()); });
}

TEST(FileIo, AnAtomicWriteLeavesTheOldOrTheNewContent) {
  const TempFolder folder;
  const auto path = folder.path() / "x";
  WriteFileAtomically(path, "first, and longer");
  WriteFileAtomically(path, "second");
  EXPECT_EQ(ReadWholeFile(path, 100), "second");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "x.partial"));
}

TEST(FileIo, ALockIsHeldByOne) {
  const TempFolder folder;
  File first = File::OpenForWriting(folder.path() / "lock");
  const File second = File::OpenForWriting(folder.path() / "lock");
  EXPECT_TRUE(first.TryLock());
  EXPECT_FALSE(second.TryLock());
  first = File();
  EXPECT_TRUE(second.TryLock());
}

TEST(FileIo, SingleTransfersTellWhatTheyMoved) {
  const TempFolder folder;
  const File file = File::OpenForWriting(folder.path() / "x");
  EXPECT_EQ(file.WriteSome("abcdef", 6, 2), 6);
  std::string out(10, '?');
  EXPECT_EQ(file.ReadSome(out.data(), 10, 4), 4);
  EXPECT_EQ(out.substr(0, 5), "cdef?");
  EXPECT_EQ(file.ReadSome(out.data(), 10, 8), 0);
  EXPECT_EQ(File::OpenFolder(folder.path()).ReadSome(out.data(), 1, 0), -1);
  EXPECT_EQ(errno, EISDIR);
}

TEST(FileIo, AnOpenFileKnowsWhetherItsNameIsStillItsOwn) {
  const TempFolder folder;
  const auto old_path = folder.path() / "old", new_path = folder.path() / "new";
  File file = File::OpenForWriting(old_path);
  EXPECT_TRUE(file.HasItsName());
  file.RenameTo(new_path);
  EXPECT_EQ(file.name(), new_path.native());
  EXPECT_TRUE(file.HasItsName());
  EXPECT_FALSE(std::filesystem::exists(old_path));

  File::OpenForWriting(old_path).RenameTo(new_path);
  EXPECT_FALSE(file.HasItsName());
  std::filesystem::remove(new_path);
  EXPECT_FALSE(file.HasItsName());
  ExpectError(ErrorCode::kNotFound, {"rename", "new", "elsewhere"},
              [&] { file.RenameTo(folder.path() / "elsewhere"); });
  EXPECT_EQ(file.name(), new_path.native());
}

}  // namespace
}  // namespace hillstar
