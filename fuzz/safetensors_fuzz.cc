// Any bytes as a safetensors header: either an Error, or a header whose tensors own every byte of
// the data exactly once. The first 8 bytes give the size of the data.
#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/check.h"
#include "formats/safetensors.h"
#include "hillstar/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint64_t data_bytes = 0;
  if (size < sizeof(data_bytes)) return 0;
  std::memcpy(&data_bytes, data, sizeof(data_bytes));
  const std::string_view header(reinterpret_cast<const char*>(data) + sizeof(data_bytes),
                                size - sizeof(data_bytes));
  try {
    const hillstar::SafetensorsHeader parsed = hillstar::ParseSafetensorsHeader(header, data_bytes);
    uint64_t position = 0;
    for (const hillstar::SafetensorsTensor& tensor : parsed.tensors) {
      CHECK(tensor.begin == position && tensor.end >= tensor.begin);
      CHECK(tensor.shape.size() <= hillstar::kMaxTensorRank);
      // In a wider type, so that no product of valid sizes can wrap.
      unsigned __int128 num_bits = unsigned(hillstar::DtypeBits(tensor.dtype));
      for (const int64_t dim : tensor.shape) num_bits *= static_cast<unsigned __int128>(dim);
      CHECK(num_bits == static_cast<unsigned __int128>(tensor.num_bytes()) * 8);
      position = tensor.end;
    }
    CHECK(position == data_bytes);
  } catch (const hillstar::Error&) {
  }
  return 0;
}
