#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "formats/json_scan.h"
#include "formats/safetensors.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr uint64_t kLengthBytes = 8;  // the header's length, in front of it
constexpr std::string_view kLfsPrefix = "version https://git-lfs.github.com/spec/";

[[noreturn]] void Fail(const std::string& message) { throw Error(ErrorCode::kBadFile, message); }

}  // namespace

bool IsGitLfsPointer(std::string_view text) { return text.starts_with(kLfsPrefix); }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : name_(path.filename().string()), file_(File::OpenForReading(path)) {
  try {
    ReadHeader();
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: {}", Quoted(name_), e.what()));
  }
}

void SafetensorsFile::ReadHeader() {
  const uint64_t file_bytes = file_.size();
  if (file_bytes == 0) Fail("The file is empty. Download it again.");
  std::string start(size_t(std::min<uint64_t>(file_bytes, kLfsPrefix.size())), '\0');
  file_.ReadAt(0, start.data(), start.size());
  if (IsGitLfsPointer(start)) {
    Fail(
        "The file is a git-LFS pointer, not the weights. Fetch them with `git lfs pull` or "
        "download the file again.");
  }
  if (file_bytes < kLengthBytes) {
    Fail(fmt::format("The file has only {} bytes. Download it again.", file_bytes));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), kLengthBytes);
  if (header_bytes == 0 || header_bytes > kMaxSafetensorsHeaderBytes) {
    Fail(
        fmt::format("The header's length is given as {} bytes; this is no safetensors file (1 to "
                    "{} bytes).",
                    header_bytes, kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    Fail(
        fmt::format("The header should have {} bytes, but the file has only {} in all: it was cut "
                    "off. Download it again.",
                    header_bytes, file_bytes));
  }
  std::string text(size_t(header_bytes), '\0');
  file_.ReadAt(kLengthBytes, text.data(), text.size());
  data_begin_ = kLengthBytes + header_bytes;
  header_ = ParseSafetensorsHeader(text, file_bytes - data_begin_);
}

void SafetensorsFile::Read(const SafetensorsTensor& tensor, uint64_t offset, uint64_t num_bytes,
                           void* out) const {
  CHECK(num_bytes <= tensor.num_bytes() && offset <= tensor.num_bytes() - num_bytes);
  file_.ReadAt(data_begin_ + tensor.begin + offset, out, size_t(num_bytes));
}

}  // namespace hillstar
