#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "ops/kernel_test.h"

namespace hillstar {
namespace {

constexpr int64_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 192, 512, 6144};

TEST(Combine, WeightedSumGivesTheSameBits) {
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t n : kLengths) {
      for (int64_t num_rows : {0, 1, 2, 8}) {
        std::vector<AlignedVector<float>> rows;
        std::vector<const float*> pointers;
        AlignedVector<float> weights;
        for (int64_t k = 0; k < num_rows; ++k) {
          rows.push_back(TestValues(kind, n, random));
          pointers.push_back(rows.back().data());
          weights.push_back(random.Uniform(0, 2.5f));
        }
        const AlignedVector<float> shared = TestValues(kind, n, random);
        const AlignedVector<float> x = TestValues(kind, n, random);
        for (const float* shared_row : {shared.data(), static_cast<const float*>(nullptr)}) {
          ExpectLevelsAgree(fmt::format("{} rows of {} {}, {} shared expert", num_rows, n,
                                        ValueKindName(kind), shared_row ? "a" : "no"),
                            [&](const CpuKernels& k, KernelOutputs& out) {
                              k.weighted_sum({pointers.data(), weights.data(), num_rows, shared_row,
                                              out.AddCopy<float>("x", x), n});
                            });
        }
      }
    }
  }
}

TEST(Combine, AddRowGivesTheSameBits) {
  TestRandom random(2);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t n : kLengths) {
      const AlignedVector<float> x = TestValues(kind, n, random), y = TestValues(kind, n, random);
      ExpectLevelsAgree(fmt::format("{} {}", n, ValueKindName(kind)),
                        [&](const CpuKernels& k, KernelOutputs& out) {
                          k.add_row(out.AddCopy<float>("x", x), y.data(), n);
                        });
      AlignedVector<float> sum = x;
      reference::AddRow(sum.data(), y.data(), n);
      for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i], x[i] + y[i]);
    }
  }
}

// Ranks in ascending order, then the shared expert, then the residual: in this order, and only in
// this order, the large terms cancel before the small ones are lost.
TEST(Combine, TheOrderIsRanksThenSharedThenResidual) {
  const float big = 0x1p30f;
  const float r0[] = {big}, r1[] = {-big}, r2[] = {1}, shared[] = {0x1p-20f}, weights[] = {1, 1, 1};
  const float* rows[] = {r0, r1, r2};
  float x[] = {2};
  reference::WeightedSum({rows, weights, 3, shared, x, 1});
  EXPECT_EQ(x[0], 3 + 0x1p-20f);
  const float* other_order[] = {r0, r2, r1};
  x[0] = 2;
  reference::WeightedSum({other_order, weights, 3, shared, x, 1});
  EXPECT_EQ(x[0], 2 + 0x1p-20f);
}

// k fma, one addition of the shared expert and one of the residual: gamma_(k+2) on the magnitudes.
TEST(Combine, WeightedSumIsWithinItsBound) {
  TestRandom random(3);
  const int64_t n = 100, k = 8;
  std::vector<AlignedVector<float>> rows;
  std::vector<const float*> pointers;
  AlignedVector<float> weights;
  for (int64_t i = 0; i < k; ++i) {
    rows.push_back(TestValues(ValueKind::kNormal, n, random));
    pointers.push_back(rows.back().data());
    weights.push_back(random.Uniform(0, 1));
  }
  const AlignedVector<float> shared = TestValues(ValueKind::kNormal, n, random);
  const AlignedVector<float> before = TestValues(ValueKind::kNormal, n, random);
  AlignedVector<float> x = before;
  reference::WeightedSum({pointers.data(), weights.data(), k, shared.data(), x.data(), n});
  for (size_t i = 0; i < x.size(); ++i) {
    double exact = double{before[i]} + double{shared[i]};
    double magnitude = std::fabs(double{before[i]}) + std::fabs(double{shared[i]});
    for (size_t r = 0; r < rows.size(); ++r) {
      exact += double{weights[r]} * double{rows[r][i]};
      magnitude += std::fabs(double{weights[r]} * double{rows[r][i]});
    }
    EXPECT_LE(std::fabs(double{x[i]} - exact), (k + 2) * 0x1p-24 * 1.001 * magnitude);
  }
}

}  // namespace
}  // namespace hillstar
