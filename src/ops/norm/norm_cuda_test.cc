// RMSNorm on a GPU against the reference.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/cuda_kernel_test.h"

namespace hillstar::cuda {
namespace {

void ExpectSameAsReference(ValueKind kind, int64_t rows, int64_t n, bool adds) {
  TestRandom random(uint64_t(7 * rows + n));
  const auto x = TestValues(kind, rows * n, random);
  const auto added = TestValues(ValueKind::kNormal, rows * n, random);
  const auto weight = TestValues(ValueKind::kNormal, n, random);
  AlignedVector<float> sum = x, want(size_t(rows * n));
  if (adds) reference::AddRow(sum.data(), added.data(), rows * n);
  std::vector<int32_t> want_bad(size_t(rows), 0);
  TestPlanes want_planes(rows, n);
  for (int64_t r = 0; r < rows; ++r) {
    const NormSlice slice{
        sum.data() + r * n, weight.data(), nullptr, &want[size_t(r * n)], n, 1e-5f};
    if (!reference::RmsNorm(slice)) want_bad[size_t(r)] = 7;
    if (want_bad[size_t(r)]) continue;
    if (!reference::QuantiseGroups({&want[size_t(r * n)], want_planes.view.FromRow(r)})) {
      want_bad[size_t(r)] = 7;
    }
  }
  TestContext context{size_t(rows)};
  const DeviceArray<float> device_x(x), device_added(added), device_weight(weight), y(x.size()),
      device_sum(x.size());
  const size_t groups = size_t(NumGroups(n));
  const DeviceArray<int8_t> hi(size_t(rows) * groups * kGroup), lo(hi.size());
  const DeviceArray<float> scale(size_t(rows) * groups);
  const DeviceArray<int32_t> group_sum(scale.size());
  NormTask task{device_x.data(),
                adds ? device_added.data() : nullptr,
                {},
                device_sum.data(),
                device_weight.data(),
                1e-5f,
                rows,
                n,
                y.data(),
                {n, hi.data(), lo.data(), scale.data(), group_sum.data()}};
  RmsNorm(*context, task);
  EXPECT_EQ(context.bad(), want_bad);
  if (std::ranges::count(want_bad, 7) > 0) return;
  EXPECT_EQ(FirstDifferenceOf(y.Download(), want), "");
  if (adds) {
    EXPECT_EQ(FirstDifferenceOf(device_sum.Download(), sum), "");
  }
  EXPECT_EQ(FirstDifferenceOf(hi.Download(), want_planes.hi), "");
  EXPECT_EQ(FirstDifferenceOf(lo.Download(), want_planes.lo), "");
  EXPECT_EQ(FirstDifferenceOf(scale.Download(), want_planes.scale), "");
  EXPECT_EQ(FirstDifferenceOf(group_sum.Download(), want_planes.sum), "");
}

// Experts' rows join x before it is normalised.
TEST(NormCuda, MixturesJoinFirst) {
  HILLSTAR_NEEDS_GPU();
  constexpr int64_t kRows = 3, kRanks = 8;
  for (const int64_t n : {1, 65, 384, 2048, 6144, 16384}) {
    for (const bool has_shared : {false, true}) {
      TestRandom random(static_cast<uint64_t>(n));
      const auto x = TestValues(ValueKind::kNormal, kRows * n, random);
      const auto weight = TestValues(ValueKind::kNormal, n, random);
      const auto rows = TestValues(ValueKind::kNormal, kRows * kRanks * n, random);
      const auto weights = TestValues(ValueKind::kNormal, kRows * kRanks, random);
      const auto shared = TestValues(ValueKind::kNormal, kRows * n, random);
      std::vector<int32_t> slots;
      for (int64_t i = 0; i < kRows * kRanks; ++i)
        slots.push_back(int32_t(i * 7 % (kRows * kRanks)));
      AlignedVector<float> sum = x, want(x.size());
      for (int64_t r = 0; r < kRows; ++r) {
        const float* mine[kRanks];
        for (int64_t k = 0; k < kRanks; ++k)
          mine[k] = &rows[size_t(slots[size_t(r * kRanks + k)] * n)];
        reference::WeightedSum({mine, &weights[size_t(r * kRanks)], kRanks,
                                has_shared ? &shared[size_t(r * n)] : nullptr, &sum[size_t(r * n)],
                                n});
        reference::RmsNorm(
            {&sum[size_t(r * n)], weight.data(), nullptr, &want[size_t(r * n)], n, 1e-5f});
      }
      TestContext context{size_t(kRows)};
      const DeviceArray<float> device_x(x), device_weight(weight), device_rows(rows),
          device_weights(weights), device_shared(shared), y(x.size());
      const DeviceArray<int32_t> device_slots(slots);
      NormTask task;
      task.x = task.sum = device_x.data();
      task.mixture = {device_rows.data(), device_slots.data(), device_weights.data(), kRanks,
                      has_shared ? device_shared.data() : nullptr};
      task.weight = device_weight.data();
      task.eps = 1e-5f;
      task.rows = kRows;
      task.n = n;
      task.y = y.data();
      RmsNorm(*context, task);
      EXPECT_EQ(FirstDifferenceOf(y.Download(), want), "") << n;
      EXPECT_EQ(FirstDifferenceOf(device_x.Download(), sum), "") << n;
    }
  }
}

TEST(NormCuda, EqualsTheReference) {
  HILLSTAR_NEEDS_GPU();
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t n : {1, 63, 64, 65, 255, 256, 257, 384, 6144, 16384}) {
      SCOPED_TRACE(std::string(ValueKindName(kind)) + ", n = " + std::to_string(n));
      ExpectSameAsReference(kind, 3, n, n % 2 == 0);
    }
  }
}

}  // namespace
}  // namespace hillstar::cuda
