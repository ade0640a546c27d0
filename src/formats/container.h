// The Hillstar container: a folder with `hillstar.json` (manifest), config and tokenizer files,
// `dense.bin` (all tensors but routed experts) and `experts-LLL.bin` a MoE layer (the layer's
// expert images, one after another, each in whole 4 KiB pages). docs/container.md describes it
// well enough to write another reader. Const methods may be called from any thread at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "numerics/weights.h"

namespace hillstar {

inline constexpr int kContainerVersion = 1;

// One tensor of dense.bin; offsets are multiples of kPageBytes.
struct ContainerTensor {
  std::string name;  // as in model/tensor_table.h
  WeightFormat format = WeightFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  uint64_t checksum = 0;  // XXH3-64 of the bytes
};

// The expert images of one layer.
struct ContainerExperts {
  int64_t layer = 0;
  int64_t num_experts = 0;
  ExpertShape shape{};
  uint64_t image_bytes = 0;
  std::string file;                 // e.g. "experts-003.bin"
  std::vector<uint64_t> checksums;  // one an image
};

class Container {
 public:
  // True if the folder holds a `hillstar.json`.
  static bool IsContainer(const std::filesystem::path& folder);
  // Reads and checks the manifest: version, ranges, overlaps, file sizes, names.
  // Errors: kNotFound, kBadFile, kUnsupported (a newer version).
  static std::unique_ptr<Container> Open(const std::filesystem::path& folder);
  virtual ~Container() = default;

  // Text of config.json, generation_config.json, tokenizer.json, tokenizer_config.json,
  // chat_template.jinja, checked against its sha256; empty where the container has none.
  // Errors: kIo, kBadFile.
  virtual std::string SideFile(std::string_view file_name) const = 0;
  virtual const std::vector<ContainerTensor>& tensors() const = 0;
  virtual const std::vector<ContainerExperts>& experts() const = 0;
  virtual const ContainerTensor* Find(std::string_view name) const = 0;
  // sha256 in hexadecimal over the tensor list with its checksums and config.json: two containers
  // with the same identity compute the same logits.
  virtual const std::string& identity() const = 0;
  // How it was made, e.g. {"operation", "convert"}, {"experts", "w4"}; for reports.
  virtual const std::vector<std::pair<std::string, std::string>>& origin() const = 0;

  // Reads the tensor's bytes into `out` (num_bytes long) and checks them; past the page cache where
  // they are not in it, the tensor is large and `out` is page-aligned. Errors: kIo, kBadFile.
  virtual void ReadTensor(const ContainerTensor& tensor, uint8_t* out) const = 0;
  // Reads images [first, first + count) of a layer into `out`, past the page cache where the file
  // system allows it and `out` is page-aligned, and checks each.
  virtual void ReadExperts(const ContainerExperts& layer, int64_t first, int64_t count,
                           uint8_t* out) const = 0;
};

}  // namespace hillstar
