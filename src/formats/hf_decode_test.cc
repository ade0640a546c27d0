#include "formats/hf_decode.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace hillstar {
namespace {

// The definition of a binary format, by arithmetic instead of bit moves.
double ByDefinition(uint32_t code, int exponent_bits, int mantissa_bits, int bias, bool has_inf) {
  const int exponent_mask = (1 << exponent_bits) - 1;
  const int exponent = int(code >> mantissa_bits) & exponent_mask;
  const int mantissa = int(code) & ((1 << mantissa_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) & 1 ? -1.0 : 1.0;
  if (has_inf && exponent == exponent_mask) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  const double fraction = double(mantissa) / double(1 << mantissa_bits);
  return exponent == 0 ? sign * fraction * std::exp2(1 - bias)
                       : sign * (1 + fraction) * std::exp2(exponent - bias);
}

std::vector<uint8_t> AllCodes16() {
  std::vector<uint8_t> bytes;
  for (uint32_t code = 0; code < 65536; ++code) {
    bytes.push_back(uint8_t(code & 255));
    bytes.push_back(uint8_t(code >> 8));
  }
  return bytes;
}

void ExpectSame(float got, double want, uint32_t code) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << code;
  } else {
    ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(float(want))) << code;
  }
}

TEST(HfDecode, Bf16AllCodes) {
  std::vector<float> out(65536);
  DecodeBf16(AllCodes16().data(), out.size(), out.data());
  for (uint32_t code = 0; code < 65536; ++code) {
    ExpectSame(out[code], ByDefinition(code, 8, 7, 127, true), code);
  }
}

TEST(HfDecode, F16AllCodes) {
  std::vector<float> out(65536);
  DecodeF16(AllCodes16().data(), out.size(), out.data());
  for (uint32_t code = 0; code < 65536; ++code) {
    const double want = ByDefinition(code, 5, 10, 15, true);
    ExpectSame(out[code], std::isinf(want) ? std::nan("") : want, code);
  }
}

TEST(HfDecode, Fp8AllCodes) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i);
  for (const float scale : {1.0f, 0.00123f, 3e30f, 1e-44f}) {
    std::vector<float> out(256);
    DecodeFp8(codes.data(), codes.size(), scale, out.data());
    for (uint32_t code = 0; code < 256; ++code) {
      const bool is_nan = (code & 0x7f) == 0x7f;
      const float value = float(ByDefinition(code, 4, 3, 7, false));
      ExpectSame(out[code], is_nan ? std::nan("") : double(value * scale), code);
    }
  }
}

TEST(HfDecode, UnalignedInput) {
  std::vector<uint8_t> bytes = {0xff, 0x80, 0x3f, 0x00, 0xc0};  // 1.0 and -2.0 from byte 1
  float out[2];
  DecodeBf16(bytes.data() + 1, 2, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
}

TEST(HfDecode, FindNonFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float top = std::numeric_limits<float>::max();
  for (size_t n = 0; n < 70; ++n) {
    std::vector<float> values(n, top);
    EXPECT_EQ(FindNonFinite(values.data(), n), n);
    for (size_t i = 0; i < n; ++i) {
      for (const float bad : {inf, -inf, nan, -nan}) {
        values[i] = bad;
        EXPECT_EQ(FindNonFinite(values.data(), n), i);
      }
      values[i] = std::numeric_limits<float>::denorm_min();
    }
  }
}

}  // namespace
}  // namespace hillstar
