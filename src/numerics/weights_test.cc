#include "numerics/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace hillstar {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15};

// mt19937 is the same everywhere; distributions are not, so values come from its bits.
class Values {
 public:
  explicit Values(uint32_t seed) : bits_(seed) {}
  float Uniform(float low, float high) {
    return low + static_cast<float>(bits_() >> 8) * 0x1p-24f * (high - low);
  }
  float Normal() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += Uniform(0, 1);
    return sum;
  }
  std::vector<float> Normals(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = Normal();
    return x;
  }

 private:
  std::mt19937 bits_;
};

int64_t LowestInteger(WeightFormat f) { return f == WeightFormat::kW4 ? -8 : -127; }
int64_t HighestInteger(WeightFormat f) { return f == WeightFormat::kW4 ? 7 : 127; }

std::vector<uint8_t> Pack(WeightFormat format, int64_t rows, int64_t cols,
                          const std::vector<float>& x) {
  std::vector<uint8_t> bytes(MatrixBytes(format, rows, cols), 0xa5);
  const size_t panel_bytes = static_cast<size_t>(NumGroups(cols)) * TileBytes(format);
  for (int64_t p = 0; p < NumPanels(rows); ++p) {
    const int num_rows = static_cast<int>(std::min<int64_t>(kPanelRows, rows - p * kPanelRows));
    PackPanel(format, x.data() + p * kPanelRows * cols, num_rows, cols,
              bytes.data() + static_cast<size_t>(p) * panel_bytes);
  }
  return bytes;
}

TEST(Weights, SizesOfTilesAndMatrices) {
  EXPECT_EQ(TileBytes(WeightFormat::kW4), 544u);
  EXPECT_EQ(TileBytes(WeightFormat::kW8), 1056u);
  EXPECT_EQ(TileBytes(WeightFormat::kW15), 2112u);
  EXPECT_EQ(MatrixBytes(WeightFormat::kW4, 17, 65), 4 * 544u);
  EXPECT_EQ(MatrixBytes(WeightFormat::kF32, 3, 5), 60u);
  EXPECT_EQ(DenseView(WeightFormat::kW8, 32, 128, nullptr).panel_stride, 2 * 1056u);
}

// Each value of each format in each of the 16 x 64 places, its neighbours being different.
TEST(Weights, EveryValueComesBackFromEveryPlace) {
  for (WeightFormat format : kFormats) {
    const int64_t low = LowestInteger(format), high = HighestInteger(format);
    const int64_t num_values = high - low + 1;
    std::vector<uint8_t> tile(TileBytes(format));
    for (int64_t shift = 0; shift < num_values; shift += format == WeightFormat::kW4 ? 1 : 17) {
      std::vector<float> x(kPanelRows * kGroup);
      for (int64_t i = 0; i < kPanelRows * kGroup; ++i) {
        x[static_cast<size_t>(i)] = static_cast<float>(low + (i * 5 + i / 64 + shift) % num_values);
      }
      // The extremes in every row fix the scale at 1.
      for (size_t r = 0; r < kPanelRows; ++r) {
        x[r * kGroup + (r + static_cast<size_t>(shift)) % kGroup] = static_cast<float>(low);
        x[r * kGroup + (r + static_cast<size_t>(shift) + 1) % kGroup] = static_cast<float>(high);
      }
      PackPanel(format, x.data(), kPanelRows, kGroup, tile.data());
      for (int r = 0; r < kPanelRows; ++r) {
        const QuantisedGroup g = ReadTile(format, tile.data(), r);
        ASSERT_EQ(g.scale, 1.0f) << WeightFormatName(format) << " row " << r;
        for (int i = 0; i < kGroup; ++i) {
          ASSERT_EQ(static_cast<float>(g.hi[i]), x[static_cast<size_t>(r * kGroup + i)])
              << WeightFormatName(format) << " row " << r << " input " << i;
          ASSERT_EQ(g.lo[i], 0);
        }
      }
    }
  }
}

// The bytes as docs/container.md and the kernels have them.
TEST(Weights, NibblesAndPlanesLieWhereTheKernelsReadThem) {
  std::vector<float> x(kPanelRows * kGroup, 0.0f);
  x[0] = -8;                // row 0 fixes the scale at 1
  x[3 * kGroup] = -8;       // row 3, too
  x[3 * kGroup + 6] = 5;    // low nibble: vector 6 / 4, byte 3 * 4 + 6 % 4
  x[3 * kGroup + 38] = -3;  // high nibble of the same byte
  std::vector<uint8_t> tile(TileBytes(WeightFormat::kW4));
  PackPanel(WeightFormat::kW4, x.data(), kPanelRows, kGroup, tile.data());
  EXPECT_EQ(tile[64 + 14], (5 + 8) | ((-3 + 8) << 4));
  uint16_t scale;
  std::memcpy(&scale, &tile[8 * 64 + 3 * 2], sizeof scale);
  EXPECT_EQ(HalfToFloat(scale), 1.0f);

  x[3 * kGroup] = 127;
  x[3 * kGroup + 6] = 5.25f;
  tile.resize(TileBytes(WeightFormat::kW15));
  PackPanel(WeightFormat::kW15, x.data(), kPanelRows, kGroup, tile.data());
  EXPECT_EQ(tile[64 + 14], 5 + 128);
  EXPECT_EQ(tile[16 * 64 + 64 + 14], 64 + 128);
  float wide;
  std::memcpy(&wide, &tile[2 * 16 * 64 + 3 * 4], sizeof wide);
  EXPECT_EQ(wide, 1.0f);
}

TEST(Weights, PackingIsQuantisingEachGroup) {
  Values random(1);
  const int64_t rows = 19, cols = 130;
  const std::vector<float> x = random.Normals(rows * cols);
  for (WeightFormat format : kFormats) {
    const std::vector<uint8_t> bytes = Pack(format, rows, cols, x);
    const WeightView w = DenseView(format, rows, cols, bytes.data());
    for (int64_t row = 0; row < 32; ++row) {
      for (int64_t g = 0; g < NumGroups(cols); ++g) {
        float values[kGroup] = {};
        for (int64_t i = 0; i < kGroup; ++i) {
          const int64_t col = g * kGroup + i;
          if (row < rows && col < cols) values[i] = x[static_cast<size_t>(row * cols + col)];
        }
        const QuantisedGroup expected = QuantiseWeights(format, values);
        const QuantisedGroup actual =
            ReadTile(format, w.panel(row / kPanelRows) + static_cast<size_t>(g) * TileBytes(format),
                     static_cast<int>(row % kPanelRows));
        EXPECT_EQ(actual.scale, expected.scale);
        EXPECT_EQ(0, std::memcmp(actual.hi, expected.hi, sizeof actual.hi)) << row << " " << g;
        EXPECT_EQ(0, std::memcmp(actual.lo, expected.lo, sizeof actual.lo)) << row << " " << g;
      }
    }
  }
}

TEST(Weights, DequantiseRowGivesIntegerTimesScale) {
  Values random(2);
  const int64_t rows = 19, cols = 130;
  const std::vector<float> x = random.Normals(rows * cols);
  for (WeightFormat format : kFormats) {
    const std::vector<uint8_t> bytes = Pack(format, rows, cols, x);
    const WeightView w = DenseView(format, rows, cols, bytes.data());
    for (int64_t row : {0, 15, 16, 18}) {
      std::vector<float> out(static_cast<size_t>(cols) + 1, -9.0f);
      DequantiseRow(w, row, out.data());
      EXPECT_EQ(out.back(), -9.0f) << "wrote beyond the row";
      for (int64_t i = 0; i < cols; ++i) {
        const QuantisedGroup g = ReadTile(
            format, w.panel(row / kPanelRows) + static_cast<size_t>(i / kGroup) * TileBytes(format),
            static_cast<int>(row % kPanelRows));
        const size_t at = static_cast<size_t>(i % kGroup);
        const bool two_planes = format == WeightFormat::kW15;
        const double steps = two_planes ? g.hi[at] + g.lo[at] / 256.0 : g.hi[at];
        EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(steps * double{g.scale}));
      }
    }
  }
  const WeightView plain =
      DenseView(WeightFormat::kF32, rows, cols, reinterpret_cast<const uint8_t*>(x.data()));
  std::vector<float> out(static_cast<size_t>(cols));
  DequantiseRow(plain, 7, out.data());
  EXPECT_EQ(0, std::memcmp(out.data(), x.data() + 7 * cols, out.size() * sizeof(float)));
}

// rint gives half a step; t = x / scale rounds once, |t| < 128: 128 * 2^-24 steps more (256 times
// that for W15, whose step is scale / 256). Values beyond the ends are cut: W8 where the f16 scale
// was rounded down, by 2^-11 of itself or by 2^-25 where it is subnormal, and W15's lo from 128 to
// 127, one step.
TEST(Weights, ErrorIsAtMostHalfAStepInsideTheRange) {
  Values random(3);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const float size = std::ldexp(1.0f, repeat % 20 - 12);
    float x[kGroup];
    for (float& v : x) v = random.Normal() * size;
    for (WeightFormat format : kFormats) {
      const QuantisedGroup g = QuantiseWeights(format, x);
      const bool two_planes = format == WeightFormat::kW15;
      const double step = std::fabs(double{g.scale}) / (two_planes ? 256 : 1);
      const double slack = 128 * 0x1p-24 * (two_planes ? 256 : 1);
      for (size_t i = 0; i < kGroup; ++i) {
        const double error =
            std::fabs(double{x[i]} - double{DequantiseWeight(format, g, static_cast<int>(i))}) /
            step;
        const double t = double{x[i]} / double{g.scale};
        double most = 0.5 + slack;
        if (two_planes && std::abs(g.lo[i]) == 127) most = 1 + slack;
        if (!two_planes) {
          most += std::max({0.0, t - static_cast<double>(HighestInteger(format)) - 0.5,
                            static_cast<double>(LowestInteger(format)) - t - 0.5});
          if (format == WeightFormat::kW8) {
            const double rounded_by = std::max(0x1p-11, 0x1p-25 / double{g.scale});
            EXPECT_LE(std::fabs(t), 127 * (1 + rounded_by) * (1 + 0x1p-22));
          }
        }
        // DequantiseWeight itself rounds once.
        EXPECT_LE(error, most + std::fabs(double{x[i]}) / step * 0x1p-23)
            << WeightFormatName(format);
      }
    }
  }
}

double SquaredErrorW4(const float* x, const QuantisedGroup& g) {
  double error = 0;
  for (int i = 0; i < kGroup; ++i) {
    const double d = double{x[i]} - g.hi[i] * double{g.scale};
    error += d * d;
  }
  return error;
}

TEST(Weights, W4IsNeverWorseThanTheScaleOfTheLargestValue) {
  Values random(4);
  int num_better = 0;
  for (int repeat = 0; repeat < 300; ++repeat) {
    float x[kGroup];
    float amax = 0;
    for (float& v : x) {
      v = random.Normal() * (repeat % 3 == 0 ? 0.02f : 1.0f);
      if (repeat % 2 && random.Uniform(0, 1) < 0.05f) v *= 5;
      amax = std::max(amax, std::fabs(v));
    }
    QuantisedGroup plain{};
    plain.scale = HalfToFloat(FloatToHalf(amax / 7));
    for (size_t i = 0; i < kGroup; ++i) {
      plain.hi[i] = static_cast<int8_t>(std::clamp(std::rint(x[i] / plain.scale), -8.0f, 7.0f));
    }
    const double error = SquaredErrorW4(x, QuantiseWeights(WeightFormat::kW4, x));
    EXPECT_LE(error, SquaredErrorW4(x, plain));
    num_better += error < 0.999 * SquaredErrorW4(x, plain);
  }
  EXPECT_GT(num_better, 100) << "the search for a better scale finds nothing";
}

// f16's subnormals are coarse: W8's scale is rounded up, so that no value is cut off.
TEST(Weights, W8CutsNothingOffHoweverSmall) {
  Values random(17);
  for (float largest : {1.0f, 1e-2f, 1e-3f, 1e-4f, 1e-5f}) {
    float x[kGroup];
    for (float& v : x) v = random.Uniform(-largest, largest);
    const QuantisedGroup g = QuantiseWeights(WeightFormat::kW8, x);
    for (int i = 0; i < kGroup; ++i) {
      const double error =
          std::fabs(double{DequantiseWeight(WeightFormat::kW8, g, i)} - double{x[i]});
      EXPECT_LE(error, 0.5001 * double{g.scale}) << "largest " << largest << " value " << x[i];
    }
  }
}

TEST(Weights, ZerosAndVanishingValuesGiveZero) {
  for (float value : {0.0f, -0.0f, 0x1p-101f, -0x1p-149f}) {
    const std::vector<float> x(kGroup, value);
    for (WeightFormat format : kFormats) {
      const QuantisedGroup g = QuantiseWeights(format, x.data());
      EXPECT_EQ(g.scale, 0.0f);
      for (int i = 0; i < kGroup; ++i) EXPECT_EQ(DequantiseWeight(format, g, i), 0.0f);
    }
  }
  // W15's f32 scale holds what f16 cannot: W8's values are then below half a step.
  const std::vector<float> small(kGroup, 0x1p-100f);
  const QuantisedGroup w8 = QuantiseWeights(WeightFormat::kW8, small.data());
  for (int i = 0; i < kGroup; ++i) EXPECT_EQ(DequantiseWeight(WeightFormat::kW8, w8, i), 0.0f);
  EXPECT_EQ(QuantiseWeights(WeightFormat::kW15, small.data()).scale, 0x1p-106f);
}

// bf16 has 8 bits: W15's 15 hold every value within 2 binades of the largest exactly enough for its
// rounding to bf16 to give it back.
TEST(Weights, W15GivesBackBf16NearTheLargest) {
  Values random(5);
  for (int repeat = 0; repeat < 100; ++repeat) {
    float x[kGroup];
    for (float& v : x) {
      v = std::bit_cast<float>(std::bit_cast<uint32_t>(random.Uniform(0.25f, 1.0f)) & 0xffff0000u);
    }
    const QuantisedGroup g = QuantiseWeights(WeightFormat::kW15, x);
    for (size_t i = 0; i < kGroup; ++i) {
      const float y = DequantiseWeight(WeightFormat::kW15, g, static_cast<int>(i));
      const uint32_t bits = std::bit_cast<uint32_t>(y);
      EXPECT_EQ(std::bit_cast<float>((bits + 0x8000u) & 0xffff0000u), x[i]);
    }
  }
}

TEST(ExpertImage, PanelsAlternateAndTheDownMatrixFollows) {
  for (WeightFormat format : kFormats) {
    const ExpertShape shape{format, 192, 80};
    const size_t in_panel = 3 * TileBytes(format), down_panel = 2 * TileBytes(format);
    std::vector<uint8_t> image(ExpertImageBytes(shape));
    EXPECT_EQ(image.size() % kPageBytes, 0u);
    const size_t used = 2 * 5 * in_panel + 12 * down_panel;
    EXPECT_GE(image.size(), used);
    EXPECT_LT(image.size(), used + kPageBytes);
    const ExpertViews v = ViewExpert(shape, image.data());
    for (int64_t p = 0; p < 5; ++p) {
      const size_t at = 2 * static_cast<size_t>(p) * in_panel;
      EXPECT_EQ(ExpertPanelOffset(shape, 0, p), at);
      EXPECT_EQ(ExpertPanelOffset(shape, 1, p), at + in_panel);
      EXPECT_EQ(v.gate.panel(p), image.data() + at);
      EXPECT_EQ(v.up.panel(p), image.data() + at + in_panel);
    }
    for (int64_t p = 0; p < 12; ++p) {
      const size_t at = 10 * in_panel + static_cast<size_t>(p) * down_panel;
      EXPECT_EQ(ExpertPanelOffset(shape, 2, p), at);
      EXPECT_EQ(v.down.panel(p), image.data() + at);
    }
    EXPECT_EQ(v.gate.rows, 80);
    EXPECT_EQ(v.gate.cols, 192);
    EXPECT_EQ(v.down.rows, 192);
    EXPECT_EQ(v.down.cols, 80);
  }
}

// What is packed panel by panel into an image comes out of its views.
TEST(ExpertImage, RoundTrip) {
  Values random(6);
  const ExpertShape shape{WeightFormat::kW8, 128, 48};
  std::vector<uint8_t> image(ExpertImageBytes(shape));
  const int64_t rows[] = {48, 48, 128}, cols[] = {128, 128, 48};
  std::vector<float> x[3];
  for (int m = 0; m < 3; ++m) {
    x[m] = random.Normals(rows[m] * cols[m]);
    for (int64_t p = 0; p < NumPanels(rows[m]); ++p) {
      PackPanel(shape.format, x[m].data() + p * kPanelRows * cols[m], kPanelRows, cols[m],
                image.data() + ExpertPanelOffset(shape, m, p));
    }
  }
  const ExpertViews v = ViewExpert(shape, image.data());
  const WeightView views[] = {v.gate, v.up, v.down};
  for (int m = 0; m < 3; ++m) {
    for (int64_t row = 0; row < rows[m]; ++row) {
      std::vector<float> out(static_cast<size_t>(cols[m]));
      DequantiseRow(views[m], row, out.data());
      for (int64_t i = 0; i < cols[m]; ++i) {
        // Half of a step of at most 6 / 127.
        EXPECT_NEAR(out[static_cast<size_t>(i)], x[m][static_cast<size_t>(row * cols[m] + i)],
                    6.0 / 127 * 0.51);
      }
    }
  }
}

}  // namespace
}  // namespace hillstar
