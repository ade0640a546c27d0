// hillstar.json: what a container's files hold, as docs/container.md describes it. The text is not
// trusted: after parsing, every count, size, offset and name is in range and consistent. Plain
// values; no file is touched here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/container.h"

namespace hillstar {

inline constexpr std::string_view kManifestName = "hillstar.json";
inline constexpr std::string_view kDenseFileName = "dense.bin";
// GLM-5.2's manifest has about 500 KB.
inline constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;
// GLM-5.2's tokenizer.json has 20 MB.
inline constexpr uint64_t kMaxSideFileBytes = uint64_t{256} << 20;
// The side files that a container may bring, in the order they are written.
inline constexpr std::string_view kSideFileNames[] = {"config.json", "generation_config.json",
                                                      "tokenizer.json", "tokenizer_config.json",
                                                      "chat_template.jinja"};

struct ContainerSideFile {
  std::string name;
  uint64_t num_bytes = 0;
  std::string sha256;  // hexadecimal
};

struct ContainerManifest {
  std::string creator;
  std::vector<std::pair<std::string, std::string>> origin;
  std::string dense_file;
  uint64_t dense_bytes = 0;  // size of dense_file
  std::vector<ContainerTensor> tensors;
  std::vector<ContainerExperts> experts;
  std::vector<ContainerSideFile> side_files;
  std::string identity;
};

// kSkip is for fuzzers, which cannot find a digest.
enum class IdentityCheck { kRequire, kSkip };
// `name` stands for the file in messages. Errors: kBadFile, kUnsupported (a newer version).
ContainerManifest ParseManifest(std::string_view json, std::string_view name,
                                IdentityCheck check = IdentityCheck::kRequire);
// The text that ParseManifest reads; one line a tensor and one a layer's experts.
std::string FormatManifest(const ContainerManifest& manifest);

// The text under the identity: tensors, experts and config.json, with or without the checksums.
std::string DescribeContent(const ContainerManifest& manifest, bool with_checksums);
// Sha256 of the description with checksums.
std::string ContainerIdentity(const ContainerManifest& manifest);

// "experts-003.bin".
std::string ExpertFileName(int64_t layer);
inline bool IsPageAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPageBytes == 0;
}
// Sets offsets, sizes and file names from formats and shapes: tensors one after another, each from
// a new page on.
void LayOut(ContainerManifest* manifest);

}  // namespace hillstar
