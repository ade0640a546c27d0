#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "numerics/elementary.h"
#include "ops/kernel_test.h"

namespace hillstar {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15};
constexpr int64_t kRows[] = {1, 15, 16, 17, 33};
constexpr int64_t kCols[] = {1, 63, 64, 65, 128, 192, 512, 576, 2048};
constexpr int64_t kTokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17};
constexpr int64_t kStrideSlack = 3;  // rows of y lie apart and unaligned

std::string Shape(const LinearSlice& s) {
  return fmt::format("{} [{}, {}], {} tokens, panels {}+{}", WeightFormatName(s.w.format), s.w.rows,
                     s.w.cols, s.num_tokens, s.first_panel, s.num_panels);
}

LinearSlice WholeSlice(const TestMatrix& w, const TestPlanes& x, int64_t num_tokens) {
  static AlignedVector<uint8_t> scratch(LinearScratchBytes(8192));
  LinearSlice s;
  s.scratch = scratch.data();
  s.w = w.view;
  s.x = x.view;
  s.num_tokens = num_tokens;
  s.num_panels = NumPanels(w.view.rows);
  s.y_stride = w.view.rows + kStrideSlack;
  return s;
}

void ExpectLinearAgrees(const LinearSlice& slice, const std::string& note = "") {
  ExpectLevelsAgree(Shape(slice) + note, [&](const CpuKernels& k, KernelOutputs& out) {
    LinearSlice s = slice;
    s.y = out.Add<float>("y", s.num_tokens * s.y_stride, 1);
    k.linear(s);
  });
}

void ExpectSwiGluAgrees(const LinearSlice& gate, const WeightView& up,
                        const std::string& note = "") {
  ExpectLevelsAgree("swiglu " + Shape(gate) + note, [&](const CpuKernels& k, KernelOutputs& out) {
    SwiGluSlice s{gate, up};
    s.linear.y = out.Add<float>("y", gate.num_tokens * gate.y_stride, 1);
    k.swiglu(s);
  });
}

AlignedVector<float> NormalValues(int64_t n, TestRandom& random) {
  return TestValues(ValueKind::kNormal, n, random);
}

void ExpectShapeAgrees(WeightFormat format, int64_t rows, int64_t cols, int64_t most_tokens) {
  TestRandom random(static_cast<uint64_t>(rows * 10000 + cols));
  const TestMatrix gate = PackTestMatrix(format, rows, cols, NormalValues(rows * cols, random));
  const TestMatrix up = PackTestMatrix(format, rows, cols, NormalValues(rows * cols, random));
  const TestPlanes x =
      QuantiseTestRows(most_tokens, cols, NormalValues(most_tokens * cols, random));
  for (int64_t tokens : kTokens) {
    if (tokens > most_tokens) continue;
    const LinearSlice s = WholeSlice(gate, x, tokens);
    ExpectLinearAgrees(s);
    ExpectSwiGluAgrees(s, up.view);
  }
}

TEST(Linear, EveryLevelGivesTheSameBits) {
  for (WeightFormat format : kFormats) {
    for (int64_t rows : kRows) {
      for (int64_t cols : kCols) ExpectShapeAgrees(format, rows, cols, 17);
    }
    ExpectShapeAgrees(format, 17, 6144, 9);
  }
}

TEST(Linear, PartsOfPanelsAndChosenRowsGiveTheSameBits) {
  TestRandom random(1);
  const int64_t rows = 33, cols = 192, x_rows = 12;
  const int32_t list[] = {3, 3, 0, 11, 7, 1, 2, 10, 9};
  for (WeightFormat format : kFormats) {
    const TestMatrix w = PackTestMatrix(format, rows, cols, NormalValues(rows * cols, random));
    const TestPlanes x = QuantiseTestRows(x_rows, cols, NormalValues(x_rows * cols, random));
    for (int64_t first = 0; first < 3; ++first) {
      for (int64_t panels = 0; first + panels <= 3; ++panels) {
        LinearSlice s = WholeSlice(w, x, 9);
        s.first_panel = first;
        s.num_panels = panels;
        s.x_rows = list;
        ExpectLinearAgrees(s, ", listed rows");
        ExpectSwiGluAgrees(s, w.view, ", listed rows");
        s.x_rows = nullptr;
        s.x_first = 1;
        s.x_step = 2;
        s.num_tokens = 5;
        ExpectLinearAgrees(s, ", every second row");
      }
    }
  }
}

// A token's row must not depend on its neighbours, its place or the panels of the slice.
TEST(Linear, BatchAndPlaceChangeNoBit) {
  TestRandom random(2);
  const int64_t rows = 33, cols = 576, tokens = 17;
  for (WeightFormat format : kFormats) {
    const TestMatrix w = PackTestMatrix(format, rows, cols, NormalValues(rows * cols, random));
    const TestPlanes x = QuantiseTestRows(tokens, cols, NormalValues(tokens * cols, random));
    for (const CpuKernels* k : AvailableKernels()) {
      AlignedVector<float> whole(static_cast<size_t>(tokens * rows));
      LinearSlice s = WholeSlice(w, x, tokens);
      s.y = whole.data();
      s.y_stride = rows;
      k->linear(s);
      for (int64_t t = 0; t < tokens; ++t) {
        AlignedVector<float> alone(static_cast<size_t>(rows));
        s.y = alone.data();
        s.num_tokens = 1;
        s.num_panels = 1;
        s.x_first = t;
        for (s.first_panel = 0; s.first_panel < NumPanels(rows); ++s.first_panel) k->linear(s);
        EXPECT_EQ(0, std::memcmp(alone.data(), whole.data() + t * rows, alone.size() * 4))
            << k->level << " " << WeightFormatName(format) << " token " << t;
      }
    }
  }
}

TEST(Linear, EveryKindOfValue) {
  TestRandom random(3);
  const int64_t rows = 17, cols = 128, tokens = 5;
  for (WeightFormat format : kFormats) {
    for (ValueKind weight_kind : kAllValueKinds) {
      // f16 scales hold no 1e30: W4 and W8 are for values of a trained model.
      if (weight_kind == ValueKind::kOutlier && format != WeightFormat::kW15) continue;
      const TestMatrix w =
          PackTestMatrix(format, rows, cols, TestValues(weight_kind, rows * cols, random));
      for (ValueKind kind : kAllValueKinds) {
        const TestPlanes x =
            QuantiseTestRows(tokens, cols, TestValues(kind, tokens * cols, random));
        const LinearSlice s = WholeSlice(w, x, tokens);
        const std::string note =
            fmt::format(", {} by {}", ValueKindName(weight_kind), ValueKindName(kind));
        ExpectLinearAgrees(s, note);
        ExpectSwiGluAgrees(s, w.view, note);
      }
    }
  }
}

TEST(Linear, ExtremesOfThePlanesStayExact) {
  const int64_t rows = 17, cols = 576, tokens = 9;
  for (WeightFormat format : kFormats) {
    const bool w4 = format == WeightFormat::kW4;
    for (int w_hi : {w4 ? -8 : -127, w4 ? 7 : 127}) {
      for (int w_lo : {-127, 127}) {
        for (int x_hi : {-127, 127}) {
          for (int x_lo : {-127, 127}) {
            const TestMatrix w = ConstantTestMatrix(format, rows, cols, w_hi, w_lo, 1.0f);
            const TestPlanes x = ConstantTestPlanes(tokens, cols, x_hi, x_lo, 1.0f);
            LinearSlice s = WholeSlice(w, x, tokens);
            ExpectLinearAgrees(s, fmt::format(", w {} {} x {} {}", w_hi, w_lo, x_hi, x_lo));
            AlignedVector<float> y(static_cast<size_t>(tokens * s.y_stride));
            s.y = y.data();
            s.x.cols = s.w.cols = kGroup;  // one group: nothing is rounded but d itself
            reference::Linear(s);
            const int x_value = 256 * x_hi + x_lo;
            const auto high = static_cast<float>(kGroup * w_hi * x_value);
            const auto low = static_cast<float>(kGroup * w_lo * x_value);
            const bool w15 = format == WeightFormat::kW15;
            EXPECT_EQ(y[0], w15 ? std::fma(256.0f, high, low) * 0x1p-8f : high);
          }
        }
      }
    }
  }
}

// Every finite f16 as a scale: kernels convert them in three different ways.
TEST(Linear, EveryFiniteHalfScale) {
  AlignedVector<uint16_t> codes;
  for (uint32_t code = 0; code < 65536; ++code) {
    if (((code >> 10) & 31u) != 31u) codes.push_back(static_cast<uint16_t>(code));
  }
  const int64_t rows = static_cast<int64_t>(codes.size());
  for (WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8}) {
    TestMatrix w = ConstantTestMatrix(format, rows, kGroup, 3, 0, 1.0f);
    const size_t tile_bytes = TileBytes(format);
    for (size_t p = 0; p < codes.size() / kPanelRows; ++p) {
      std::memcpy(w.bytes.data() + (p + 1) * tile_bytes - 2 * kPanelRows, &codes[p * kPanelRows],
                  2 * kPanelRows);
    }
    const TestPlanes x = ConstantTestPlanes(1, kGroup, 1, 5, 0.25f);
    ExpectLinearAgrees(WholeSlice(w, x, 1), ", every scale");
  }
}

// SiLU through the gate on a dense grid of arguments, beyond both ends of Exp's range.
TEST(Linear, SwiGluOverTheRangeOfExp) {
  const int64_t tokens = 40001;
  AlignedVector<float> values(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    values[static_cast<size_t>(t)] = static_cast<float>(t - tokens / 2) * 0x1.1p-7f;
  }
  const TestPlanes x = QuantiseTestRows(tokens, 1, values);
  const TestMatrix one = ConstantTestMatrix(WeightFormat::kW8, 1, 1, 1, 0, 1.0f);
  ExpectSwiGluAgrees(WholeSlice(one, x, tokens), one.view);
}

// Bound of |y - exact| with u = 2^-24, the unit roundoff. One group's term is float(d) * (ws * xs).
// For W4 and W8 d is one exact integer, which rounds once (W4: not at all); for W15 it is
// fma(256, float(high), float(low)) of two exact integers: two roundings of each. ws * xs rounds
// once, then come at most 8 fma of the segment and at most S additions of segments. So every term
// carries at most n = 2 + 1 + 8 + S factors (1 + e), |e| <= u:
//   |y - exact| <= gamma_n * sum over groups of (|256 high| + |low|) ws xs,
//   gamma_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
// The segments' partial sums are bounded by the same sum, as that reference shows.
struct ExactDot {
  double value = 0;
  double magnitude = 0;  // the sum that gamma_n multiplies
};

ExactDot ExactRow(const WeightView& w, const ActivationPlanes& x, int64_t row) {
  ExactDot dot;
  for (int64_t g = 0; g < x.groups(); ++g) {
    const uint8_t* tile = w.panel(row / kPanelRows) + static_cast<size_t>(g) * TileBytes(w.format);
    const QuantisedGroup q = ReadTile(w.format, tile, static_cast<int>(row % kPanelRows));
    const double x_scale = double{x.scale[g]};
    double high = 0, low = 0;  // of this group, in units of the scales' product
    for (int i = 0; i < kGroup; ++i) {
      const int64_t at = g * kGroup + i;
      const double x_value = 256.0 * x.hi[at] + x.lo[at];
      dot.value += double{DequantiseWeight(w.format, q, i)} * x_value * x_scale;
      high += q.hi[i] * x_value;
      low += q.lo[i] / 256.0 * x_value;
    }
    dot.magnitude += (std::fabs(high) + std::fabs(low)) * std::fabs(double{q.scale} * x_scale);
  }
  return dot;
}

TEST(Linear, ReferenceIsWithinItsBoundOfTheExactProduct) {
  TestRandom random(4);
  const int64_t rows = 17, tokens = 3;
  double worst = 0;
  for (WeightFormat format : kFormats) {
    for (int64_t cols : {1, 65, 576, 2048, 6144}) {
      const TestMatrix w = PackTestMatrix(format, rows, cols, NormalValues(rows * cols, random));
      const TestPlanes x = QuantiseTestRows(tokens, cols, NormalValues(tokens * cols, random));
      AlignedVector<float> y(static_cast<size_t>(tokens * rows));
      LinearSlice s = WholeSlice(w, x, tokens);
      s.y = y.data();
      s.y_stride = rows;
      reference::Linear(s);
      const int64_t segments = (NumGroups(cols) + kSegmentGroups - 1) / kSegmentGroups;
      const double nu = static_cast<double>(2 + 1 + 8 + segments) * 0x1p-24;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
          const ExactDot exact = ExactRow(w.view, x.view.FromRow(t), r);
          const double bound = nu / (1 - nu) * exact.magnitude;
          const double error =
              std::fabs(double{y[static_cast<size_t>(t * rows + r)]} - exact.value);
          EXPECT_LE(error, bound) << WeightFormatName(format) << " cols " << cols << " row " << r;
          if (bound > 0) worst = std::max(worst, error / bound);
        }
      }
    }
  }
  RecordProperty("worst_share_of_bound", fmt::format("{:.3f}", worst));
}

// Three roundings of the gate's SiLU (negate exact; Exp 2^-23 relative, addition, division) and one
// of the product, on the floats that Linear gives for gate and up.
TEST(Linear, SwiGluIsSiluOfTheGateTimesUp) {
  TestRandom random(5);
  const int64_t rows = 33, cols = 128, tokens = 4;
  const TestMatrix gate =
      PackTestMatrix(WeightFormat::kW8, rows, cols, NormalValues(rows * cols, random));
  const TestMatrix up =
      PackTestMatrix(WeightFormat::kW8, rows, cols, NormalValues(rows * cols, random));
  const TestPlanes x = QuantiseTestRows(tokens, cols, NormalValues(tokens * cols, random));
  AlignedVector<float> g(static_cast<size_t>(tokens * rows)), u(g.size()), h(g.size());
  LinearSlice s = WholeSlice(gate, x, tokens);
  s.y_stride = rows;
  s.y = h.data();
  reference::SwiGlu({s, up.view});
  s.y = g.data();
  reference::Linear(s);
  s.w = up.view;
  s.y = u.data();
  reference::Linear(s);
  for (size_t i = 0; i < h.size(); ++i) {
    const double exact = double{g[i]} / (1 + std::exp(-double{g[i]})) * double{u[i]};
    const double bound = std::fabs(exact) * (0x1p-23 + 3 * 0x1p-24) * (1 + 0x1p-20);
    EXPECT_LE(std::fabs(double{h[i]} - exact), bound) << i << " gate " << g[i];
  }
}

}  // namespace
}  // namespace hillstar
