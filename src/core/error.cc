#include "hillstar/error.h"

namespace hillstar {

int ExitCode(ErrorCode code) { return code == ErrorCode::kUsage ? 2 : 1; }

const char* ErrorName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage: return "usage";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kBadFile: return "bad_file";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kBadRequest: return "bad_request";
    case ErrorCode::kBudget: return "budget";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kNonFinite: return "non_finite";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kDevice: return "device";
    case ErrorCode::kBusy: return "busy";
  }
  return "unknown";
}

}  // namespace hillstar
