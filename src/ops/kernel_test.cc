#include "ops/kernel_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace hillstar {
namespace {

constexpr size_t kCanaryBytes = 128;

// The element's value for a person, and its bits.
std::string Describe(const uint8_t* at, size_t element_bytes) {
  if (element_bytes == sizeof(float)) {
    float value;
    uint32_t bits;
    std::memcpy(&value, at, sizeof value);
    std::memcpy(&bits, at, sizeof bits);
    return fmt::format("{:.9g} (0x{:08x})", value, bits);
  }
  return fmt::format("{}", int{static_cast<int8_t>(*at)});
}

// Offsets of 128 in W15 and W8 planes, of 8 in W4 nibbles.
uint8_t StoredByte(WeightFormat format, int value) {
  if (format == WeightFormat::kW4) return static_cast<uint8_t>((value + 8) * 17);
  return static_cast<uint8_t>(value + 128);
}

}  // namespace

uint64_t TestRandom::Next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

float TestRandom::Uniform(float low, float high) {
  const double unit = static_cast<double>(Next() >> 11) * 0x1p-53;
  return static_cast<float>(low + unit * (double{high} - low));
}

float TestRandom::Normal() {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += Uniform(0, 1);
  return sum;
}

const char* ValueKindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kNormal: return "normal";
    case ValueKind::kZeros: return "zeros";
    case ValueKind::kNegativeZeros: return "negative zeros";
    case ValueKind::kAllEqual: return "all equal";
    case ValueKind::kDenormals: return "denormals";
    case ValueKind::kOutlier: return "outlier";
    case ValueKind::kWideRange: return "wide range";
  }
  return "unknown";
}

AlignedVector<float> TestValues(ValueKind kind, int64_t n, TestRandom& random) {
  AlignedVector<float> x(static_cast<size_t>(n));
  const float constant = random.Normal();
  for (float& v : x) {
    switch (kind) {
      case ValueKind::kNormal:
      case ValueKind::kOutlier: v = random.Normal(); break;
      case ValueKind::kZeros: v = 0.0f; break;
      case ValueKind::kNegativeZeros: v = random.Below(2) ? -0.0f : 0.0f; break;
      case ValueKind::kAllEqual: v = constant; break;
      case ValueKind::kDenormals:
        v = std::ldexp(random.Normal(), -130 - static_cast<int>(random.Below(24)));
        break;
      case ValueKind::kWideRange:
        v = std::ldexp(random.Normal(), static_cast<int>(random.Below(71)) - 60);
        break;
    }
  }
  if (kind == ValueKind::kOutlier && n > 0) x[static_cast<size_t>(random.Below(n))] = 1e30f;
  return x;
}

TestMatrix PackTestMatrix(WeightFormat format, int64_t rows, int64_t cols,
                          const AlignedVector<float>& values) {
  TestMatrix m;
  m.bytes.resize(MatrixBytes(format, rows, cols));
  const size_t panel_bytes = static_cast<size_t>(NumGroups(cols)) * TileBytes(format);
  for (int64_t p = 0; p < NumPanels(rows); ++p) {
    const int num_rows = static_cast<int>(std::min<int64_t>(kPanelRows, rows - p * kPanelRows));
    PackPanel(format, values.data() + p * kPanelRows * cols, num_rows, cols,
              m.bytes.data() + static_cast<size_t>(p) * panel_bytes);
  }
  m.view = DenseView(format, rows, cols, m.bytes.data());
  return m;
}

TestMatrix ConstantTestMatrix(WeightFormat format, int64_t rows, int64_t cols, int hi, int lo,
                              float scale) {
  TestMatrix m;
  m.bytes.resize(MatrixBytes(format, rows, cols));
  const bool two_planes = format == WeightFormat::kW15;
  const size_t scale_bytes = kPanelRows * (two_planes ? sizeof(float) : sizeof(uint16_t));
  const size_t tile_bytes = TileBytes(format);
  const size_t plane_bytes = (tile_bytes - scale_bytes) / (two_planes ? 2 : 1);
  const uint16_t half = FloatToHalf(scale);
  for (size_t at = 0; at < m.bytes.size(); at += tile_bytes) {
    uint8_t* tile = m.bytes.data() + at;
    std::memset(tile, StoredByte(format, hi), plane_bytes);
    if (two_planes) std::memset(tile + plane_bytes, StoredByte(format, lo), plane_bytes);
    uint8_t* scales = tile + tile_bytes - scale_bytes;
    for (int r = 0; r < kPanelRows; ++r) {
      if (two_planes) {
        std::memcpy(scales + r * 4, &scale, sizeof scale);
      } else {
        std::memcpy(scales + r * 2, &half, sizeof half);
      }
    }
  }
  m.view = DenseView(format, rows, cols, m.bytes.data());
  return m;
}

TestPlanes::TestPlanes(int64_t tokens, int64_t cols) {
  const size_t groups = static_cast<size_t>(tokens * NumGroups(cols));
  hi.resize(groups * kGroup);
  lo.resize(groups * kGroup);
  scale.resize(groups);
  sum.resize(groups);
  view = {cols, hi.data(), lo.data(), scale.data(), sum.data()};
}

TestPlanes QuantiseTestRows(int64_t tokens, int64_t cols, const AlignedVector<float>& x) {
  TestPlanes planes(tokens, cols);
  for (int64_t t = 0; t < tokens; ++t) {
    EXPECT_TRUE(reference::QuantiseGroups({x.data() + t * cols, planes.view.FromRow(t)}));
  }
  return planes;
}

TestPlanes ConstantTestPlanes(int64_t tokens, int64_t cols, int hi, int lo, float scale) {
  TestPlanes planes(tokens, cols);
  const int64_t stride = planes.view.stride();
  for (int64_t i = 0; i < tokens * stride; ++i) {
    if (i % stride >= cols) continue;
    planes.hi[static_cast<size_t>(i)] = static_cast<int8_t>(hi);
    planes.lo[static_cast<size_t>(i)] = static_cast<int8_t>(lo);
    planes.sum[static_cast<size_t>(i / kGroup)] += 256 * hi + lo;
  }
  std::fill(planes.scale.begin(), planes.scale.end(), scale);
  return planes;
}

uint8_t* KernelOutputs::AddBytes(std::string name, size_t element_bytes, int64_t count,
                                 int64_t misalign) {
  Buffer b;
  b.name = std::move(name);
  b.element_bytes = element_bytes;
  b.first_byte = kCanaryBytes + static_cast<size_t>(misalign) * element_bytes;
  b.num_bytes = static_cast<size_t>(count) * element_bytes;
  b.bytes.assign(b.first_byte + b.num_bytes + kCanaryBytes, kPoisonByte);
  buffers_.push_back(std::move(b));
  return buffers_.back().bytes.data() + buffers_.back().first_byte;
}

std::string KernelOutputs::FirstDifference(const KernelOutputs& expected) const {
  if (buffers_.size() != expected.buffers_.size()) return "different numbers of outputs";
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const Buffer &a = buffers_[i], &b = expected.buffers_[i];
    if (a.bytes.size() != b.bytes.size()) return a.name + ": different sizes";
    if (std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0) continue;
    for (size_t at = 0; at + a.element_bytes <= a.bytes.size(); at += a.element_bytes) {
      if (std::memcmp(&a.bytes[at], &b.bytes[at], a.element_bytes) == 0) continue;
      const int64_t index = (static_cast<int64_t>(at) - static_cast<int64_t>(a.first_byte)) /
                            static_cast<int64_t>(a.element_bytes);
      return fmt::format("{}[{}]: {} instead of {}", a.name, index,
                         Describe(&a.bytes[at], a.element_bytes),
                         Describe(&b.bytes[at], b.element_bytes));
    }
  }
  return {};
}

std::string KernelOutputs::BrokenCanary() const {
  for (const Buffer& b : buffers_) {
    for (size_t at = 0; at < b.bytes.size(); ++at) {
      const bool inside = at >= b.first_byte && at < b.first_byte + b.num_bytes;
      if (inside || b.bytes[at] == kPoisonByte) continue;
      return fmt::format("{}: byte {} of a buffer of {} bytes was written", b.name,
                         static_cast<int64_t>(at) - static_cast<int64_t>(b.first_byte),
                         b.num_bytes);
    }
  }
  return {};
}

void ExpectLevelsAgree(const std::string& shape, const KernelRun& run) {
  KernelOutputs expected;
  run(ReferenceKernels(), expected);
  ASSERT_EQ(expected.BrokenCanary(), "") << "reference, " << shape;
  for (const CpuKernels* kernels : AvailableKernels()) {
    if (kernels == &ReferenceKernels()) continue;
    KernelOutputs actual;
    run(*kernels, actual);
    ASSERT_EQ(actual.FirstDifference(expected), "") << kernels->level << ", " << shape;
  }
}

const CpuKernels& ReferenceKernels() { return *AvailableKernels().back(); }

}  // namespace hillstar
