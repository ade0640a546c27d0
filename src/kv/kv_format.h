// What latent KV rows hold their values as. docs/numerics.md, "KV rows", gives the values,
// kv/layout.h the bytes.
#pragma once

#include <string_view>

namespace hillstar {

// The sizes are for 512 latent and 64 rope values.
enum class KvFormat {
  kQ15,  // two planes: 1,168 bytes
  kQ8,   // one plane for the latent part, two for the rope part: 656 bytes
  kFp8,  // e4m3 codes: 592 bytes
};
inline constexpr KvFormat kAllKvFormats[] = {KvFormat::kQ15, KvFormat::kQ8, KvFormat::kFp8};

// "q15", "q8", "fp8".
const char* KvFormatName(KvFormat format);
// Errors: kUsage for another name.
KvFormat ParseKvFormat(std::string_view name);

}  // namespace hillstar
