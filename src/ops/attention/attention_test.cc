// Every level against the reference, and what must not change a bit. The meaning is tested in
// attention_exact_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "kv/row_values.h"
#include "ops/attention/attention_test_inputs.h"

namespace hillstar {
namespace {

// What a split of some queries is run on.
struct SplitShape {
  std::vector<int64_t> num_keys;  // of each query
  const int32_t* list = nullptr;
  int64_t first_key = 0;
  int64_t first_head = 0;
  int64_t num_heads = 0;
};

std::string Describe(const AttentionInputs& in, const SplitShape& shape) {
  std::string keys;
  for (int64_t n : shape.num_keys) keys += fmt::format(" {}", n);
  return fmt::format("format {} latent {} rope {} heads {}+{} of {}, keys{} {} {}",
                     int(in.layout().format), in.layout().latent, in.layout().rope,
                     shape.first_head, shape.num_heads, in.heads(), keys,
                     shape.list ? "listed" : "from", shape.first_key);
}

void RunSplit(const CpuKernels& k, const AttentionInputs& in, const SplitShape& shape,
              KernelOutputs& out) {
  const int64_t num_queries = static_cast<int64_t>(shape.num_keys.size());
  const int64_t num_partials = num_queries * in.heads(), padded = in.layout().padded_latent();
  float* values = out.Add<float>("values", num_partials * padded);
  float* largest = out.Add<float>("largest", num_partials);
  float* sum = out.Add<float>("sum", num_partials);
  std::vector<AttentionPartial> partials;
  std::vector<AttentionQuery> queries;
  for (int64_t i = 0; i < num_partials; ++i) {
    partials.push_back({largest[i], sum[i], values + i * padded});
  }
  for (int64_t q = 0; q < num_queries; ++q) {
    queries.push_back(
        in.Query(q, shape.num_keys[static_cast<size_t>(q)], partials.data() + q * in.heads()));
  }
  AttentionScratch scratch(in.layout(), in.heads());
  k.attend_split({in.layout(), in.pages(), shape.list, shape.first_key, queries.data(), num_queries,
                  shape.first_head, shape.num_heads, scratch.data()});
  for (int64_t i = 0; i < num_partials; ++i) {
    largest[i] = partials[static_cast<size_t>(i)].largest;
    sum[i] = partials[static_cast<size_t>(i)].sum;
  }
}

void ExpectSplitAgrees(const AttentionInputs& in, const SplitShape& shape,
                       const std::string& note = "") {
  ExpectLevelsAgree(Describe(in, shape) + note,
                    [&](const CpuKernels& k, KernelOutputs& out) { RunSplit(k, in, shape, out); });
}

SplitShape AllHeads(const AttentionInputs& in, std::vector<int64_t> num_keys) {
  SplitShape shape;
  shape.num_keys = std::move(num_keys);
  shape.num_heads = in.heads();
  return shape;
}

constexpr int64_t kKeys[] = {1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 255, 256};

void ExpectGeometryAgrees(const KvRowLayout& layout, int64_t heads) {
  AttentionInputs in(layout, heads, 600, static_cast<uint64_t>(layout.padded() + heads));
  in.Fill(ValueKind::kNormal, ValueKind::kNormal, 1, 0.5f);
  const std::vector<int32_t> list = in.SparseList();
  ASSERT_GE(list.size(), size_t{256});
  for (int64_t keys : kKeys) {
    SplitShape shape = AllHeads(in, {keys});
    ExpectSplitAgrees(in, shape);
    shape.first_key = 256;
    ExpectSplitAgrees(in, shape);
    shape.first_key = 41;  // across pages
    ExpectSplitAgrees(in, shape);
    shape.list = list.data();
    ExpectSplitAgrees(in, shape);
  }
}

TEST(Attention, EveryLevelGivesTheSameBits) {
  for (KvFormat format : kAllKvFormats) {
    for (int64_t latent : {32, 64, 512}) {
      for (int64_t rope : {8, 64}) {
        for (int64_t heads : {1, 3, 8}) {
          if (latent == 512 && heads == 8) continue;  // slow in the reference, nothing new
          ExpectGeometryAgrees({latent, rope, format}, heads);
        }
      }
    }
  }
}

// A kernel that read every row alike would pass the comparison with a reference that does so too.
TEST(Attention, EveryFormatGivesADifferentResult) {
  std::vector<AlignedVector<float>> results;
  std::vector<int32_t> list(100);
  std::iota(list.begin(), list.end(), 0);
  for (KvFormat format : kAllKvFormats) {
    AttentionInputs in({64, 16, format}, 2, 100, 11);  // the same values in every format
    in.Fill(ValueKind::kNormal, ValueKind::kNormal, 1, 0.5f);
    results.push_back(Attend(ReferenceKernels(), in, 0, list, 2));
    double error = 0, size = 0;
    for (size_t i = 0; i < results[0].size(); ++i) {
      const double exact = double{results[0][i]};
      error += (double{results.back()[i]} - exact) * (double{results.back()[i]} - exact);
      size += exact * exact;
    }
    // q8 rounds a value to 1 / 254 of the row's largest, fp8 to 1 / 16 of itself.
    const double most = format == KvFormat::kQ15 ? 0.0 : format == KvFormat::kQ8 ? 0.03 : 0.12;
    EXPECT_LE(std::sqrt(error / size), most) << int(format);
  }
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[0], results[2]);
  EXPECT_NE(results[1], results[2]);
}

void ExpectQueriesAndHeadsAgree(KvFormat format) {
  AttentionInputs in({64, 16, format}, 6, 300, 1);
  in.Fill(ValueKind::kNormal, ValueKind::kNormal, 8, 0.5f);
  const std::vector<std::vector<int64_t>> lengths = {
      {0},          {0, 0},           {1, 2},
      {65, 64, 63}, {0, 256, 0, 17},  {5, 5, 60},
      {256, 1, 80}, {64, 0, 128, 65}, {1, 2, 3, 4, 5, 6, 7, 8}};
  for (const auto& num_keys : lengths) {
    for (int64_t first = 0; first < 6; ++first) {
      for (int64_t heads = 0; first + heads <= 6; ++heads) {
        SplitShape shape = AllHeads(in, num_keys);
        shape.first_head = first;
        shape.num_heads = heads;
        shape.first_key = 20;
        ExpectSplitAgrees(in, shape);
      }
    }
  }
}

TEST(Attention, QueriesOfDifferentLengthsAndPartsOfTheHeads) {
  for (KvFormat format : kAllKvFormats) ExpectQueriesAndHeadsAgree(format);
}

TEST(Attention, AQueryWithoutKeysWritesNothing) {
  AttentionInputs in({64, 16}, 2, 64, 2);
  in.Fill(ValueKind::kNormal, ValueKind::kNormal, 2, 0.5f);
  for (const CpuKernels* k : AvailableKernels()) {
    std::vector<float> values(4 * 64, -7.0f);
    std::vector<AttentionPartial> partials(4);
    for (size_t i = 0; i < 4; ++i) partials[i] = {-3.0f, -5.0f, &values[i * 64]};
    const AttentionQuery queries[] = {in.Query(0, 0, &partials[0]), in.Query(1, 9, &partials[2])};
    AttentionScratch scratch(in.layout(), in.heads());
    k->attend_split({in.layout(), in.pages(), nullptr, 0, queries, 2, 0, 2, scratch.data()});
    for (size_t h = 0; h < 2; ++h) {
      EXPECT_EQ(partials[h].largest, -3.0f) << k->level;
      EXPECT_EQ(partials[h].sum, -5.0f) << k->level;
    }
    for (size_t i = 0; i < 128; ++i) EXPECT_EQ(values[i], -7.0f) << k->level;
    EXPECT_GT(partials[2].sum, 0.0f) << k->level;
  }
}

TEST(Attention, EveryKindOfValue) {
  for (ValueKind query_kind : kAllValueKinds) {
    for (ValueKind key_kind : kAllValueKinds) {
      // Scores of 1e60 leave f32: the next test's case.
      if (query_kind == ValueKind::kOutlier && key_kind == ValueKind::kOutlier) continue;
      for (KvFormat format : kAllKvFormats) {
        AttentionInputs in({64, 16, format}, 2, 130, 3);
        in.Fill(query_kind, key_kind, 2, 0.1f);
        ExpectSplitAgrees(
            in, AllHeads(in, {130, 70}),
            fmt::format(", {} by {}", ValueKindName(query_kind), ValueKindName(key_kind)));
      }
    }
  }
}

TEST(Attention, ScoresBeyondF32GiveASumThatIsNan) {
  for (int query : {-1, 1}) {
    AttentionInputs in({64, 16}, 1, 70, 4);
    in.FillConstant(query, 1, 0x1p100f, 0x1p100f, 1);
    for (const CpuKernels* k : AvailableKernels()) {
      std::vector<float> values(64);
      AttentionPartial partial{0, 0, values.data()};
      const AttentionQuery q = in.Query(0, 70, &partial);
      AttentionScratch scratch(in.layout(), in.heads());
      k->attend_split({in.layout(), in.pages(), nullptr, 0, &q, 1, 0, 1, scratch.data()});
      EXPECT_TRUE(std::isnan(partial.sum)) << k->level << " query " << query;
    }
  }
}

// A score that is not finite poisons the queries that see its key, at every place of a chunk, and
// no other.
TEST(Attention, ABadKeyIsSeenAtEveryPlace) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (int64_t place = 0; place < kChunkKeys; ++place) {
      AttentionInputs in({16, 4}, 1, kChunkKeys, 9);
      in.Fill(ValueKind::kNormal, ValueKind::kNormal, 2, 1.0f);
      std::memcpy(in.row(place) + in.layout().rope_part().scale_at, &bad, sizeof bad);
      for (const CpuKernels* k : AvailableKernels()) {
        std::vector<float> values(2 * 64);
        AttentionPartial partials[] = {{0, 0, values.data()}, {0, 0, values.data() + 64}};
        const AttentionQuery queries[] = {in.Query(0, place, &partials[0]),
                                          in.Query(1, kChunkKeys, &partials[1])};
        AttentionScratch scratch(in.layout(), in.heads());
        k->attend_split({in.layout(), in.pages(), nullptr, 0, queries, 2, 0, 1, scratch.data()});
        EXPECT_TRUE(std::isfinite(partials[0].sum)) << k->level << " place " << place;
        EXPECT_TRUE(std::isnan(partials[1].sum)) << k->level << " place " << place;
      }
    }
  }
}

// Products of scales that underflow give scores of both signs of zero.
TEST(Attention, VanishingScoresGiveTheSameBits) {
  for (KvFormat format : kAllKvFormats) {
    AttentionInputs in({64, 16, format}, 2, 130, 5);
    in.Fill(ValueKind::kNormal, ValueKind::kNormal, 2, 0x1p-110f);
    for (int64_t pos = 0; pos < 130; ++pos) in.SetScales(pos, 0x1p-90f);
    for (int64_t keys : {1, 2, 3, 5, 17, 64, 130}) {
      ExpectSplitAgrees(in, AllHeads(in, {keys, keys}), ", vanishing");
    }
  }
}

// 512 values of the byte `key`: the products of scores and of values (with the keys' offset) at
// their limits.
void ExpectExact(KvFormat format, int query, int key) {
  AttentionInputs in({512, 512, format}, 1, 128, 6);
  in.FillConstant(query, key, 0x1p-20f, 0x1p-24f, 1);
  ExpectSplitAgrees(in, AllHeads(in, {128}), fmt::format(", q {} key {}", query, key));
  const auto product = [&](const KvRowPart& part) {
    const PlanePair value = RowValue(part, in.row(0), 0);
    return double(512 * query) * (256 * value.hi + value.lo + value.hi);
  };
  const double a = product(in.layout().latent_part()), b = product(in.layout().rope_part());
  EXPECT_LT(std::max(std::fabs(a), std::fabs(b)), 0x1p31);
  std::vector<float> values(512);
  AttentionPartial partial{0, 0, values.data()};
  const AttentionQuery q = in.Query(0, 1, &partial);
  AttentionScratch scratch(in.layout(), in.heads());
  reference::AttendSplit({in.layout(), in.pages(), nullptr, 0, &q, 1, 0, 1, scratch.data()});
  EXPECT_EQ(partial.largest, (static_cast<float>(a) + static_cast<float>(b)) * 0x1p-44f);
}

TEST(Attention, ExtremesOfThePlanesStayExact) {
  for (int query : {-127, 127}) {
    for (int key : {-127, 127}) {
      ExpectExact(KvFormat::kQ15, query, key);
      ExpectExact(KvFormat::kQ8, query, key);
    }
    // 448 has the largest high plane, 30 and 2 the low plane of -128 beside high ones of 8 and 1;
    // -448, -30, -2; and the codes of NaN, which no row holds.
    for (int code : {0x7e, 0x5f, 0x40, 0xfe, 0xdf, 0xc0, 0x7f, 0xff}) {
      ExpectExact(KvFormat::kFp8, query, code);
    }
  }
}

// Every code, in both parts of a row and at every place of a vector.
TEST(Attention, EveryFp8CodeGivesTheSameBits) {
  AttentionInputs in({256, 64, KvFormat::kFp8}, 2, 64, 12);
  in.Fill(ValueKind::kNormal, ValueKind::kNormal, 1, 0.5f);
  for (int64_t pos = 0; pos < 64; ++pos) {
    for (int64_t i = 0; i < 320; ++i) in.row(pos)[i] = static_cast<uint8_t>(i + 5 * pos);
    in.SetScales(pos, 0.01f);
  }
  ExpectSplitAgrees(in, AllHeads(in, {64}), ", every code");
}

// A query's partial results depend neither on its neighbours in the slice nor on the cut of heads.
void ExpectGroupingChangesNoBit(KvFormat format) {
  AttentionInputs in({64, 16, format}, 8, 300, 7);
  in.Fill(ValueKind::kNormal, ValueKind::kNormal, 8, 0.5f);
  std::vector<int32_t> list(300);
  std::iota(list.begin(), list.end(), 0);
  const std::vector<int64_t> num_keys = {3, 64, 65, 100, 129, 200, 255, 256};
  for (const CpuKernels* k : AvailableKernels()) {
    std::vector<float> together(8 * 8 * 64), alone(64);
    std::vector<AttentionPartial> partials;
    std::vector<AttentionQuery> queries;
    for (size_t i = 0; i < 64; ++i) partials.push_back({0, 0, &together[i * 64]});
    for (size_t q = 0; q < 8; ++q) {
      queries.push_back(in.Query(static_cast<int64_t>(q), num_keys[q], &partials[q * 8]));
    }
    AttentionScratch scratch(in.layout(), in.heads());
    k->attend_split(
        {in.layout(), in.pages(), list.data(), 0, queries.data(), 8, 0, 8, scratch.data()});
    for (size_t q = 0; q < 8; ++q) {
      for (int64_t h = 0; h < 8; ++h) {
        std::vector<AttentionPartial> one(8, {0, 0, alone.data()});
        const AttentionQuery query = in.Query(static_cast<int64_t>(q), num_keys[q], one.data());
        k->attend_split({in.layout(), in.pages(), nullptr, 0, &query, 1, h, 1, scratch.data()});
        const AttentionPartial& expected = partials[q * 8 + static_cast<size_t>(h)];
        const AttentionPartial& actual = one[static_cast<size_t>(h)];
        ASSERT_EQ(0, std::memcmp(&actual.largest, &expected.largest, 4)) << k->level;
        ASSERT_EQ(0, std::memcmp(&actual.sum, &expected.sum, 4)) << k->level;
        ASSERT_EQ(0, std::memcmp(alone.data(), expected.values, 64 * 4)) << k->level;
      }
    }
  }
}

TEST(Attention, GroupingChangesNoBit) {
  for (KvFormat format : kAllKvFormats) ExpectGroupingChangesNoBit(format);
}

TEST(Attention, HeadsAtOnceChangeNoBitOfTheWhole) {
  AttentionInputs in({32, 8}, 8, 700, 8);
  in.Fill(ValueKind::kNormal, ValueKind::kNormal, 1, 1.0f);
  std::vector<int32_t> list(700);
  std::iota(list.begin(), list.end(), 0);
  const AlignedVector<float> expected = Attend(ReferenceKernels(), in, 0, list, 8);
  for (const CpuKernels* k : AvailableKernels()) {
    for (int64_t heads : {1, 3, 8}) {
      EXPECT_EQ(Attend(*k, in, 0, list, heads), expected) << k->level << " heads " << heads;
    }
  }
}

// Partial results of some splits: values of 64 floats apart, largest scores `apart` apart.
struct Partials {
  AlignedVector<float> values;
  std::vector<AttentionPartial> partials;

  Partials(int64_t count, int64_t padded, float apart, TestRandom& random)
      : values(TestValues(ValueKind::kNormal, count * padded, random)) {
    for (int64_t i = 0; i < count; ++i) {
      partials.push_back(
          {random.Uniform(-apart, apart), random.Uniform(1, 256), values.data() + i * padded});
    }
  }
};

TEST(MergeSplits, EveryLevelGivesTheSameBits) {
  TestRandom random(1);
  for (int64_t latent : {32, 64, 512}) {
    for (int64_t num_splits : {1, 2, 3, 9}) {
      for (int64_t stride : {1, 3}) {
        for (float apart : {0.0f, 2.0f, 60.0f, 1000.0f}) {
          const Partials p(num_splits * stride, (latent + 63) / 64 * 64, apart, random);
          ExpectLevelsAgree(fmt::format("latent {} splits {} stride {} apart {}", latent,
                                        num_splits, stride, apart),
                            [&](const CpuKernels& k, KernelOutputs& out) {
                              k.merge_splits({p.partials.data(), stride, num_splits, latent,
                                              out.Add<float>("out", latent, 1)});
                            });
        }
      }
    }
  }
}

TEST(MergeSplits, OneSplitIsADivision) {
  TestRandom random(2);
  const Partials p(1, 64, 5.0f, random);
  for (const CpuKernels* k : AvailableKernels()) {
    float out[64];
    k->merge_splits({p.partials.data(), 1, 1, 64, out});
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], p.values[i] / p.partials[0].sum) << k->level;
  }
}

// A split that lies more than 87 below another adds nothing, on either side.
TEST(MergeSplits, AFarLowerSplitVanishes) {
  TestRandom random(3);
  Partials p(2, 64, 0.0f, random);
  for (size_t low : {0u, 1u}) {
    p.partials[low].largest = -100.0f;
    p.partials[1 - low].largest = 0.0f;
    float out[64];
    reference::MergeSplits({p.partials.data(), 1, 2, 64, out});
    const AttentionPartial& other = p.partials[1 - low];
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], other.values[i] / other.sum);
  }
}

}  // namespace
}  // namespace hillstar
