// Sums and copies of rows and rows of the embedding on a GPU against the reference.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/cuda_step_test.h"

namespace hillstar::cuda {
namespace {

struct MixShape {
  int64_t tokens, ranks, n;
  bool shares;
};

void ExpectSameMixture(const MixShape& shape, ValueKind kind, TestRandom& random) {
  const int64_t pairs = shape.tokens * shape.ranks, count = shape.tokens * shape.n;
  const AlignedVector<float> rows = TestValues(kind, pairs * shape.n, random);
  const AlignedVector<float> shared = TestValues(kind, count, random);
  const AlignedVector<float> weights = TestValues(ValueKind::kNormal, pairs, random);
  const AlignedVector<float> x = TestValues(kind, count, random);
  AlignedVector<int32_t> slots;
  for (int64_t i = 0; i < pairs; ++i) {
    slots.push_back(int32_t(i));
    std::swap(slots.back(), slots[size_t(random.Below(i + 1))]);
  }
  AlignedVector<float> want = x;
  ReferenceOps reference;
  reference->Add({nullptr,
                  {rows.data(), slots.data(), weights.data(), shape.ranks,
                   shape.shares ? shared.data() : nullptr}},
                 shape.tokens, shape.n, want.data());
  const TestContext context;
  const DeviceArray<float> device_rows(rows), device_shared(shared), device_weights(weights),
      got(x);
  const DeviceArray<int32_t> device_slots(slots);
  Mix(*context,
      {device_rows.data(), device_slots.data(), device_weights.data(), shape.ranks,
       shape.shares ? device_shared.data() : nullptr},
      shape.tokens, shape.n, got.data());
  EXPECT_EQ(FirstDifferenceOf(got.Download(), want), "");
}

TEST(CombineCuda, MixturesEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    for (const MixShape& shape :
         {MixShape{2, 8, 6144, true}, MixShape{17, 3, 40, false}, MixShape{65, 3, 17, true},
          MixShape{1, 1, 1, true}, MixShape{1, 8, 257, false}, MixShape{3, 1, 64, true}}) {
      SCOPED_TRACE(fmt::format("{}, {} tokens, {} ranks of {}, {} shared", ValueKindName(kind),
                               shape.tokens, shape.ranks, shape.n, shape.shares ? "one" : "none"));
      ExpectSameMixture(shape, kind, random);
    }
  }
}

TEST(CombineCuda, SumsOfRowsEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(2);
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t count : {1, 255, 256, 257, 2 * 6144}) {
      SCOPED_TRACE(fmt::format("{}, {}", ValueKindName(kind), count));
      const AlignedVector<float> x = TestValues(kind, count, random);
      const AlignedVector<float> y = TestValues(kind, count, random);
      AlignedVector<float> want = x;
      reference::AddRow(want.data(), y.data(), count);
      const TestContext context;
      const DeviceArray<float> got(x), device_y(y);
      AddRows(*context, got.data(), device_y.data(), count);
      EXPECT_EQ(FirstDifferenceOf(got.Download(), want), "");
    }
  }
}

// A copy: any bits pass.
TEST(CombineCuda, JoinedRowsEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(3);
  for (int64_t rows : {1, 3, 17}) {
    for (int64_t n : {1, 40, 128, 257, 6144}) {
      if (rows > 3 && n > 257) continue;
      SCOPED_TRACE(fmt::format("{} rows of {}", rows, n));
      AlignedVector<uint32_t> a(size_t(rows * n)), b(a.size());
      for (uint32_t& bits : a) bits = uint32_t(random.Next());
      for (uint32_t& bits : b) bits = uint32_t(random.Next());
      AlignedVector<uint32_t> want(2 * a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        const size_t row = i / size_t(n), column = i % size_t(n);
        want[row * 2 * size_t(n) + column] = a[i];
        want[row * 2 * size_t(n) + size_t(n) + column] = b[i];
      }
      const TestContext context;
      const DeviceArray<uint32_t> device_a(a), device_b(b), out(want.size());
      Concatenate(*context, reinterpret_cast<const float*>(device_a.data()),
                  reinterpret_cast<const float*>(device_b.data()), rows, n,
                  reinterpret_cast<float*>(out.data()));
      EXPECT_EQ(FirstDifferenceOf(out.Download(), want), "");
    }
  }
}

void ExpectSameEmbedding(const TestMatrix& table, const AlignedVector<int32_t>& ids) {
  const int64_t cols = table.view.cols;
  AlignedVector<float> want(ids.size() * size_t(cols));
  for (size_t t = 0; t < ids.size(); ++t) {
    DequantiseRow(table.view, ids[t], &want[t * size_t(cols)]);
  }
  const TestContext context;
  const DeviceArray<uint8_t> bytes(table.bytes);
  const DeviceArray<int32_t> device_ids(ids);
  const DeviceArray<float> x(want.size());
  WeightView view = table.view;
  view.data = bytes.data();
  Embed(*context, view, device_ids.data(), int64_t(ids.size()), x.data());
  EXPECT_EQ(FirstDifferenceOf(x.Download(), want), "");
}

TestMatrix MakeTable(WeightFormat format, int64_t rows, int64_t cols,
                     const AlignedVector<float>& values) {
  if (format != WeightFormat::kF32) return PackTestMatrix(format, rows, cols, values);
  TestMatrix table;
  table.bytes.resize(values.size() * sizeof(float));
  std::memcpy(table.bytes.data(), values.data(), table.bytes.size());
  table.view = {format, rows, cols, table.bytes.data(), 0};
  return table;
}

TEST(CombineCuda, EmbeddingsEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(4);
  constexpr int64_t kRows = 37;
  AlignedVector<int32_t> ids(kRows);  // every row, so every row of a panel, and some twice
  std::iota(ids.rbegin(), ids.rend(), 0);
  ids.insert(ids.end(), {0, 36, 17, 16, 15});
  for (WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15}) {
    for (ValueKind kind : kAllValueKinds) {
      // Of 1e30 a half is no scale.
      const bool has_half = format == WeightFormat::kW4 || format == WeightFormat::kW8;
      if (has_half && kind == ValueKind::kOutlier) continue;
      for (int64_t cols : {1, 31, 32, 33, 64, 65, 192}) {
        SCOPED_TRACE(
            fmt::format("{}, {}, {} columns", WeightFormatName(format), ValueKindName(kind), cols));
        ExpectSameEmbedding(MakeTable(format, kRows, cols, TestValues(kind, kRows * cols, random)),
                            ids);
      }
    }
    const auto wide = TestValues(ValueKind::kNormal, 3 * 6144, random);
    ExpectSameEmbedding(MakeTable(format, 3, 6144, wide), {2});
  }
}

// The ends of the planes, and scales that are negative, subnormal or as large as a half can be.
TEST(CombineCuda, EmbeddingsOfExtremeTables) {
  HILLSTAR_NEEDS_GPU();
  for (float scale : {0x1p-24f, 0x1.8p-15f, -0.75f, 65504.0f, 0.0f}) {
    for (int hi : {-127, -8, -1, 0, 7, 127}) {
      SCOPED_TRACE(fmt::format("{} * {}", hi, scale));
      if (hi >= -8 && hi <= 7) {
        ExpectSameEmbedding(ConstantTestMatrix(WeightFormat::kW4, 18, 65, hi, 0, scale), {17, 0});
      }
      ExpectSameEmbedding(ConstantTestMatrix(WeightFormat::kW8, 18, 65, hi, 0, scale), {17, 0});
      for (int lo : {-128, 127}) {
        ExpectSameEmbedding(ConstantTestMatrix(WeightFormat::kW15, 18, 65, hi, lo, scale), {17, 0});
      }
    }
  }
}

}  // namespace
}  // namespace hillstar::cuda
