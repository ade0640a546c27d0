// The predecessor's quantised matrices: bytes plus f32 scales, the layout found from the sizes
// that they have and the shape that the configuration gives. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace hillstar {

// The numbers are colibri's own.
enum class ColibriFormat {
  kInt8 = 1,       // a byte a value; one scale a row
  kInt4Row = 2,    // nibbles, low first, minus 8; one scale a row
  kInt2 = 3,       // four a byte, low bits first, minus 2; one scale a row
  kInt4Group = 4,  // nibbles; one scale a row and group of columns
  kInt3Group = 5,  // 64 columns: 16 bytes of low bit pairs, 8 of high bits, minus 4; one scale
};

struct ColibriLayout {
  ColibriFormat format = ColibriFormat::kInt8;
  int64_t cols = 0;
  int64_t group = 0;      // columns that share a scale; `cols` for one scale a row
  int64_t row_bytes = 0;  // of values
  int64_t scales_per_row = 0;
};

// "colibri-int8", "colibri-int4", "colibri-int4-g64", "colibri-int2", "colibri-int3-g64".
std::string ColibriEncodingName(const ColibriLayout& layout);

// The layout of matrix `name` [rows, cols] held in `value_bytes` and `scale_bytes`. Where sizes
// fit several layouts, colibri's order decides: int8, int4 rows, int4 groups, int2, int3.
// Errors: kUnsupported for format 6 (E8/IQ3); kBadFile, naming both sizes, if nothing fits.
ColibriLayout FindColibriLayout(std::string_view name, int64_t rows, int64_t cols,
                                uint64_t value_bytes, uint64_t scale_bytes);

// Tensor name -> format from the text of the metadata entry "colibri.fmt".
// Errors: kBadFile; kUnsupported, naming tensor and format, for formats 6 and newer.
std::unordered_map<std::string, int> ParseColibriFormats(std::string_view json);

// One row: in: layout.row_bytes bytes; scales: f32 [scales_per_row]; out: f32 [cols].
void DecodeColibriRow(const ColibriLayout& layout, const uint8_t* in, const float* scales,
                      float* out);

}  // namespace hillstar
