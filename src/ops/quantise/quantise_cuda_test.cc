// Planes of rows on a GPU against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/cuda_step_test.h"

namespace hillstar::cuda {
namespace {

struct DevicePlanes {
  DeviceArray<int8_t> hi, lo;
  DeviceArray<float> scale;
  DeviceArray<int32_t> sum;

  DevicePlanes(int64_t rows, int64_t cols)
      : hi(size_t(rows * NumGroups(cols) * kGroup)),
        lo(hi.size()),
        scale(size_t(rows * NumGroups(cols))),
        sum(scale.size()) {}
  ActivationPlanes view(int64_t cols) const {
    return {cols, hi.data(), lo.data(), scale.data(), sum.data()};
  }
  void ExpectEqual(const TestPlanes& want) const {
    EXPECT_EQ(FirstDifferenceOf(hi.Download(), want.hi), "");
    EXPECT_EQ(FirstDifferenceOf(lo.Download(), want.lo), "");
    EXPECT_EQ(FirstDifferenceOf(scale.Download(), want.scale), "");
    EXPECT_EQ(FirstDifferenceOf(sum.Download(), want.sum), "");
  }
};

void ExpectSameAsReference(int64_t rows, int64_t cols, const AlignedVector<float>& x) {
  TestPlanes want(rows, cols);
  ReferenceOps reference;
  reference->Quantise(x.data(), rows, want.view, {});
  TestContext context{size_t(rows)};
  const DeviceArray<float> device_x(x);
  const DevicePlanes got(rows, cols);
  QuantiseTask task;
  task.x = {device_x.data(), {}, 1, cols, 0};
  task.rows = rows;
  task.planes = got.view(cols);
  Quantise(*context, task);
  EXPECT_EQ(context.bad(), reference.TakeBad(rows));
  got.ExpectEqual(want);
}

TEST(QuantiseCuda, EqualsTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t cols : {1, 2, 63, 64, 65, 127, 192, 300, 2048, 6144}) {
      for (int64_t rows : {1, 17}) {
        if (rows > 1 && cols > 300) continue;
        SCOPED_TRACE(fmt::format("{}, [{}, {}]", ValueKindName(kind), rows, cols));
        ExpectSameAsReference(rows, cols, TestValues(kind, rows * cols, random));
      }
    }
  }
}

// Halves of a step in the high and in the low plane, of both signs, and 128 in the low one.
TEST(QuantiseCuda, TiesGoToTheEvenStep) {
  HILLSTAR_NEEDS_GPU();
  for (float unit : {0.5f, 0x1p-9f}) {
    AlignedVector<float> x(64 * 8);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = unit * float(i / 2) * (i % 2 ? -1.0f : 1.0f);
      if (x[i] > 127.0f || x[i] < -127.0f || i % 64 == 0) x[i] = 127.0f;
    }
    ExpectSameAsReference(1, int64_t(x.size()), x);
  }
}

TEST(QuantiseCuda, ScalesEndAtTheSmallestMagnitude) {
  HILLSTAR_NEEDS_GPU();
  for (float amax : {kSmallestRowAmax, std::nextafter(kSmallestRowAmax, 0.0f),
                     std::nextafter(kSmallestRowAmax, 1.0f), std::numeric_limits<float>::max()}) {
    AlignedVector<float> x(128, amax / 3);
    x[70] = -amax;
    ExpectSameAsReference(2, 64, x);
  }
}

// The group is zero, and the first code that was noted for the token stays.
TEST(QuantiseCuda, ValuesThatAreNotFiniteAreNotedOnce) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(2);
  constexpr int64_t kRows = 6, kCols = 150;
  AlignedVector<float> x = TestValues(ValueKind::kNormal, kRows * kCols, random);
  x[1 * kCols] = std::numeric_limits<float>::infinity();
  x[3 * kCols + 149] = std::numeric_limits<float>::quiet_NaN();
  x[4 * kCols + 65] = -std::numeric_limits<float>::infinity();
  ExpectSameAsReference(kRows, kCols, x);

  TestPlanes want(kRows, kCols);
  ReferenceOps reference;
  const AlignedVector<int32_t> owners{5, 3, 2, 0, 3, 1};
  reference->Quantise(x.data(), kRows, want.view, {1, owners.data()});
  TestContext context{size_t(kRows)};
  const DeviceArray<float> device_x(x);
  const DeviceArray<int32_t> device_owners(owners);
  const DevicePlanes got(kRows, kCols);
  QuantiseTask task;
  task.x = {device_x.data(), {1, device_owners.data()}, 1, kCols, 0};
  task.rows = kRows;
  task.planes = got.view(kCols);
  Quantise(*context, task);
  got.ExpectEqual(want);
  EXPECT_EQ(context.bad(), reference.TakeBad(kRows));
  EXPECT_EQ(context.bad(), (std::vector<int32_t>{7, 0, 0, 7, 0, 0}));
  context->bad.code = 9;
  task.x.owner = {2, nullptr};
  Quantise(*context, task);
  EXPECT_EQ(context.bad(), (std::vector<int32_t>{7, 9, 9, 7, 0, 0}));
}

TEST(QuantiseCuda, HeadsInsideRows) {
  HILLSTAR_NEEDS_GPU();
  struct Shape {
    int64_t tokens, heads, cols, between;
  };
  TestRandom random(3);
  for (const auto& [tokens, heads, cols, between] :
       {Shape{2, 64, 192, 64}, Shape{17, 3, 10, 6}, Shape{1, 1, 65, 1}, Shape{3, 5, 128, 0}}) {
    SCOPED_TRACE(fmt::format("{} tokens, {} heads of {} + {}", tokens, heads, cols, between));
    const int64_t head_stride = cols + between, token_stride = heads * head_stride;
    AlignedVector<float> x = TestValues(ValueKind::kNormal, tokens * token_stride, random);
    x[size_t((tokens - 1) * token_stride)] = std::numeric_limits<float>::quiet_NaN();
    TestPlanes want(tokens * heads, cols);
    ReferenceOps reference;
    reference->QuantiseHeads({x.data(), token_stride, head_stride}, tokens, heads, want.view);
    TestContext context{size_t(tokens)};
    const DeviceArray<float> device_x(x);
    const DevicePlanes got(tokens * heads, cols);
    const FloatRows rows{device_x.data(), {heads, nullptr}, heads, token_stride, head_stride};
    Quantise(*context, {rows, tokens * heads, got.view(cols)});
    EXPECT_EQ(context.bad(), reference.TakeBad(tokens));
    got.ExpectEqual(want);
  }
}

}  // namespace
}  // namespace hillstar::cuda
