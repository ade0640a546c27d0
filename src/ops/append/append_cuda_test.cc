// Rows of the KV cache and index keys that a GPU appends, against the operations of a CPU with the
// reference's kernels: every byte of every page.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "numerics/e4m3.h"
#include "ops/cuda_step_test.h"

namespace hillstar::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 1e-5f;

// kv: f32 [rows, latent + rope]. The latents of a token that has no norm are zero.
void ExpectSameLatents(const TestStep& step, const KvRowLayout& layout,
                       const AlignedVector<float>& kv, const AlignedVector<float>& weight,
                       TestRandom& random) {
  const TestPages pages(step, layout.page_bytes(), random);
  ReferenceOps reference;
  reference->AppendLatents(step.host(), kv.data(), weight.data(), kEps, layout, pages.host());
  for (int64_t t = 0; t < step.num_live(); ++t) {
    AlignedVector<float> normed(size_t(layout.latent));
    const float* latent = kv.data() + t * (layout.latent + layout.rope);
    if (reference::RmsNorm({latent, weight.data(), nullptr, normed.data(), layout.latent, kEps})) {
      continue;
    }
    std::fill(normed.begin(), normed.end(), 0.0f);
    StoreRowPart(ReferenceKernels(), layout.latent_part(), normed.data(),
                 pages.host().of(t).row(layout, step.host().positions[t]));
  }
  TestContext context{size_t(step.num_rows())};
  const DeviceArray<float> device_kv(kv), device_weight(weight);
  AppendLatents(*context, {step.device(), device_kv.data(), device_weight.data(), kEps, layout,
                           pages.device()});
  EXPECT_EQ(context.bad(), reference.TakeBad(step.num_rows()));
  EXPECT_EQ(pages.FirstDifference(), "");
}

// k: f32 [rows, dim]. The key of a token that has no norm is zero.
void ExpectSameIndexKeys(const TestStep& step, const IndexKeyLayout& layout,
                         const AlignedVector<float>& k, TestRandom& random) {
  const TestPages pages(step, layout.page_bytes(), random);
  const AlignedVector<float> weight = TestValues(ValueKind::kNormal, layout.dim, random);
  const AlignedVector<float> bias = TestValues(ValueKind::kNormal, layout.dim, random);
  const int64_t rope = 2 * step.host().half_rope;
  ReferenceOps reference;
  reference->AppendIndexKeys(step.host(), k.data(), {weight.data(), bias.data(), kEps, rope},
                             layout, pages.host());
  const AlignedVector<int8_t> zeros(size_t(layout.dim));
  for (int64_t t = 0; t < step.num_live(); ++t) {
    AlignedVector<float> normed(zeros.size());
    const NormSlice norm{
        k.data() + t * layout.dim, weight.data(), bias.data(), normed.data(), layout.dim, kEps};
    if (reference::LayerNorm(norm)) continue;
    StoreIndexKey(layout, pages.host().of(t), step.host().positions[t], zeros.data(), zeros.data(),
                  0.0f);
  }
  TestContext context{size_t(step.num_rows())};
  const DeviceArray<float> device_k(k), device_weight(weight), device_bias(bias);
  AppendIndexKeys(*context, {step.device(),
                             device_k.data(),
                             {device_weight.data(), device_bias.data(), kEps, rope},
                             layout,
                             pages.device()});
  EXPECT_EQ(context.bad(), reference.TakeBad(step.num_rows()));
  EXPECT_EQ(pages.FirstDifference(), "");
}

TEST(AppendCuda, LatentsEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(1);
  for (const auto& [latent, rope, size] : {std::tuple<int64_t, int64_t, StepSize>{512, 64, {3, 4}},
                                           {40, 6, {17, 17}},
                                           {40, 6, {9, 16}},
                                           {1, 2, {1, 1}},
                                           {257, 66, {2, 2}},
                                           {64, 64, {0, 2}},
                                           {960, 64, {1, 1}}}) {
    const TestStep step(TestTokens(size.live), size.rows, rope / 2, random);
    for (KvFormat format : kAllKvFormats) {
      const KvRowLayout layout{latent, rope, format};
      for (ValueKind kind : kAllValueKinds) {
        SCOPED_TRACE(fmt::format("{}, {}, latent {} + {}, {} of {} tokens", KvFormatName(format),
                                 ValueKindName(kind), latent, rope, size.live, size.rows));
        ExpectSameLatents(step, layout, TestValues(kind, size.rows * (latent + rope), random),
                          TestValues(ValueKind::kNormal, latent, random), random);
      }
    }
  }
}

// A position 0 leaves the rope part as it is: every e4m3 code's neighbourhood, and halves of steps
// of the planes.
TEST(AppendCuda, TiesGoToTheEvenCode) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(2);
  AlignedVector<float> codes, halves;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float tie = (E4m3ToFloat(code) + E4m3ToFloat(uint8_t(code + 1))) / 2;
    for (float v :
         {E4m3ToFloat(code), tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 500.0f)}) {
      codes.push_back(codes.size() % 2 ? -v : v);
    }
  }
  codes.resize(510, -0.0f);
  codes.insert(codes.end(), {kE4m3Max, -kE4m3Max});
  for (int i = 0; i < 510; ++i) halves.push_back(float(i % 255) * (i % 2 ? -0.5f : 0x1p-9f));
  halves.insert(halves.end(), {127.0f, -127.0f});
  const int64_t rope = int64_t(codes.size());
  const TestStep step({{0, 0}, {1, 0}}, 2, rope / 2, random);
  AlignedVector<float> kv(size_t(2 * (1 + rope)), 1.0f);
  std::copy(codes.begin(), codes.end(), kv.begin() + 1);
  std::copy(halves.begin(), halves.end(), kv.begin() + 2 + rope);
  for (KvFormat format : kAllKvFormats) {
    SCOPED_TRACE(KvFormatName(format));
    ExpectSameLatents(step, {1, rope, format}, kv, {1.0f}, random);
  }
}

TEST(AppendCuda, LatentsThatAreNotFiniteAreNoted) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(3);
  constexpr int64_t kLatent = 70, kRope = 6, kWidth = kLatent + kRope;
  const TestStep step(TestTokens(9), 11, kRope / 2, random);
  AlignedVector<float> kv = TestValues(ValueKind::kNormal, 11 * kWidth, random);
  AlignedVector<float> weight = TestValues(ValueKind::kNormal, kLatent, random);
  weight[5] = 3e38f;
  for (int64_t t = 0; t < 11; ++t) kv[size_t(t * kWidth + 5)] = 0.0f;
  kv[1 * kWidth + 69] = kNaN;
  kv[2 * kWidth + 0] = -kInfinity;
  kv[3 * kWidth + 1] = 1e25f;       // its square is not finite
  kv[4 * kWidth + 5] = 100.0f;      // times its weight: not finite
  kv[5 * kWidth + kLatent] = kNaN;  // rope part alone
  kv[7 * kWidth + 75] = kInfinity;  // both parts
  kv[7 * kWidth + 3] = kInfinity;
  kv[9 * kWidth] = kNaN;  // of a token that is not there
  for (KvFormat format : kAllKvFormats) {
    SCOPED_TRACE(KvFormatName(format));
    ExpectSameLatents(step, {kLatent, kRope, format}, kv, weight, random);
  }
}

TEST(AppendCuda, IndexKeysEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(4);
  for (const auto& [dim, rope, size] : {std::tuple<int64_t, int64_t, StepSize>{128, 64, {3, 4}},
                                        {16, 6, {17, 17}},
                                        {48, 6, {9, 16}},
                                        {16, 16, {1, 1}},
                                        {512, 2, {2, 2}},
                                        {32, 4, {0, 2}}}) {
    const TestStep step(TestTokens(size.live), size.rows, rope / 2, random);
    for (int64_t num_planes : {1, 2}) {
      for (ValueKind kind : kAllValueKinds) {
        SCOPED_TRACE(fmt::format("{} planes of {}, {}, rope {}, {} of {} tokens", num_planes, dim,
                                 ValueKindName(kind), rope, size.live, size.rows));
        ExpectSameIndexKeys(step, {dim, num_planes}, TestValues(kind, size.rows * dim, random),
                            random);
      }
    }
  }
}

TEST(AppendCuda, IndexKeysThatAreNotFiniteAreNoted) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(5);
  constexpr int64_t kDim = 32;
  const TestStep step(TestTokens(6), 8, 3, random);
  AlignedVector<float> k = TestValues(ValueKind::kNormal, 8 * kDim, random);
  k[1 * kDim + 31] = kNaN;
  k[2 * kDim] = -kInfinity;
  k[3 * kDim + 1] = 1e25f;  // its square is not finite
  k[5 * kDim + 2] = 3e38f;  // its sum
  k[5 * kDim + 3] = 3e38f;
  k[7 * kDim] = kNaN;  // of a token that is not there
  for (int64_t num_planes : {1, 2}) ExpectSameIndexKeys(step, {kDim, num_planes}, k, random);
}

}  // namespace
}  // namespace hillstar::cuda
