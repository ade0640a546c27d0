#include "formats/colibri_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/integers.h"
#include "formats/json_scan.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr int64_t kInt4Groups[] = {16, 32, 48, 64, 96, 128, 192, 256};
constexpr int64_t kInt3Group = 64;
constexpr int64_t kInt3GroupBytes = 24;
constexpr int64_t kE8Columns = 256;
constexpr int64_t kE8Bytes = 98;
// A header of 512 MiB may carry this much; 60,000 names need 5 MiB.
constexpr size_t kMaxFormatsJsonBytes = size_t{64} << 20;

bool Fits(const ColibriLayout& layout, int64_t rows, uint64_t value_bytes, uint64_t scale_bytes) {
  return value_bytes == uint64_t(rows * layout.row_bytes) &&
         scale_bytes == uint64_t(rows * layout.scales_per_row) * sizeof(float);
}

std::string NewerFormatName(uint64_t format) {
  switch (format) {
    case 6: return "6 (E8/IQ3)";
    case 7: return "7 (MXFP4)";
    case 8: return "8 (FP8 e4m3)";
    default: return std::to_string(format);
  }
}

// in: `count` values of `kBits` bits, low bits first, offset by kOffset.
template <int kBits, int kOffset>
void DecodePacked(const uint8_t* in, int64_t count, float scale, float* out) {
  constexpr int kPerByte = 8 / kBits;
  constexpr int kMask = (1 << kBits) - 1;
  const int64_t num_whole = count / kPerByte;
  for (int64_t b = 0; b < num_whole; ++b) {
    for (int j = 0; j < kPerByte; ++j) {
      out[b * kPerByte + j] = float(((in[b] >> (kBits * j)) & kMask) - kOffset) * scale;
    }
  }
  for (int64_t i = num_whole * kPerByte; i < count; ++i) {
    const int shift = kBits * int(i % kPerByte);
    out[i] = float(((in[i / kPerByte] >> shift) & kMask) - kOffset) * scale;
  }
}

void DecodeInt3(const uint8_t* in, int64_t cols, const float* scales, float* out) {
  for (int64_t i = 0; i < cols; ++i) {
    const int64_t group = i / kInt3Group;
    const int64_t k = i % kInt3Group;
    const uint8_t* low = in + group * kInt3GroupBytes;
    const uint8_t* high = low + kInt3Group / 4;
    const int value = ((low[k / 4] >> (2 * (k % 4))) & 3) | ((high[k / 8] >> (k % 8)) & 1) << 2;
    out[i] = float(value - 4) * scales[group];
  }
}

}  // namespace

std::string ColibriEncodingName(const ColibriLayout& layout) {
  switch (layout.format) {
    case ColibriFormat::kInt8: return "colibri-int8";
    case ColibriFormat::kInt4Row: return "colibri-int4";
    case ColibriFormat::kInt2: return "colibri-int2";
    case ColibriFormat::kInt4Group: return fmt::format("colibri-int4-g{}", layout.group);
    case ColibriFormat::kInt3Group: return "colibri-int3-g64";
  }
  CHECK(false);
}

ColibriLayout FindColibriLayout(std::string_view name, int64_t rows, int64_t cols,
                                uint64_t value_bytes, uint64_t scale_bytes) {
  // Dimensions of a checked configuration: their products stay far from int64's limit.
  CHECK(rows > 0 && cols > 0 && rows <= (int64_t{1} << 30) && cols <= (int64_t{1} << 30));
  using Format = ColibriFormat;
  const uint64_t e8_bytes = uint64_t(rows * CeilDiv(cols, kE8Columns)) * kE8Bytes;
  if (scale_bytes == sizeof(float) && value_bytes == e8_bytes) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("Tensor {} is in colibri's format 6 (E8/IQ3), which is not read. "
                            "Formats 1 to 5 are.",
                            Quoted(name)));
  }
  const ColibriLayout int8{Format::kInt8, cols, cols, cols, 1};
  if (Fits(int8, rows, value_bytes, scale_bytes)) return int8;
  const ColibriLayout int4{Format::kInt4Row, cols, cols, CeilDiv(cols, 2), 1};
  if (Fits(int4, rows, value_bytes, scale_bytes)) return int4;
  for (const int64_t group : kInt4Groups) {
    if (group > cols) break;
    const ColibriLayout grouped{Format::kInt4Group, cols, group, CeilDiv(cols, 2),
                                CeilDiv(cols, group)};
    if (Fits(grouped, rows, value_bytes, scale_bytes)) return grouped;
  }
  const ColibriLayout int2{Format::kInt2, cols, cols, CeilDiv(cols, 4), 1};
  if (Fits(int2, rows, value_bytes, scale_bytes)) return int2;
  const int64_t int3_groups = CeilDiv(cols, kInt3Group);
  const ColibriLayout int3{Format::kInt3Group, cols, kInt3Group, int3_groups * kInt3GroupBytes,
                           int3_groups};
  if (Fits(int3, rows, value_bytes, scale_bytes)) return int3;
  throw Error(ErrorCode::kBadFile,
              fmt::format("Tensor {} should be [{}, {}], but its {} bytes and {} bytes of scales "
                          "fit none of colibri's formats 1 to 5.",
                          Quoted(name), rows, cols, value_bytes, scale_bytes));
}

std::unordered_map<std::string, int> ParseColibriFormats(std::string_view json) {
  constexpr std::string_view kWhat = "The metadata entry colibri.fmt";
  std::unordered_map<std::string, int> formats;
  const auto add = [&](const std::string& name, JsonScalar value) {
    const uint64_t* const format = std::get_if<uint64_t>(&value);
    if (!format) {
      throw Error(ErrorCode::kBadFile,
                  fmt::format("{} gives tensor {} no format number.", kWhat, Quoted(name)));
    }
    if (*format > uint64_t(ColibriFormat::kInt3Group)) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("Tensor {} is in colibri's format {}, which is not read. Formats 1 "
                              "to 5 are.",
                              Quoted(name), NewerFormatName(*format)));
    }
    if (!formats.emplace(name, int(*format)).second) {
      throw Error(ErrorCode::kBadFile, fmt::format("{} has tensor {} twice.", kWhat, Quoted(name)));
    }
  };
  if (!ScanJsonObject(json, kWhat, kMaxFormatsJsonBytes, "", add)) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} is not an object.", kWhat));
  }
  return formats;
}

void DecodeColibriRow(const ColibriLayout& layout, const uint8_t* in, const float* scales,
                      float* out) {
  switch (layout.format) {
    case ColibriFormat::kInt8:
      for (int64_t i = 0; i < layout.cols; ++i) out[i] = float(int8_t(in[i])) * scales[0];
      return;
    case ColibriFormat::kInt4Row: DecodePacked<4, 8>(in, layout.cols, scales[0], out); return;
    case ColibriFormat::kInt2: DecodePacked<2, 2>(in, layout.cols, scales[0], out); return;
    case ColibriFormat::kInt4Group:
      // Groups are even, so each begins with a whole byte.
      for (int64_t g = 0; g < layout.scales_per_row; ++g) {
        const int64_t first = g * layout.group;
        const int64_t count = std::min(layout.group, layout.cols - first);
        DecodePacked<4, 8>(in + first / 2, count, scales[g], out + first);
      }
      return;
    case ColibriFormat::kInt3Group: DecodeInt3(in, layout.cols, scales, out); return;
  }
}

}  // namespace hillstar
