// Queries on a GPU against the operations of a CPU with the reference's kernels.
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "ops/cuda_step_test.h"

namespace hillstar::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Outputs of either kind of query: rows of planes, and one or two floats a row.
struct HostQueries {
  AlignedVector<int8_t> hi, lo;
  AlignedVector<float> first, second;

  HostQueries(int64_t rows, int64_t stride)
      : hi(Poison<int8_t>(size_t(rows * stride))),
        lo(hi),
        first(Poison<float>(size_t(rows))),
        second(first) {}
};
struct DeviceQueries {
  DeviceArray<int8_t> hi, lo;
  DeviceArray<float> first, second;

  DeviceQueries(int64_t rows, int64_t stride)
      : hi(size_t(rows * stride)), lo(hi.size()), first(size_t(rows)), second(first.size()) {}
  void ExpectEqual(const HostQueries& want) const {
    EXPECT_EQ(FirstDifferenceOf(hi.Download(), want.hi), "");
    EXPECT_EQ(FirstDifferenceOf(lo.Download(), want.lo), "");
    EXPECT_EQ(FirstDifferenceOf(first.Download(), want.first), "");
    EXPECT_EQ(FirstDifferenceOf(second.Download(), want.second), "");
  }
};

// latents: f32 [rows, heads, latent]; q: f32 [rows, heads, nope + rope].
void ExpectSameQueries(const TestStep& step, const QueryShape& shape,
                       const AlignedVector<float>& latents, const AlignedVector<float>& q) {
  const int64_t head = shape.nope + shape.rope, heads = shape.num_heads;
  const int64_t stride = KvRowLayout{shape.latent, shape.rope}.padded();
  HostQueries want(step.num_rows() * heads, stride);
  ReferenceOps reference;
  reference->MakeQueries(
      step.host(), latents.data(), {q.data() + shape.nope, heads * head, head}, shape,
      {{want.hi.data(), want.lo.data(), stride}, want.first.data(), want.second.data()});
  TestContext context{size_t(step.num_rows())};
  const DeviceArray<float> device_latents(latents), device_q(q);
  const DeviceQueries got(step.num_rows() * heads, stride);
  MakeQueries(*context,
              {step.device(),
               device_latents.data(),
               {device_q.data() + shape.nope, heads * head, head},
               shape,
               {{got.hi.data(), got.lo.data(), stride}, got.first.data(), got.second.data()}});
  EXPECT_EQ(context.bad(), reference.TakeBad(step.num_rows()));
  got.ExpectEqual(want);
}

// q: f32 [rows, heads, nope + rope], the rope part first; weights: f32 [rows, heads].
void ExpectSameIndexQueries(const TestStep& step, const QueryShape& shape,
                            const AlignedVector<float>& q, const AlignedVector<float>& weights,
                            int64_t max_keys = 0) {
  const int64_t rows = step.num_rows() * shape.num_heads;
  const int64_t stride = RoundUp(shape.nope + shape.rope, 16);
  HostQueries want(rows, stride);
  ReferenceOps reference;
  reference->MakeIndexQueries(step.host(), q.data(), weights.data(), shape, max_keys,
                              {{want.hi.data(), want.lo.data(), stride}, want.first.data()});
  TestContext context{size_t(step.num_rows())};
  const DeviceArray<float> device_q(q), device_weights(weights);
  const DeviceQueries got(rows, stride);
  MakeIndexQueries(*context, {step.device(),
                              device_q.data(),
                              device_weights.data(),
                              shape,
                              max_keys,
                              {{got.hi.data(), got.lo.data(), stride}, got.first.data()}});
  EXPECT_EQ(context.bad(), reference.TakeBad(step.num_rows()));
  got.ExpectEqual(want);
}

TEST(RopeCuda, QueriesEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(1);
  for (const auto& [shape, size] : {std::pair<QueryShape, StepSize>{{64, 192, 64, 512}, {1, 2}},
                                    {{3, 10, 6, 40}, {17, 17}},
                                    {{3, 10, 6, 40}, {9, 16}},
                                    {{5, 128, 64, 65}, {3, 3}},
                                    {{1, 1, 2, 1}, {1, 1}},
                                    {{2, 64, 66, 64}, {2, 5}},
                                    {{2, 64, 64, 128}, {0, 2}}}) {
    const TestStep step(TestTokens(size.live), size.rows, shape.rope / 2, random);
    const int64_t heads = size.rows * shape.num_heads;
    for (ValueKind kind : kAllValueKinds) {
      SCOPED_TRACE(fmt::format("{}, {} heads of {} + {}, latent {}, {} of {} tokens",
                               ValueKindName(kind), shape.num_heads, shape.nope, shape.rope,
                               shape.latent, size.live, size.rows));
      ExpectSameQueries(step, shape, TestValues(kind, heads * shape.latent, random),
                        TestValues(kind, heads * (shape.nope + shape.rope), random));
    }
  }
}

TEST(RopeCuda, IndexQueriesEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(2);
  for (const auto& [shape, size] : {std::pair<QueryShape, StepSize>{{32, 64, 64, 0}, {1, 2}},
                                    {{3, 10, 6, 0}, {17, 17}},
                                    {{3, 26, 6, 0}, {9, 16}},
                                    {{5, 20, 2, 0}, {3, 3}},
                                    {{1, 0, 16, 0}, {1, 1}},
                                    {{2, 0, 128, 0}, {0, 2}}}) {
    const TestStep step(TestTokens(size.live), size.rows, shape.rope / 2, random);
    const int64_t heads = size.rows * shape.num_heads;
    for (ValueKind kind : kAllValueKinds) {
      SCOPED_TRACE(fmt::format("{}, {} heads of {} + {}, {} of {} tokens", ValueKindName(kind),
                               shape.num_heads, shape.nope, shape.rope, size.live, size.rows));
      ExpectSameIndexQueries(step, shape,
                             TestValues(kind, heads * (shape.nope + shape.rope), random),
                             TestValues(kind, heads, random));
    }
  }
}

TEST(RopeCuda, ValuesThatAreNotFiniteAreNoted) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(3);
  const QueryShape shape{3, 10, 6, 40};
  const TestStep step(TestTokens(6), 8, 3, random);
  AlignedVector<float> latents = TestValues(ValueKind::kNormal, 8 * 3 * 40, random);
  AlignedVector<float> q = TestValues(ValueKind::kNormal, 8 * 3 * 16, random);
  latents[1 * 120 + 39] = kNaN;         // token 1, head 0
  latents[2 * 120 + 40] = -kInfinity;   // token 2, head 1
  q[2 * 48 + 2 * 16 + 10] = kInfinity;  // token 2, head 2, in the rope part
  q[3 * 48 + 9] = kNaN;                 // token 3, in the part that is not read
  q[4 * 48 + 1 * 16 + 15] = kNaN;       // token 4, head 1
  latents[7 * 120] = kNaN;              // of a token that is not there
  ExpectSameQueries(step, shape, latents, q);

  AlignedVector<float> weights = TestValues(ValueKind::kNormal, 8 * 3, random);
  weights[0 * 3 + 2] = kInfinity;
  weights[7 * 3] = kInfinity;
  ExpectSameIndexQueries(step, shape, q, weights);
  // Tokens that see few keys are left out, whatever their values are.
  for (int64_t max_keys : {1, 2, 64, 100, 200, 1 << 20}) {
    ExpectSameIndexQueries(step, shape, q, weights, max_keys);
  }
}

}  // namespace
}  // namespace hillstar::cuda
