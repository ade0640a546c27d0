// Integer arithmetic that every layout needs.
#pragma once

#include <cstdint>

namespace hillstar {

// REQUIRES a >= 0, b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDiv(value, multiple) * multiple;
}

}  // namespace hillstar
