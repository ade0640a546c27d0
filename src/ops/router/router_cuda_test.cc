// Float layers, the choice of experts and rows by expert on a GPU against the reference.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "ops/cuda_step_test.h"

namespace hillstar::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct FloatShape {
  int64_t rows, cols, tokens;
  int64_t first_row = 0;
};

void ExpectSameLayer(const FloatShape& shape, const AlignedVector<float>& w,
                     const AlignedVector<float>& x) {
  SCOPED_TRACE(fmt::format("[{}, {}] from row {}, {} tokens", shape.rows, shape.cols,
                           shape.first_row, shape.tokens));
  const int64_t y_stride = shape.rows + 1;
  AlignedVector<float> want = Poison<float>(size_t(shape.tokens * y_stride));
  FloatLinearSlice slice{w.data(),     x.data(),        shape.cols,
                         shape.tokens, shape.first_row, shape.rows - shape.first_row,
                         want.data(),  y_stride};
  reference::FloatLinear(slice);
  const TestContext context;
  const DeviceArray<float> device_w(w), device_x(x), y(want.size());
  slice.w = device_w.data();
  slice.x = device_x.data();
  slice.y = y.data();
  FloatLinear(*context, slice);
  EXPECT_EQ(FirstDifferenceOf(y.Download(), want), "");
}

TEST(RouterCuda, FloatLayersEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(1);
  for (ValueKind kind : kAllValueKinds) {
    SCOPED_TRACE(ValueKindName(kind));
    for (int64_t cols : {1, 40, 255, 256, 257, 300}) {
      for (int64_t tokens : {1, 2, 4, 5, 16, 17, 65}) {
        const int64_t rows = tokens % 2 ? 9 : 5;
        ExpectSameLayer({rows, cols, tokens, tokens == 5 ? 2 : 0},
                        TestValues(kind, rows * cols, random),
                        TestValues(ValueKind::kNormal, tokens * cols, random));
      }
    }
  }
  for (int64_t rows : {1, 7, 8, 16, 17}) {
    for (int64_t tokens : {24, 64}) {
      ExpectSameLayer({rows, 70, tokens}, TestValues(ValueKind::kNormal, rows * 70, random),
                      TestValues(ValueKind::kNormal, tokens * 70, random));
    }
  }
}

TEST(RouterCuda, TheLargeModelsRouter) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(2);
  const AlignedVector<float> w = TestValues(ValueKind::kNormal, 256 * 6144, random);
  const AlignedVector<float> x = TestValues(ValueKind::kNormal, 17 * 6144, random);
  for (int64_t tokens : {1, 2, 17}) {
    ExpectSameLayer({256, 6144, tokens}, w, {x.begin(), x.begin() + tokens * 6144});
  }
}

// Every product underflows to -0, and partials that a short row does not reach stay +0.
TEST(RouterCuda, NegativeUnderflowKeepsItsSign) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t cols : {255, 256, 257, 512, 600}) {
    for (int64_t tokens : {1, 3, 17}) {
      ExpectSameLayer({1, cols, tokens}, AlignedVector<float>(size_t(cols), 1e-30f),
                      AlignedVector<float>(size_t(cols * tokens), -1e-30f));
    }
  }
}

struct ChoiceShape {
  int64_t experts, chosen, tokens;
  bool normalise;
};

// A token whose logits are not finite chooses the first experts, with no weight.
void ExpectSameChoice(const ChoiceShape& shape, const AlignedVector<float>& logits,
                      const AlignedVector<float>& bias) {
  const size_t count = size_t(shape.tokens * shape.chosen);
  AlignedVector<int32_t> experts = Poison<int32_t>(count);
  AlignedVector<float> weights = Poison<float>(count);
  RouterChoice choice{logits.data(), bias.data(), shape.experts,  shape.chosen,  shape.normalise,
                      2.5f,          nullptr,     experts.data(), weights.data()};
  ReferenceOps reference;
  reference->Choose(choice, shape.tokens);
  const std::vector<int32_t> bad = reference.TakeBad(shape.tokens);
  for (size_t i = 0; i < count; ++i) {
    if (bad[i / size_t(shape.chosen)] == 0) continue;
    experts[i] = int32_t(int64_t(i) % shape.chosen);
    weights[i] = 0.0f;
  }
  TestContext context{size_t(shape.tokens)};
  const DeviceArray<float> device_logits(logits), device_bias(bias), device_weights(count);
  const DeviceArray<int32_t> device_experts(count);
  choice.logits = device_logits.data();
  choice.bias = device_bias.data();
  choice.experts = device_experts.data();
  choice.weights = device_weights.data();
  Choose(*context, choice, shape.tokens);
  EXPECT_EQ(context.bad(), bad);
  EXPECT_EQ(FirstDifferenceOf(device_experts.Download(), experts), "");
  EXPECT_EQ(FirstDifferenceOf(device_weights.Download(), weights), "");
}

TEST(RouterCuda, ChoicesEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(3);
  for (const ChoiceShape& shape :
       {ChoiceShape{256, 8, 3, true}, ChoiceShape{5, 3, 17, true}, ChoiceShape{5, 3, 2, false},
        ChoiceShape{1, 1, 1, true}, ChoiceShape{300, 8, 1, false}, ChoiceShape{16, 16, 65, true}}) {
    for (ValueKind kind : kAllValueKinds) {
      SCOPED_TRACE(fmt::format("{}, {} of {} experts, {} tokens", ValueKindName(kind), shape.chosen,
                               shape.experts, shape.tokens));
      const AlignedVector<float> logits = TestValues(kind, shape.tokens * shape.experts, random);
      AlignedVector<float> bias(size_t(shape.experts), 0.0f);
      ExpectSameChoice(shape, logits, bias);
      // Biases of trained models lie close together.
      for (float& b : bias) b = random.Uniform(6.817f, 7.063f);
      ExpectSameChoice(shape, logits, bias);
    }
  }
}

TEST(RouterCuda, TiesGoToTheLowerIndex) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(4);
  for (const ChoiceShape& shape : {ChoiceShape{256, 8, 9, true}, ChoiceShape{5, 3, 17, true}}) {
    for (int64_t values : {1, 2, 3}) {
      AlignedVector<float> logits(size_t(shape.tokens * shape.experts));
      // 1e4 and beyond have one score, as have those below -1e4.
      for (float& v : logits) v = float(random.Below(values)) - 1.0f;
      ExpectSameChoice(shape, logits, AlignedVector<float>(size_t(shape.experts), 0.0f));
      for (float& v : logits) v *= 1e4f + float(random.Below(2));
      ExpectSameChoice(shape, logits, AlignedVector<float>(size_t(shape.experts), 0.0f));
      // A bias that swallows the scores, and scores of zeros of both signs.
      ExpectSameChoice(shape, logits, AlignedVector<float>(size_t(shape.experts), 1e9f));
      ExpectSameChoice(shape, logits, AlignedVector<float>(size_t(shape.experts), -1e9f));
    }
  }
}

TEST(RouterCuda, LogitsThatAreNotFiniteAreNoted) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(5);
  for (const ChoiceShape& shape : {ChoiceShape{300, 8, 6, true}, ChoiceShape{5, 3, 6, false}}) {
    AlignedVector<float> logits =
        TestValues(ValueKind::kNormal, shape.tokens * shape.experts, random);
    logits[size_t(1 * shape.experts)] = kNaN;
    logits[size_t(3 * shape.experts + shape.experts - 1)] = -kInfinity;
    logits[size_t(5 * shape.experts + 2)] = kInfinity;
    ExpectSameChoice(shape, logits, AlignedVector<float>(size_t(shape.experts), 7.0f));
  }
}

// num_chosen different experts for each token, out of every second one where there are enough.
AlignedVector<int32_t> RandomExperts(const ChoiceShape& shape, TestRandom& random) {
  AlignedVector<int32_t> chosen;
  const int64_t step = shape.experts >= 2 * shape.chosen ? 2 : 1;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    std::vector<int32_t> experts;
    for (int64_t e = 0; e < shape.experts; e += step) {
      experts.push_back(int32_t(e));
      std::swap(experts.back(), experts[size_t(random.Below(int64_t(experts.size())))]);
    }
    chosen.insert(chosen.end(), experts.begin(), experts.begin() + shape.chosen);
  }
  return chosen;
}

// The groups of the first `live` tokens, and slots of their own for the others.
void ExpectSameGroups(const ChoiceShape& shape, int64_t live, TestRandom& random) {
  SCOPED_TRACE(fmt::format("{} of {} experts, {} of {} tokens", shape.chosen, shape.experts, live,
                           shape.tokens));
  const size_t pairs = size_t(shape.tokens * shape.chosen);
  AlignedVector<int32_t> experts = RandomExperts(shape, random);
  AlignedVector<int32_t> begin(size_t(shape.experts + 1)), slots(pairs), slot_tokens(pairs);
  StepTokens step;
  step.num_tokens = live;
  ExpertLayer layer;
  layer.num_experts = shape.experts;
  layer.num_chosen = shape.chosen;
  AlignedVector<uint64_t> uses(size_t(shape.experts), uint64_t{0xffffffff});
  const DeviceArray<uint64_t> device_uses(uses);
  layer.uses = uses.data();
  ReferenceOps reference;
  reference->GroupByExpert(experts.data(), step, layer,
                           {begin.data(), slots.data(), slot_tokens.data()});
  EXPECT_EQ(std::accumulate(uses.begin(), uses.end(), uint64_t{0}),
            uint64_t(shape.experts) * 0xffffffff + uint64_t(live * shape.chosen));
  for (size_t i = size_t(live * shape.chosen); i < pairs; ++i) {
    experts[i] = -1;
    slots[i] = int32_t(i);
    slot_tokens[i] = int32_t(int64_t(i) / shape.chosen);
  }
  const TestContext context;
  const DeviceArray<int32_t> device_experts(experts), device_begin(begin.size()),
      device_slots(pairs), device_slot_tokens(pairs);
  const DeviceArray<int32_t> device_live(AlignedVector<int32_t>{int32_t(live)});
  GroupTask task{device_experts.data(),
                 shape.tokens,
                 live == shape.tokens ? nullptr : device_live.data(),
                 shape.experts,
                 shape.chosen,
                 {device_begin.data(), device_slots.data(), device_slot_tokens.data()},
                 device_uses.data()};
  GroupByExpert(*context, task);
  EXPECT_EQ(FirstDifferenceOf(device_begin.Download(), begin), "");
  EXPECT_EQ(FirstDifferenceOf(device_slots.Download(), slots), "");
  EXPECT_EQ(FirstDifferenceOf(device_slot_tokens.Download(), slot_tokens), "");
  EXPECT_EQ(FirstDifferenceOf(device_uses.Download(), uses), "");
  task.uses = nullptr;
  GroupByExpert(*context, task);
  EXPECT_EQ(FirstDifferenceOf(device_uses.Download(), uses), "");
}

TEST(RouterCuda, GroupsEqualTheReference) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(6);
  for (const ChoiceShape& shape :
       {ChoiceShape{256, 8, 1, true}, ChoiceShape{256, 8, 65, true}, ChoiceShape{5, 3, 17, true},
        ChoiceShape{9, 3, 11, true}, ChoiceShape{8, 8, 4, true}, ChoiceShape{1, 1, 33, true},
        ChoiceShape{300, 8, 5, true}}) {
    for (int64_t live : {shape.tokens, shape.tokens / 2, int64_t{0}}) {
      ExpectSameGroups(shape, live, random);
    }
  }
}

// The router, the choice and the groups of one token at once, several times with one ticket.
TEST(RouterCuda, OneTokenIsRoutedAtOnce) {
  HILLSTAR_NEEDS_GPU();
  TestRandom random(7);
  const DeviceArray<int32_t> ticket(AlignedVector<int32_t>{0});
  for (const ChoiceShape& shape :
       {ChoiceShape{256, 8, 1, true}, ChoiceShape{300, 8, 1, false}, ChoiceShape{5, 3, 1, true},
        ChoiceShape{16, 16, 1, true}, ChoiceShape{1, 1, 1, true}}) {
    for (int64_t cols : {1, 257, 6144}) {
      for (bool is_bad : {false, true}) {
        SCOPED_TRACE(fmt::format("{} of {} experts, {} inputs, {}", shape.chosen, shape.experts,
                                 cols, is_bad ? "one NaN" : "finite"));
        const auto w = TestValues(ValueKind::kNormal, shape.experts * cols, random);
        auto x = TestValues(ValueKind::kNormal, cols, random);
        if (is_bad) x[size_t(cols / 2)] = kNaN;
        const auto bias = TestValues(ValueKind::kNormal, shape.experts, random);
        const size_t experts = size_t(shape.experts), chosen = size_t(shape.chosen);
        AlignedVector<uint64_t> uses(experts, uint64_t{0xffffffff});
        const DeviceArray<uint64_t> device_uses(uses);
        AlignedVector<float> logits(experts), weights(chosen);
        AlignedVector<int32_t> ids(chosen), begin(experts + 1), slots(chosen), tokens(chosen);
        RouterChoice choice{logits.data(), bias.data(),     shape.experts,
                            shape.chosen,  shape.normalise, 2.5f,
                            nullptr,       ids.data(),      weights.data()};
        FloatLinearSlice router{w.data(), x.data(),      cols,          1,
                                0,        shape.experts, logits.data(), shape.experts};
        StepTokens step;
        step.num_tokens = 1;
        ExpertLayer layer;
        layer.num_experts = shape.experts;
        layer.num_chosen = shape.chosen;
        layer.uses = uses.data();
        ReferenceOps reference;
        reference->Route(router, choice, step, layer, {begin.data(), slots.data(), tokens.data()});
        const std::vector<int32_t> bad = reference.TakeBad(1);
        EXPECT_EQ(bad[0], is_bad ? 7 : 0);

        TestContext context;
        const DeviceArray<float> device_w(w), device_x(x), device_bias(bias),
            device_logits(experts), device_weights(chosen);
        const DeviceArray<int32_t> device_ids(chosen), device_begin(experts + 1),
            device_slots(chosen), device_tokens(chosen);
        router.w = device_w.data();
        router.x = device_x.data();
        router.y = device_logits.data();
        choice.logits = device_logits.data();
        choice.bias = device_bias.data();
        choice.experts = device_ids.data();
        choice.weights = device_weights.data();
        ASSERT_TRUE(RouteOne(*context, router, choice,
                             {device_begin.data(), device_slots.data(), device_tokens.data()},
                             device_uses.data(), ticket.data()));
        EXPECT_EQ(context.bad(), bad);
        EXPECT_EQ(ticket.Download()[0], 0);
        if (is_bad) continue;
        EXPECT_EQ(FirstDifferenceOf(device_logits.Download(), logits), "");
        EXPECT_EQ(FirstDifferenceOf(device_ids.Download(), ids), "");
        EXPECT_EQ(FirstDifferenceOf(device_weights.Download(), weights), "");
        EXPECT_EQ(FirstDifferenceOf(device_begin.Download(), begin), "");
        EXPECT_EQ(FirstDifferenceOf(device_slots.Download(), slots), "");
        EXPECT_EQ(FirstDifferenceOf(device_tokens.Download(), tokens), "");
        EXPECT_EQ(FirstDifferenceOf(device_uses.Download(), uses), "");
      }
    }
  }
}

}  // namespace
}  // namespace hillstar::cuda
