#include "formats/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>

#include "core/check.h"
#include "formats/container_checksum.h"
#include "formats/container_manifest.h"
#include "formats/file_io.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

// One request to the drive: large enough for full speed on NVMe, small enough that the bytes are
// still in the cache when they are hashed.
constexpr uint64_t kRequestBytes = uint64_t{8} << 20;
// Below this a read through the page cache costs less than waiting for the drive once more.
constexpr uint64_t kMinDirectBytes = uint64_t{1} << 20;

// One of the container's files of weights, through the page cache and, where possible, past it.
class WeightFile {
 public:
  WeightFile(const std::filesystem::path& path, uint64_t num_bytes)
      : cached_(File::OpenForReading(path)), direct_(File::TryOpenDirect(path)) {
    const uint64_t size = cached_.size();
    if (size != num_bytes) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{} has {} bytes, but the container's manifest says {}; copy or "
                              "convert it again",
                              cached_.name(), size, num_bytes));
    }
  }

  const std::string& name() const { return cached_.name(); }

  // REQUIRES offset and num_bytes in whole pages for a read past the page cache.
  void Read(uint64_t offset, uint64_t num_bytes, uint8_t* out, bool past_cache) const {
    if (past_cache && direct_ && direct_works_.load(std::memory_order_relaxed)) {
      if (direct_->TryReadAt(offset, out, num_bytes)) return;
      direct_works_.store(false, std::memory_order_relaxed);
    }
    cached_.ReadAt(offset, out, num_bytes);
  }

  // The same for a range that begins but need not end with a page: what the page cache holds comes
  // from there, many times faster than from the drive.
  void ReadUnlessCached(uint64_t offset, uint64_t num_bytes, uint8_t* out) const {
    uint64_t direct_bytes = 0;
    if (num_bytes >= kMinDirectBytes && IsPageAligned(out) && !cached_.IsCached(offset)) {
      direct_bytes = num_bytes / kPageBytes * kPageBytes;
      Read(offset, direct_bytes, out, true);
    }
    cached_.ReadAt(offset + direct_bytes, out + direct_bytes, num_bytes - direct_bytes);
  }

 private:
  File cached_;
  std::optional<File> direct_;
  mutable std::atomic<bool> direct_works_{true};
};

[[noreturn]] void RefuseChecksum(const std::string& what, const std::string& file, uint64_t got,
                                 uint64_t expected) {
  throw Error(
      ErrorCode::kBadFile,
      fmt::format("{} in {} is damaged: its checksum is {}, not {}; copy or convert it again", what,
                  file, ChecksumHex(got), ChecksumHex(expected)));
}

class FolderContainer : public Container {
 public:
  explicit FolderContainer(const std::filesystem::path& folder) : folder_(folder) {
    const std::filesystem::path path = folder / kManifestName;
    manifest_ = ParseManifest(ReadWholeFile(path, kMaxManifestBytes), path.native());
    for (const ContainerTensor& tensor : manifest_.tensors) by_name_[tensor.name] = &tensor;
    dense_ = std::make_unique<WeightFile>(folder / manifest_.dense_file, manifest_.dense_bytes);
    for (const ContainerExperts& layer : manifest_.experts) {
      expert_files_[layer.layer] = std::make_unique<WeightFile>(
          folder / layer.file, uint64_t(layer.num_experts) * layer.image_bytes);
    }
    for (const ContainerSideFile& file : manifest_.side_files) CheckSize(file);
  }

  std::string SideFile(std::string_view file_name) const override {
    for (const ContainerSideFile& file : manifest_.side_files) {
      if (file.name != file_name) continue;
      std::string text = ReadWholeFile(folder_ / file.name, kMaxSideFileBytes);
      if (Sha256Hex(text) != file.sha256) {
        throw Error(ErrorCode::kBadFile,
                    fmt::format("{} is not the file that the container was made with: its sha256 "
                                "differs from the manifest's",
                                (folder_ / file.name).native()));
      }
      return text;
    }
    return {};
  }

  const std::vector<ContainerTensor>& tensors() const override { return manifest_.tensors; }
  const std::vector<ContainerExperts>& experts() const override { return manifest_.experts; }
  const std::string& identity() const override { return manifest_.identity; }
  const std::vector<std::pair<std::string, std::string>>& origin() const override {
    return manifest_.origin;
  }
  const ContainerTensor* Find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }

  void ReadTensor(const ContainerTensor& tensor, uint8_t* out) const override {
    ChecksumStream checksum;
    for (uint64_t done = 0; done < tensor.num_bytes;) {
      const uint64_t piece = std::min(kRequestBytes, tensor.num_bytes - done);
      dense_->ReadUnlessCached(tensor.offset + done, piece, out + done);
      checksum.Add(out + done, piece);
      done += piece;
    }
    if (checksum.value() != tensor.checksum) {
      RefuseChecksum(tensor.name, dense_->name(), checksum.value(), tensor.checksum);
    }
  }

  void ReadExperts(const ContainerExperts& layer, int64_t first, int64_t count,
                   uint8_t* out) const override {
    CHECK(first >= 0 && count >= 0 && first <= layer.num_experts - count);
    const WeightFile& file = *expert_files_.at(layer.layer);
    const uint64_t image = layer.image_bytes, begin = uint64_t(first) * image;
    const uint64_t total = uint64_t(count) * image;
    const bool past_cache = IsPageAligned(out) && total >= kMinDirectBytes;
    uint64_t done = 0, hashed = 0;
    ChecksumStream checksum;
    while (done < total) {
      const uint64_t piece = std::min(kRequestBytes, total - done);
      file.Read(begin + done, piece, out + done, past_cache);
      done += piece;
      while (hashed < done) {
        const uint64_t image_end = (hashed / image + 1) * image;
        const uint64_t end = std::min(done, image_end);
        checksum.Add(out + hashed, end - hashed);
        hashed = end;
        if (end != image_end) break;
        CheckImage(layer, first + int64_t(end / image) - 1, file, checksum.value());
        checksum.Reset();
      }
    }
  }

 private:
  static void CheckImage(const ContainerExperts& layer, int64_t expert, const WeightFile& file,
                         uint64_t checksum) {
    const uint64_t expected = layer.checksums[size_t(expert)];
    if (checksum == expected) return;
    RefuseChecksum(fmt::format("expert {} of layer {}", expert, layer.layer), file.name(), checksum,
                   expected);
  }

  void CheckSize(const ContainerSideFile& side_file) const {
    const File file = File::OpenForReading(folder_ / side_file.name);
    const uint64_t size = file.size();
    if (size == side_file.num_bytes) return;
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} has {} bytes, but the container was made with {}", file.name(),
                            size, side_file.num_bytes));
  }

  std::filesystem::path folder_;
  ContainerManifest manifest_;
  std::map<std::string_view, const ContainerTensor*> by_name_;
  std::unique_ptr<WeightFile> dense_;
  std::map<int64_t, std::unique_ptr<WeightFile>> expert_files_;
};

}  // namespace

bool Container::IsContainer(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / kManifestName, ignored);
}

std::unique_ptr<Container> Container::Open(const std::filesystem::path& folder) {
  return std::make_unique<FolderContainer>(folder);
}

}  // namespace hillstar
