#include "formats/colibri_layout.h"

#include <fmt/format.h>

#include <bit>

#include "formats/safetensors_test_files.h"

namespace hillstar {
namespace {

constexpr int64_t kGroups[] = {16, 32, 48, 64, 96, 128, 192, 256};

int64_t Ceil(int64_t a, int64_t b) { return a / b + (a % b ? 1 : 0); }

ColibriLayout Find(int64_t rows, int64_t cols, int64_t value_bytes, int64_t num_scales) {
  return FindColibriLayout("m.weight", rows, cols, uint64_t(value_bytes), uint64_t(num_scales) * 4);
}

// Value `i` of a row by the format's definition: bit by bit from the row's bytes.
int Integer(ColibriFormat format, const std::vector<uint8_t>& row, int64_t i) {
  const auto bit = [&](int64_t n) { return (row[size_t(n / 8)] >> (n % 8)) & 1; };
  switch (format) {
    case ColibriFormat::kInt8: return row[size_t(i)] < 128 ? row[size_t(i)] : row[size_t(i)] - 256;
    case ColibriFormat::kInt4Row:
    case ColibriFormat::kInt4Group:
      return bit(4 * i) + 2 * bit(4 * i + 1) + 4 * bit(4 * i + 2) + 8 * bit(4 * i + 3) - 8;
    case ColibriFormat::kInt2: return bit(2 * i) + 2 * bit(2 * i + 1) - 2;
    case ColibriFormat::kInt3Group: {
      const int64_t group_bits = (i / 64) * 24 * 8;
      const int64_t k = i % 64;
      return bit(group_bits + 2 * k) + 2 * bit(group_bits + 2 * k + 1) +
             4 * bit(group_bits + 16 * 8 + k) - 4;
    }
  }
  return 0;
}

// Rows of many byte values, so that every nibble, pair and plane bit occurs at every place.
void ExpectDecodes(const ColibriLayout& layout) {
  SCOPED_TRACE(fmt::format("{} cols {}", ColibriEncodingName(layout), layout.cols));
  std::vector<float> scales;
  for (int64_t g = 0; g < layout.scales_per_row; ++g) scales.push_back(0.37f + 0.11f * float(g));
  for (int start = 0; start < 256; ++start) {
    std::vector<uint8_t> row(size_t(layout.row_bytes));
    for (size_t b = 0; b < row.size(); ++b) row[b] = uint8_t(size_t(start) + 37 * b);
    std::vector<float> out(size_t(layout.cols) + 1, -123.0f);
    DecodeColibriRow(layout, row.data(), scales.data(), out.data());
    for (int64_t i = 0; i < layout.cols; ++i) {
      const float want = float(Integer(layout.format, row, i)) * scales[size_t(i / layout.group)];
      ASSERT_EQ(std::bit_cast<uint32_t>(out[size_t(i)]), std::bit_cast<uint32_t>(want)) << i;
    }
    ASSERT_EQ(out.back(), -123.0f);
  }
}

TEST(ColibriLayout, EveryFormatAndGroupIsFoundAndDecoded) {
  for (const int64_t cols : {7, 64, 130, 256, 300, 512, 1000}) {
    ExpectDecodes(Find(3, cols, 3 * cols, 3));
    ExpectDecodes(Find(3, cols, 3 * Ceil(cols, 2), 3));
    ExpectDecodes(Find(3, cols, 3 * Ceil(cols, 4), 3));
    ExpectDecodes(Find(3, cols, 3 * Ceil(cols, 64) * 24, 3 * Ceil(cols, 64)));
    for (const int64_t group : kGroups) {
      if (group >= cols) continue;
      ExpectDecodes(Find(3, cols, 3 * Ceil(cols, 2), 3 * Ceil(cols, group)));
    }
  }
  using Format = ColibriFormat;
  EXPECT_EQ(Find(4, 512, 4 * 512, 4).format, Format::kInt8);
  EXPECT_EQ(Find(4, 512, 4 * 256, 4).format, Format::kInt4Row);
  EXPECT_EQ(Find(4, 512, 4 * 128, 4).format, Format::kInt2);
  EXPECT_EQ(Find(4, 512, 4 * 8 * 24, 4 * 8).format, Format::kInt3Group);
  for (const int64_t group : kGroups) {
    const ColibriLayout layout = Find(4, 6144, 4 * 3072, 4 * Ceil(6144, group));
    EXPECT_EQ(layout.format, Format::kInt4Group);
    EXPECT_EQ(layout.group, group);
    EXPECT_EQ(ColibriEncodingName(layout), fmt::format("colibri-int4-g{}", group));
  }
}

TEST(ColibriLayout, AmbiguousSizesFollowColibrisOrder) {
  using Format = ColibriFormat;
  EXPECT_EQ(Find(5, 1, 5, 5).format, Format::kInt8);           // also int4 and int2 rows
  EXPECT_EQ(Find(5, 2, 5, 5).format, Format::kInt4Row);        // also int2 rows
  EXPECT_EQ(Find(5, 24, 5 * 24, 5).format, Format::kInt8);     // also int3: one group of 24 bytes
  EXPECT_EQ(Find(5, 48, 5 * 24, 5).format, Format::kInt4Row);  // likewise, and one group of 48
  EXPECT_EQ(Find(5, 100, 5 * 50, 10).group, 64);               // 2 groups of 64 or of 96
}

TEST(ColibriLayout, RefusesSizesThatFitNothing) {
  const auto expect_bad = [](int64_t value_bytes, int64_t scale_bytes) {
    ExpectError(ErrorCode::kBadFile,
                {"m.weight", std::to_string(value_bytes), std::to_string(scale_bytes)}, [&] {
                  FindColibriLayout("m.weight", 8, 512, uint64_t(value_bytes),
                                    uint64_t(scale_bytes));
                });
  };
  for (const int64_t row_bytes : {512, 256, 128, 8 * 24}) {
    const int64_t num_scales = row_bytes == 8 * 24 ? 8 * 8 : 8;
    ASSERT_NO_THROW(Find(8, 512, 8 * row_bytes, num_scales));
    expect_bad(8 * row_bytes - 1, num_scales * 4);
    expect_bad(8 * row_bytes + 1, num_scales * 4);
    expect_bad(8 * row_bytes, num_scales * 4 + 4);
    expect_bad(8 * row_bytes, num_scales * 4 - 4);
    expect_bad(8 * row_bytes, num_scales * 4 + 1);
    expect_bad(8 * row_bytes, 0);
  }
  expect_bad(0, 0);
  expect_bad(0, 32);
}

TEST(ColibriLayout, NewerFormatsAreRefusedByName) {
  ExpectError(ErrorCode::kUnsupported, {"m.weight", "format 6", "E8"},
              [] { FindColibriLayout("m.weight", 4, 512, 4 * 2 * 98, 4); });
  ExpectError(ErrorCode::kUnsupported, {"'x'", "6 (E8"}, [] { ParseColibriFormats(R"({"x":6})"); });
  ExpectError(ErrorCode::kUnsupported, {"'x'", "MXFP4"}, [] { ParseColibriFormats(R"({"x":7})"); });
  ExpectError(ErrorCode::kUnsupported, {"'x'", "FP8"}, [] { ParseColibriFormats(R"({"x":8})"); });
  ExpectError(ErrorCode::kUnsupported, {"'x'"},
              [] { ParseColibriFormats(R"({"x":18446744073709551615})"); });
  EXPECT_EQ(ParseColibriFormats(R"({"x":4,"y":1})").at("x"), 4);
  for (const char* text : {"", "[]", "{\"x\":\"4\"}", "{\"x\":4.0}", "{\"x\":-1}", "{"}) {
    ExpectError(ErrorCode::kBadFile, {"colibri.fmt"}, [&] { ParseColibriFormats(text); });
  }
}

}  // namespace
}  // namespace hillstar
