#include "formats/hf_decode.h"

#include <array>
#include <bit>
#include <cstring>

#include "numerics/e4m3.h"

namespace hillstar {
namespace {

constexpr uint32_t kExponentMask = 0x7f800000;  // all ones: infinite or NaN

uint16_t Load16(const uint8_t* in, size_t i) {
  uint16_t bits;
  std::memcpy(&bits, in + 2 * i, sizeof(bits));
  return bits;
}

std::array<float, 256> MakeFp8Table() {
  std::array<float, 256> table;
  for (size_t code = 0; code < 256; ++code) table[code] = E4m3ToFloat(uint8_t(code));
  return table;
}

const std::array<float, 256>& Fp8Table() {
  static const std::array<float, 256> table = MakeFp8Table();
  return table;
}

}  // namespace

void DecodeBf16(const uint8_t* in, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{Load16(in, i)} << 16);
}

void DecodeF16(const uint8_t* in, size_t n, float* out) {
  // Exponent and mantissa moved into f32's places read as the value times 2^-112, also for
  // subnormals; the multiplication is exact.
  constexpr float kRebias = 0x1p112f;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t half = Load16(in, i);
    const float magnitude = std::bit_cast<float>((half & 0x7fff) << 13) * kRebias;
    const uint32_t special = (half & 0x7c00) == 0x7c00 ? 0x7fffffff : 0;
    out[i] =
        std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | special | (half & 0x8000) << 16);
  }
}

void DecodeFp8(const uint8_t* in, size_t n, float scale, float* out) {
  const float* table = Fp8Table().data();
  for (size_t i = 0; i < n; ++i) out[i] = table[in[i]] * scale;
}

size_t FindNonFinite(const float* values, size_t n) {
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    found |= (std::bit_cast<uint32_t>(values[i]) & kExponentMask) == kExponentMask ? 1 : 0;
  }
  if (found == 0) return n;
  size_t i = 0;
  while ((std::bit_cast<uint32_t>(values[i]) & kExponentMask) != kExponentMask) ++i;
  return i;
}

}  // namespace hillstar
