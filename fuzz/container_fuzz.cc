// Any bytes as a container's manifest: either an Error, or a manifest that is written and read back
// as the same text, and whose tensors lie in order inside their file.
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "formats/container_manifest.h"
#include "hillstar/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hillstar;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    ContainerManifest manifest = ParseManifest(text, "manifest", IdentityCheck::kSkip);
    uint64_t end = 0;
    for (const ContainerTensor& tensor : manifest.tensors) {
      CHECK(tensor.offset + tensor.num_bytes <= manifest.dense_bytes);
      CHECK(tensor.num_bytes == MatrixBytes(tensor.format, tensor.rows, tensor.cols));
      end += RoundUpToPage(tensor.num_bytes);
    }
    CHECK(end == manifest.dense_bytes);
    for (const ContainerExperts& experts : manifest.experts) {
      CHECK(experts.checksums.size() == size_t(experts.num_experts));
      CHECK(experts.image_bytes == ExpertImageBytes(experts.shape));
    }
    manifest.identity = ContainerIdentity(manifest);
    const std::string written = FormatManifest(manifest);
    CHECK(FormatManifest(ParseManifest(written, "manifest")) == written);
  } catch (const Error&) {
  }
  return 0;
}
