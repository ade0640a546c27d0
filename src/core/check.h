// CHECK: an invariant of our own code. A failure prints file, line and condition and aborts.
#pragma once

namespace hillstar {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace hillstar

#define CHECK(condition) \
  ((condition) ? void(0) : ::hillstar::CheckFailed(__FILE__, __LINE__, #condition))
