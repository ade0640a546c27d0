#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "ops/kernel_test.h"

namespace hillstar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-5f;
constexpr int64_t kLengths[] = {1,   2,   15,  16,  17,  63,  64,   65,   128, 192,
                                255, 256, 257, 300, 512, 576, 2048, 2049, 6144};

struct NormInputs {
  AlignedVector<float> x, weight, bias;
};

NormInputs MakeInputs(ValueKind kind, int64_t n, TestRandom& random) {
  return {TestValues(kind, n, random), TestValues(ValueKind::kNormal, n, random),
          TestValues(ValueKind::kNormal, n, random)};
}

using NormFunction = bool (*CpuKernels::*)(const NormSlice&);

void ExpectNormAgrees(NormFunction function, const NormInputs& in, const std::string& note) {
  const int64_t n = static_cast<int64_t>(in.x.size());
  ExpectLevelsAgree(
      fmt::format("{} values {}", n, note), [&](const CpuKernels& k, KernelOutputs& out) {
        float* y = out.Add<float>("y", n, 1);
        float* in_place = out.AddCopy<float>("in place", in.x);
        const bool ok = (k.*function)({in.x.data(), in.weight.data(), in.bias.data(), y, n, kEps});
        (k.*function)({in_place, in.weight.data(), in.bias.data(), in_place, n, kEps});
        out.AddFlag("ok", ok);
      });
}

TEST(Norm, EveryLevelGivesTheSameBits) {
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t n : kLengths) {
      const NormInputs in = MakeInputs(kind, n, random);
      ExpectNormAgrees(&CpuKernels::rms_norm, in, std::string("rms ") + ValueKindName(kind));
      ExpectNormAgrees(&CpuKernels::layer_norm, in, std::string("layer ") + ValueKindName(kind));
    }
  }
}

TEST(Norm, NonFiniteValuesGiveFalseAtEveryLevel) {
  TestRandom random(2);
  for (int64_t n : {1, 17, 64, 300}) {
    for (int64_t at = 0; at < n; at += 37) {
      for (float bad : {kNan, kInfinity, -kInfinity, 1e30f}) {
        NormInputs in = MakeInputs(ValueKind::kNormal, n, random);
        in.x[static_cast<size_t>(at)] = bad;
        for (const CpuKernels* k : AvailableKernels()) {
          AlignedVector<float> y(in.x.size());
          const NormSlice s{in.x.data(), in.weight.data(), in.bias.data(), y.data(), n, kEps};
          EXPECT_FALSE(k->rms_norm(s)) << k->level << " " << bad << " at " << at << " of " << n;
          // A single value is its own mean: its variance is 0 unless it is not finite.
          if (n > 1 || !std::isfinite(bad)) {
            EXPECT_FALSE(k->layer_norm(s)) << k->level << " " << bad << " at " << at << " of " << n;
          }
        }
      }
    }
  }
}

// u = 2^-24. A sum of n terms over 256 partials carries at most n / 256 + 1 fma and 8 additions a
// term, all terms of the sum of squares being positive: relative error gamma_k, k = n / 256 + 9.
// The division by n, + eps, and sqrt give 3 more, halved by sqrt from those before it; then 1 /
// root, x * inverse, * weight: fewer than k + 6 in all.
TEST(Norm, RmsIsWithinItsBoundOfDoublePrecision) {
  TestRandom random(3);
  for (int64_t n : kLengths) {
    const NormInputs in = MakeInputs(ValueKind::kNormal, n, random);
    AlignedVector<float> y(in.x.size());
    ASSERT_TRUE(reference::RmsNorm({in.x.data(), in.weight.data(), nullptr, y.data(), n, kEps}));
    double squares = 0;
    for (float v : in.x) squares += double{v} * double{v};
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(n) + double{kEps});
    const double roundings = static_cast<double>(n / 256 + 9 + 6);
    for (size_t i = 0; i < y.size(); ++i) {
      const double exact = double{in.x[i]} * inverse * double{in.weight[i]};
      EXPECT_LE(std::fabs(double{y[i]} - exact), std::fabs(exact) * roundings * 0x1p-24 * 1.001)
          << i << " of " << n;
    }
  }
}

// As above, but the mean is a sum with cancellation: off by at most gamma_k * sum |x| / n =: e. The
// centred value is then off by e + u |c|, the variance relatively by 2 (e |c| summed) / sum c^2
// plus k + 2 roundings, and y by the centred value's share plus the inverse root's, plus u |y| for
// the last fma.
TEST(Norm, LayerIsWithinItsBoundOfDoublePrecision) {
  TestRandom random(4);
  const double u = 0x1p-24 * 1.001;
  for (int64_t n : kLengths) {
    if (n == 1) continue;
    const NormInputs in = MakeInputs(ValueKind::kNormal, n, random);
    AlignedVector<float> y(in.x.size());
    ASSERT_TRUE(
        reference::LayerNorm({in.x.data(), in.weight.data(), in.bias.data(), y.data(), n, kEps}));
    const double count = static_cast<double>(n), k = static_cast<double>(n / 256 + 9);
    double sum = 0, magnitude = 0, squares = 0, centred_magnitude = 0;
    for (float v : in.x) sum += double{v}, magnitude += std::fabs(double{v});
    const double mean = sum / count, mean_error = (k + 1) * u * magnitude / count;
    for (float v : in.x) {
      squares += (double{v} - mean) * (double{v} - mean);
      centred_magnitude += std::fabs(double{v} - mean);
    }
    const double variance_error =
        2 * mean_error * centred_magnitude / squares + (k + 2 + 2) * u + mean_error * mean_error;
    const double inverse = 1 / std::sqrt(squares / count + double{kEps});
    for (size_t i = 0; i < y.size(); ++i) {
      const double c = double{in.x[i]} - mean, w = double{in.weight[i]};
      const double exact = c * inverse * w + double{in.bias[i]};
      const double bound = std::fabs(inverse * w) *
                               (mean_error + std::fabs(c) * (variance_error / 2 + 5 * u)) * 1.01 +
                           std::fabs(exact) * u;
      EXPECT_LE(std::fabs(double{y[i]} - exact), bound) << i << " of " << n;
    }
  }
}

}  // namespace
}  // namespace hillstar
