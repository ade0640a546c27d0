// Stored numbers of Hugging Face checkpoints as f32. Pure functions over any alignment; each
// element is one exact conversion (FP8: one multiplication by its block's scale).
#pragma once

#include <cstddef>
#include <cstdint>

namespace hillstar {

inline constexpr int64_t kFp8Block = 128;  // rows and columns that share a scale

// in: [n] little-endian values; out: f32 [n].
void DecodeBf16(const uint8_t* in, size_t n, float* out);
// An infinite or NaN input becomes a NaN.
void DecodeF16(const uint8_t* in, size_t n, float* out);
// out[i] = e4m3(in[i]) * scale; the two NaN codes give NaN.
void DecodeFp8(const uint8_t* in, size_t n, float scale, float* out);

// Index of the first value that is infinite or NaN; n if there is none.
size_t FindNonFinite(const float* values, size_t n);

}  // namespace hillstar
