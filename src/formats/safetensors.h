// Safetensors files that nobody trusts. The header is checked before anything is read by it:
// every tensor owns its bytes alone, and all bytes have an owner. Data is read with pread, never
// through page faults. A SafetensorsFile owns its descriptor; const methods may be called from any
// thread at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/file_io.h"

namespace hillstar {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = uint64_t{512} << 20;
inline constexpr size_t kMaxTensorRank = 8;
// The longest name of the family has 60 bytes.
inline constexpr size_t kMaxTensorNameBytes = 4096;

enum class Dtype {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF16,
  kBf16,
  kF32,
  kF64,
  kC64,
};
const char* DtypeName(Dtype dtype);  // as in the file, e.g. "F8_E4M3"
int DtypeBits(Dtype dtype);

struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the start of the data
  uint64_t end = 0;
  uint64_t num_bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // by ascending offset
  // Entries of `__metadata__` whose key starts with "colibri.": that engine's layout tags.
  std::vector<std::pair<std::string, std::string>> colibri_metadata;
};

// Parses the JSON header of a file whose data part is `data_bytes` long.
// Errors: kBadFile, naming the tensor or the byte offset, for malformed JSON, a missing or doubled
// field, a bad shape, sizes that disagree, an overflow, overlaps, holes and trailing bytes (naming
// both neighbours); kUnsupported for an unknown dtype.
SafetensorsHeader ParseSafetensorsHeader(std::string_view header, uint64_t data_bytes);

// A shape for messages: "[2048, 6144]".
std::string ShapeText(const std::vector<int64_t>& shape);

// True if `text` begins like a git-LFS pointer, which stands in a file's place until the file
// itself is fetched.
bool IsGitLfsPointer(std::string_view text);

class SafetensorsFile {
 public:
  // Opens the file and checks its header. Errors: kNotFound, kIo, and ParseSafetensorsHeader's,
  // with the file's name in front; kBadFile for git-LFS pointers, empty and truncated files.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }  // without its folder
  const SafetensorsHeader& header() const { return header_; }

  // Bytes [offset, offset + num_bytes) of a tensor of this file. Errors: kIo.
  void Read(const SafetensorsTensor& tensor, uint64_t offset, uint64_t num_bytes, void* out) const;

 private:
  void ReadHeader();

  std::string name_;
  File file_;
  uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace hillstar
