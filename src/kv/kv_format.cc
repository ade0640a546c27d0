#include "kv/kv_format.h"

#include <string>

#include "hillstar/error.h"

namespace hillstar {

const char* KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kQ15: return "q15";
    case KvFormat::kQ8: return "q8";
    case KvFormat::kFp8: return "fp8";
  }
  return "";
}

KvFormat ParseKvFormat(std::string_view name) {
  for (const KvFormat format : kAllKvFormats) {
    if (name == KvFormatName(format)) return format;
  }
  throw Error(ErrorCode::kUsage,
              "'" + std::string(name) + "' is none of q15, q8, fp8 (--kv-format)");
}

}  // namespace hillstar
