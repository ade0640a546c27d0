// Floats to two integer planes.
//
// QuantiseGroups: one scale per 64 values. x: f32 [n] -> hi, lo: int8 [padded n], scale (already
//   / 256): f32 [groups], sum of 256 * hi + lo: int32 [groups]; padding becomes zero.
// QuantiseRow: one scale for all. x: f32 [n] -> hi, lo: int8 [padded], *scale = amax / 127. Without
//   lo the row has the high plane only.
// EncodeE4m3: e4m3 codes with one scale. x: f32 [n] -> codes [padded], *scale = amax / 112, that
//   of the codes' integers (numerics/e4m3.h).
// All return false (planes, codes and scale zero) if a value is not finite. Synchronous, no
// allocation. Numerics: docs/numerics.md, "Two planes" and "KV rows".
#pragma once

#include <cstdint>

#include "numerics/planes.h"

namespace hillstar {

struct QuantiseGroupsSlice {
  const float* x = nullptr;
  ActivationPlanes planes;  // of this row; planes.cols = n
};

struct QuantiseRowSlice {
  const float* x = nullptr;
  int64_t n = 0;
  int64_t padded = 0;  // a multiple of 16, >= n
  int8_t* hi = nullptr;
  int8_t* lo = nullptr;
  float* scale = nullptr;
};

struct EncodeE4m3Slice {
  const float* x = nullptr;
  int64_t n = 0;
  int64_t padded = 0;  // a multiple of 64, >= n
  uint8_t* codes = nullptr;
  float* scale = nullptr;
};

}  // namespace hillstar
