#include "numerics/weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace hillstar {
namespace {

constexpr int kQuads = kGroup / 4;
constexpr size_t kVectorBytes = 64;  // 16 rows x 4 inputs of one byte

// Below this a group counts as zero, so that no scale is subnormal.
constexpr float kSmallestAmax = 0x1p-100f;

float AbsoluteMaximum(const float* values) {
  float amax = 0;
  for (int i = 0; i < kGroup; ++i) amax = std::max(amax, std::fabs(values[i]));
  return amax;
}

int8_t Clamp(float value, float low, float high) {
  return int8_t(std::clamp(std::rint(value), low, high));
}

// The smallest power of two that is not below x > 0. With it, a BF16 value of the largest seven
// binades of its group is a whole number of steps of scale / 256: W15 holds it without loss.
float PowerOfTwoUp(float x) {
  int exponent;
  const float fraction = std::frexp(x, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// The low plane of t, whose high plane is hi = rint(t): a rest of + 1/2 goes to the next hi.
void SplitRest(float t, int8_t* hi, int8_t* lo) {
  const float rest = std::rint((t - *hi) * 256.f);  // -128..128
  const bool half = rest == 128.f;
  *hi = int8_t(*hi + half);
  *lo = half ? int8_t(-128) : int8_t(rest);
}

// The smallest f16 at which `steps` steps reach amax: nothing is cut off, however coarse f16's
// subnormals are.
float HalfScaleUp(float amax, float steps) {
  uint16_t half = FloatToHalf(amax / steps);
  if (HalfToFloat(half) * steps < amax) ++half;
  return HalfToFloat(half);
}

float HalfScale(float amax, float steps) { return HalfToFloat(FloatToHalf(amax / steps)); }

// Rounds to the nearest integer, ties to even, for |x| < 2^22: beyond 2^23 floats are integers.
// Unlike std::rint it needs no instruction that plain x86-64 lacks.
float RoundSmall(float x) {
  constexpr float kIntegersOnly = 12582912.0f;  // 1.5 * 2^23
  return (x + kIntegersOnly) - kIntegersOnly;
}

// Candidate scales of a W4 group, a lane each, so that their errors are summed side by side.
constexpr int kNumSteps = 6;
constexpr int kLanes = 8;  // a whole vector; the lanes beyond kNumSteps repeat the last
constexpr float kSteps[kNumSteps] = {7.0f, 7.25f, 7.5f, 7.75f, 8.0f, 8.5f};

// Sums of squared errors of quantising to [-8, 7] with scales[lane] and with -scales[lane].
struct ErrorsW4 {
  double plus[kLanes] = {};
  double minus[kLanes] = {};
};

ErrorsW4 SumErrorsW4(const float* values, const float* scales) {
  ErrorsW4 errors;
  double steps[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) steps[lane] = double(scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    float q[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) q[lane] = RoundSmall(values[i] / scales[lane]);
    // With the negative scale the value's sign changes, and with it the side that has 8.
    for (int lane = 0; lane < kLanes; ++lane) {
      const float plus = std::min(std::max(q[lane], -8.f), 7.f);
      const double d = double(values[i]) - double(plus) * steps[lane];
      errors.plus[lane] += d * d;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const float minus = std::min(std::max(q[lane], -7.f), 8.f);
      const double d = double(values[i]) - double(minus) * steps[lane];
      errors.minus[lane] += d * d;
    }
  }
  return errors;
}

// The best of a few scales: the largest value may be cut off a little where that helps the others.
// The negative scales let a group whose largest value is positive use the step -8.
float BestScaleW4(const float* values, float amax) {
  float scales[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    scales[lane] = HalfScale(amax, kSteps[std::min(lane, kNumSteps - 1)]);
  }
  if (scales[0] == 0) return 0;
  const ErrorsW4 errors = SumErrorsW4(values, scales);
  float best = scales[0];
  double best_error = errors.plus[0];
  for (int lane = 0; lane < kNumSteps; ++lane) {
    if (scales[lane] == 0) break;  // too small for f16, as all that follow
    if (errors.plus[lane] < best_error) {
      best_error = errors.plus[lane];
      best = scales[lane];
    }
    if (errors.minus[lane] < best_error) {
      best_error = errors.minus[lane];
      best = -scales[lane];
    }
  }
  return best;
}

void WriteHalf(uint8_t* at, float value) {
  const uint16_t bits = FloatToHalf(value);
  std::memcpy(at, &bits, sizeof bits);
}

float ReadHalf(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return HalfToFloat(bits);
}

// Byte of (row, input) in a plane of 16 vectors: vector i holds inputs 4i..4i+3 of every row.
size_t PlaneByte(int row, int input) {
  return size_t(input / 4) * kVectorBytes + size_t(row) * 4 + size_t(input % 4);
}

void WriteTile(WeightFormat format, const QuantisedGroup& g, int row, uint8_t* tile) {
  if (format == WeightFormat::kW4) {
    for (int i = 0; i < kGroup / 2; ++i) {
      const int low = g.hi[i] + 8, high = g.hi[i + kGroup / 2] + 8;
      tile[PlaneByte(row, i)] = uint8_t(low | (high << 4));
    }
    WriteHalf(tile + kQuads / 2 * kVectorBytes + size_t(row) * 2, g.scale);
    return;
  }
  for (int i = 0; i < kGroup; ++i) tile[PlaneByte(row, i)] = uint8_t(g.hi[i] + 128);
  if (format == WeightFormat::kW8) {
    WriteHalf(tile + kQuads * kVectorBytes + size_t(row) * 2, g.scale);
    return;
  }
  uint8_t* low = tile + kQuads * kVectorBytes;
  for (int i = 0; i < kGroup; ++i) low[PlaneByte(row, i)] = uint8_t(g.lo[i] + 128);
  std::memcpy(tile + 2 * kQuads * kVectorBytes + size_t(row) * 4, &g.scale, sizeof g.scale);
}

}  // namespace

const char* WeightFormatName(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kW4: return "w4";
    case WeightFormat::kW8: return "w8";
    case WeightFormat::kW15: return "w15";
  }
  return "unknown";
}

size_t TileBytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW4: return kQuads / 2 * kVectorBytes + kPanelRows * 2;
    case WeightFormat::kW8: return kQuads * kVectorBytes + kPanelRows * 2;
    case WeightFormat::kW15: return 2 * kQuads * kVectorBytes + kPanelRows * 4;
    case WeightFormat::kF32: break;
  }
  CHECK(format != WeightFormat::kF32);
  return 0;
}

size_t MatrixBytes(WeightFormat format, int64_t rows, int64_t cols) {
  if (format == WeightFormat::kF32) return size_t(rows) * size_t(cols) * sizeof(float);
  return size_t(NumPanels(rows)) * size_t(NumGroups(cols)) * TileBytes(format);
}

WeightView DenseView(WeightFormat format, int64_t rows, int64_t cols, const uint8_t* data) {
  const size_t stride =
      format == WeightFormat::kF32 ? 0 : size_t(NumGroups(cols)) * TileBytes(format);
  return {format, rows, cols, data, stride};
}

QuantisedGroup QuantiseWeights(WeightFormat format, const float* values) {
  QuantisedGroup g{};
  const float amax = AbsoluteMaximum(values);
  if (amax < kSmallestAmax) return g;
  const float low = format == WeightFormat::kW4 ? -8.f : -127.f;
  const float high = format == WeightFormat::kW4 ? 7.f : 127.f;
  switch (format) {
    case WeightFormat::kW4: g.scale = BestScaleW4(values, amax); break;
    case WeightFormat::kW8: g.scale = HalfScaleUp(amax, 127.f); break;
    default: g.scale = PowerOfTwoUp(amax / 127.f);
  }
  if (g.scale == 0) return g;
  for (int i = 0; i < kGroup; ++i) {
    const float t = values[i] / g.scale;
    g.hi[i] = Clamp(t, low, high);
    if (format == WeightFormat::kW15) SplitRest(t, &g.hi[i], &g.lo[i]);
  }
  return g;
}

void PackPanel(WeightFormat format, const float* rows, int num_rows, int64_t cols, uint8_t* out) {
  const size_t tile_bytes = TileBytes(format);
  for (int64_t g = 0; g < NumGroups(cols); ++g) {
    uint8_t* tile = out + size_t(g) * tile_bytes;
    const int64_t first = g * kGroup, count = std::min<int64_t>(kGroup, cols - first);
    for (int r = 0; r < kPanelRows; ++r) {
      float values[kGroup] = {};
      if (r < num_rows) {
        std::memcpy(values, rows + int64_t(r) * cols + first, size_t(count) * sizeof(float));
      }
      WriteTile(format, QuantiseWeights(format, values), r, tile);
    }
  }
}

QuantisedGroup ReadTile(WeightFormat format, const uint8_t* tile, int row) {
  QuantisedGroup g{};
  if (format == WeightFormat::kW4) {
    for (int i = 0; i < kGroup / 2; ++i) {
      const uint8_t byte = tile[PlaneByte(row, i)];
      g.hi[i] = int8_t((byte & 15) - 8);
      g.hi[i + kGroup / 2] = int8_t((byte >> 4) - 8);
    }
    g.scale = ReadHalf(tile + kQuads / 2 * kVectorBytes + size_t(row) * 2);
    return g;
  }
  for (int i = 0; i < kGroup; ++i) g.hi[i] = int8_t(tile[PlaneByte(row, i)] - 128);
  if (format == WeightFormat::kW8) {
    g.scale = ReadHalf(tile + kQuads * kVectorBytes + size_t(row) * 2);
    return g;
  }
  const uint8_t* low = tile + kQuads * kVectorBytes;
  for (int i = 0; i < kGroup; ++i) g.lo[i] = int8_t(low[PlaneByte(row, i)] - 128);
  std::memcpy(&g.scale, tile + 2 * kQuads * kVectorBytes + size_t(row) * 4, sizeof g.scale);
  return g;
}

float DequantiseWeight(WeightFormat format, const QuantisedGroup& group, int i) {
  if (format != WeightFormat::kW15) return float(group.hi[i]) * group.scale;
  return float(256 * group.hi[i] + group.lo[i]) * (group.scale * 0x1p-8f);
}

void DequantiseRow(const WeightView& w, int64_t row, float* out) {
  if (w.format == WeightFormat::kF32) {
    std::memcpy(out, w.data + size_t(row * w.cols) * sizeof(float), size_t(w.cols) * sizeof(float));
    return;
  }
  const uint8_t* tile = w.panel(row / kPanelRows);
  for (int64_t first = 0; first < w.cols; first += kGroup, tile += TileBytes(w.format)) {
    const QuantisedGroup g = ReadTile(w.format, tile, int(row % kPanelRows));
    const int count = int(std::min<int64_t>(kGroup, w.cols - first));
    for (int i = 0; i < count; ++i) out[first + i] = DequantiseWeight(w.format, g, i);
  }
}

size_t ExpertPanelOffset(const ExpertShape& shape, int matrix, int64_t panel) {
  const size_t in_panel = size_t(NumGroups(shape.hidden)) * TileBytes(shape.format);
  if (matrix < 2) return size_t(2 * panel + matrix) * in_panel;
  const size_t down_panel = size_t(NumGroups(shape.intermediate)) * TileBytes(shape.format);
  return size_t(2 * NumPanels(shape.intermediate)) * in_panel + size_t(panel) * down_panel;
}

size_t ExpertImageBytes(const ExpertShape& shape) {
  const size_t used = ExpertPanelOffset(shape, 2, NumPanels(shape.hidden));
  return (used + kPageBytes - 1) / kPageBytes * kPageBytes;
}

ExpertViews ViewExpert(const ExpertShape& shape, const uint8_t* image) {
  const size_t in_panel = size_t(NumGroups(shape.hidden)) * TileBytes(shape.format);
  ExpertViews v;
  v.gate = {shape.format, shape.intermediate, shape.hidden, image, 2 * in_panel};
  v.up = v.gate;
  v.up.data += in_panel;
  v.down = DenseView(shape.format, shape.hidden, shape.intermediate,
                     image + ExpertPanelOffset(shape, 2, 0));
  return v;
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = float(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const uint32_t biased = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (biased << 23) | (mantissa << 13));
}

}  // namespace hillstar
