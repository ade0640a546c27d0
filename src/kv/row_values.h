// A stored row's values, whatever the format: what every kernel must make of the bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "kv/layout.h"
#include "numerics/e4m3.h"

namespace hillstar {

inline PlanePair RowValue(const KvRowPart& part, const uint8_t* row, int64_t i) {
  const uint8_t byte = row[part.at + i];
  switch (part.format) {
    case PartFormat::kTwoPlanes: return {int8_t(byte), int8_t(row[part.low_at() + i])};
    case PartFormat::kOnePlane: return {int8_t(byte), 0};
    case PartFormat::kE4m3: return E4m3Planes(byte);
  }
  return {0, 0};
}

// A value is (scale / 256) * (256 hi + lo).
inline float RowScale(const KvRowPart& part, const uint8_t* row) {
  float scale;
  std::memcpy(&scale, row + part.scale_at, sizeof scale);
  return scale;
}

}  // namespace hillstar
