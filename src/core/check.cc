#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace hillstar {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: internal error: CHECK(%s) failed\n", file, line, condition);
  std::abort();
}

}  // namespace hillstar
