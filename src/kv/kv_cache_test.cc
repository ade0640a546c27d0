// Pages, the prefix index and sequences over them: who holds what, what is evicted, what is copied.
#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "device/far_test_memory.h"
#include "device/host_device.h"
#include "hillstar/error.h"
#include "kv/sequence_kv.h"

namespace hillstar {
namespace {

KvShape SmallShape() {
  KvShape shape;
  shape.row = {64, 2};
  shape.index = {16};
  shape.num_layers = 3;
  shape.has_index_keys = {true, false, true};
  return shape;
}

// Text number `seed`, of n tokens; texts differ from their first token on.
std::vector<int32_t> Text(int seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t(seed * 1000003 + i * 7 + 1));
  return ids;
}

// On the host's memory, and on one that the host cannot touch.
enum class Where { kHost, kFar };

std::unique_ptr<DeviceMemory> MakeMemory(Where where) {
  if (where == Where::kHost) return std::make_unique<HostMemory>();
  return std::make_unique<FarMemory>();
}

class KvCacheTest : public testing::TestWithParam<Where> {
 protected:
  KvCacheTest() : memory_(MakeMemory(GetParam())), cache_(SmallShape(), *memory_, 16, 7) {}

  // "Computes" rows [first, ids.size()): each row of each layer begins with its token.
  void Compute(SequenceKv& kv, const std::vector<int32_t>& ids, int64_t first) {
    kv.Prepare(first, int64_t(ids.size()));
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (size_t i = size_t(first); i < ids.size(); ++i) {
        const DeviceSpan row{kv.latents(layer).row(SmallShape().row, int64_t(i)), sizeof ids[i]};
        memory_->Write({&row, 1}, reinterpret_cast<const uint8_t*>(&ids[i]));
      }
    }
    kv.Commit(ids);
  }
  bool Holds(const SequenceKv& kv, const std::vector<int32_t>& ids, int64_t count) {
    for (int64_t layer = 0; layer < 3; ++layer) {
      for (int64_t i = 0; i < count; ++i) {
        int32_t id;
        const DeviceSpan row{kv.latents(layer).row(SmallShape().row, i), sizeof id};
        memory_->Read({&row, 1}, reinterpret_cast<uint8_t*>(&id));
        if (id != ids[size_t(i)]) return false;
      }
    }
    return true;
  }

  uint64_t used_bytes() const { return memory_->budget().used(); }

  std::unique_ptr<DeviceMemory> memory_;
  KvCache cache_;
};

INSTANTIATE_TEST_SUITE_P(Memories, KvCacheTest, testing::Values(Where::kHost, Where::kFar),
                         [](const auto& test) {
                           return test.param == Where::kHost ? "Host" : "Far";
                         });

TEST_P(KvCacheTest, MemoryEqualsTheFormula) {
  // Two planes of 64 + 64 bytes, two scales, padding; 2 planes of 16 bytes and a scale.
  const KvShape shape = SmallShape();
  EXPECT_EQ(shape.row.row_bytes(), 272);
  EXPECT_EQ(shape.page_bytes(), 3 * 64 * 272 + 2 * 64 * 36);
  EXPECT_EQ(used_bytes(), 0u);
  SequenceKv kv(cache_);
  for (int64_t n : {1, 63, 64, 65, 127, 128, 129, 300}) {
    kv.Prepare(0, n);
    EXPECT_EQ(kv.num_pages(), (n + 63) / 64);
    EXPECT_EQ(used_bytes(), uint64_t(16 * shape.page_bytes())) << n;  // all fit one slab
  }
}

// Memory comes in slabs for latents and for index keys; the last slab ends with the pages.
TEST(KvCacheMemory, SlabsGrowWithThePages) {
  constexpr size_t kSlab = 1'500'000;
  FarMemory memory(kSlab);
  const MemoryBudget& budget = memory.budget();
  KvShape shape = SmallShape();
  shape.row = {512, 64};
  const int64_t latents = 3 * 64 * 1168, keys = 2 * 64 * 36;
  ASSERT_EQ(shape.page_bytes(), latents + keys);
  const int64_t per_slab = (int64_t(kSlab) + latents - 1) / latents;
  KvCache cache(shape, memory, 25, 0);
  SequenceKv kv(cache);
  for (int64_t pages : {int64_t{1}, per_slab, per_slab + 1, 2 * per_slab, int64_t{25}}) {
    kv.Prepare(0, 64 * pages);
    const int64_t taken = std::min<int64_t>(25, (pages + per_slab - 1) / per_slab * per_slab);
    EXPECT_EQ(budget.used(MemoryTag::kLatentKv), uint64_t(taken * latents)) << pages;
    EXPECT_EQ(budget.used(MemoryTag::kLatentKv), PagePool::LatentBytes(shape, pages, 25, kSlab));
    EXPECT_EQ(budget.used(MemoryTag::kIndexKeys), uint64_t(25 * keys));
    EXPECT_EQ(budget.used(MemoryTag::kIndexKeys), PagePool::IndexBytes(shape, pages, 25, kSlab));
  }
}

TEST_P(KvCacheTest, GrowthMovesNothing) {
  SequenceKv kv(cache_, false);
  kv.Prepare(0, 64);
  const uint8_t* first = kv.latents(0).row(SmallShape().row, 0);
  kv.Prepare(64, 900);
  EXPECT_EQ(kv.latents(0).row(SmallShape().row, 0), first);
  EXPECT_EQ(kv.latents(2).row(SmallShape().row, 899),
            kv.latents(2).page(899) + 3 * SmallShape().row.row_bytes());
}

TEST_P(KvCacheTest, LayersAndIndexKeysLieApart) {
  SequenceKv kv(cache_);
  kv.Prepare(0, 64);
  const KvShape shape = SmallShape();
  EXPECT_EQ(kv.latents(1).page(0) - kv.latents(0).page(0), shape.row.page_bytes());
  EXPECT_EQ(kv.index_keys(2).page(0) - kv.index_keys(0).page(0), shape.index.page_bytes());
}

TEST_P(KvCacheTest, AFullPageIsAdoptedFromARunningSequence) {
  const std::vector<int32_t> ids = Text(1, 200);
  SequenceKv first(cache_), second(cache_);
  Compute(first, ids, 0);
  EXPECT_EQ(second.Adopt(std::span(ids).first(192), 0), 192);
  EXPECT_EQ(cache_.pool().num_used(), 4);  // three shared, one of the first alone
  EXPECT_TRUE(Holds(second, ids, 192));
}

TEST_P(KvCacheTest, OnlyFullPagesAreOffered) {
  for (int64_t n : {63, 64, 65}) {
    KvCache cache(SmallShape(), *memory_, 16, 7);
    const std::vector<int32_t> ids = Text(1, n);
    {
      SequenceKv kv(cache);
      kv.Prepare(0, n);
      kv.Commit(ids);
    }
    SequenceKv other(cache);
    EXPECT_EQ(other.Adopt(ids, 0), n / 64 * 64) << n;
  }
}

TEST_P(KvCacheTest, PagesStayForOthersAndAreTheOldestToGo) {
  for (int text = 1; text <= 8; ++text) {  // 8 texts of two pages fill the cache
    SequenceKv kv(cache_);
    Compute(kv, Text(text, 128), 0);
  }
  EXPECT_EQ(cache_.pool().num_free(), 0);
  EXPECT_EQ(cache_.num_available(), 16);
  {
    SequenceKv again(cache_);  // text 1 is used once more, so text 2 is the oldest
    EXPECT_EQ(again.Adopt(Text(1, 128), 0), 128);
  }
  SequenceKv kv(cache_);
  Compute(kv, Text(9, 64), 0);
  SequenceKv probe(cache_);
  EXPECT_EQ(probe.Adopt(Text(1, 128), 0), 128);
  EXPECT_EQ(probe.Adopt(Text(2, 128), 0), 64);  // its second page went, not its first
  EXPECT_EQ(probe.Adopt(Text(3, 128), 0), 128);
}

TEST_P(KvCacheTest, WhatIsHeldIsNeverEvicted) {
  SequenceKv held(cache_);
  const std::vector<int32_t> ids = Text(1, 64 * 15);
  Compute(held, ids, 0);
  SequenceKv other(cache_);
  Compute(other, Text(2, 64), 0);
  EXPECT_EQ(cache_.num_available(), 0);
  try {
    other.Prepare(64, 65);
    FAIL() << "a seventeenth page";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudget);
    EXPECT_NE(std::string(error.what()).find("16 pages"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(Holds(held, ids, 64 * 15));
}

TEST_P(KvCacheTest, ASharedPageIsCopiedAtTheFirstDivergentToken) {
  const std::vector<int32_t> ids = Text(1, 128);
  std::vector<int32_t> other = ids;
  for (size_t i = 100; i < other.size(); ++i) other[i] = -other[i];
  SequenceKv first(cache_), second(cache_);
  Compute(first, ids, 0);
  EXPECT_EQ(second.Adopt(other, 0), 100);  // a page by reference, 36 rows by a copy
  EXPECT_EQ(cache_.pool().num_used(), 3);
  Compute(second, other, 100);
  EXPECT_TRUE(Holds(first, ids, 128));
  EXPECT_TRUE(Holds(second, other, 128));
  // Within a sequence: what it shares with the index is copied before it is written.
  first.Truncate(70);
  std::vector<int32_t> third = ids;
  for (size_t i = 70; i < third.size(); ++i) third[i] += 5;
  const int64_t used = cache_.pool().num_used();
  first.Prepare(70, 128);
  EXPECT_EQ(cache_.pool().num_used(), used + 1);
  Compute(first, third, 70);
  EXPECT_TRUE(Holds(first, third, 128));
  SequenceKv probe(cache_);
  EXPECT_EQ(probe.Adopt(ids, 0), 128);
  EXPECT_TRUE(Holds(probe, ids, 128));
  EXPECT_EQ(probe.Adopt(third, 0), 128);
  EXPECT_TRUE(Holds(probe, third, 128));
}

TEST_P(KvCacheTest, TwoWhoComputeTheSameShareAfterwards) {
  const std::vector<int32_t> ids = Text(1, 130);
  SequenceKv first(cache_), second(cache_);
  Compute(first, ids, 0);
  Compute(second, ids, 0);
  EXPECT_EQ(cache_.pool().num_used(), 4);
  EXPECT_EQ(first.latents(0).page(0), second.latents(0).page(0));
  EXPECT_NE(first.latents(0).page(128), second.latents(0).page(128));
}

TEST_P(KvCacheTest, ATruncatedTailIsNotSeenAgain) {
  SequenceKv kv(cache_);
  Compute(kv, Text(1, 500), 0);
  kv.Truncate(0);
  EXPECT_EQ(kv.num_pages(), 0);
  const std::vector<int32_t> ids = Text(2, 10);
  Compute(kv, ids, 0);
  EXPECT_EQ(kv.num_pages(), 1);
  EXPECT_TRUE(Holds(kv, ids, 10));
}

TEST_P(KvCacheTest, WhatTheSequenceHasStaysWhereTheIndexHasNoMore) {
  const std::vector<int32_t> ids = Text(1, 100);
  SequenceKv kv(cache_);
  Compute(kv, ids, 0);
  EXPECT_EQ(kv.Adopt(ids, 100), 100);
  EXPECT_TRUE(Holds(kv, ids, 100));
  EXPECT_EQ(cache_.pool().num_used(), 2);
}

TEST_P(KvCacheTest, APrivateSequenceNeitherOffersNorTakes) {
  const std::vector<int32_t> ids = Text(1, 128);
  SequenceKv secret(cache_, false), open(cache_);
  Compute(secret, ids, 0);
  EXPECT_EQ(cache_.index().num_nodes(), 0);
  EXPECT_EQ(open.Adopt(ids, 0), 0);
  Compute(open, ids, 0);
  EXPECT_EQ(secret.Adopt(Text(1, 200), 128), 128);
  EXPECT_NE(secret.latents(0).page(0), open.latents(0).page(0));
}

TEST_P(KvCacheTest, AnAdoptedPageDoesNotEvictItselfForItsCopy) {
  const std::vector<int32_t> ids = Text(1, 64 * 16);
  {
    SequenceKv kv(cache_);
    Compute(kv, ids, 0);
  }
  SequenceKv kv(cache_);  // shares 15 pages and a part of the last: no page is left for the copy
  EXPECT_EQ(kv.Adopt(std::span(ids).first(64 * 15 + 30), 0), 64 * 15);
  EXPECT_TRUE(Holds(kv, ids, 64 * 15));
}

TEST_P(KvCacheTest, WhereNoPageIsLeftForACopyAPageIsWrittenByItsOnlyHolder) {
  const std::vector<int32_t> ids = Text(1, 64 * 16);
  SequenceKv kv(cache_);
  Compute(kv, ids, 0);
  kv.Truncate(64 * 16 - 10);
  std::vector<int32_t> other = ids;
  for (size_t i = ids.size() - 10; i < ids.size(); ++i) other[i] = 5;
  Compute(kv, other, 64 * 16 - 10);
  EXPECT_TRUE(Holds(kv, other, 64 * 16));
  EXPECT_EQ(cache_.index().num_nodes(), 16);
  // Held by another sequence too, it cannot be written.
  SequenceKv second(cache_);
  EXPECT_EQ(second.Adopt(other, 0), 64 * 16);
  second.Truncate(64 * 16 - 10);
  EXPECT_THROW(second.Prepare(64 * 16 - 10, 64 * 16), Error);
  EXPECT_TRUE(Holds(kv, other, 64 * 16));
}

TEST(KvCacheMemory, PagesThatTheSystemHasNoMemoryForAreNoPages) {
  const KvShape shape = SmallShape();
  // Slabs of 2 MB: of the planned pages of some 15 KB there are the first slab's.
  const int64_t planned = 1000;
  HostMemory unlimited;
  KvCache whole(shape, unlimited, planned, 0);
  (void)whole.Take();
  HostMemory memory(unlimited.budget().used() + 100);
  KvCache cache(shape, memory, planned, 0);
  std::vector<int32_t> ids = Text(1, 100);
  std::vector<std::unique_ptr<SequenceKv>> live;
  EXPECT_THROW(
      {
        for (int i = 0; i < planned; ++i) {
          live.push_back(std::make_unique<SequenceKv>(cache));
          live.back()->Prepare(0, 1);
        }
      },
      Error);
  EXPECT_GT(cache.pool().max_pages(), 10);
  EXPECT_LT(cache.pool().max_pages(), planned);
  EXPECT_EQ(cache.num_available(), 0);
  live.erase(live.begin(), live.begin() + 3);
  EXPECT_EQ(cache.num_available(), 3);
  SequenceKv kv(cache);
  kv.Prepare(0, 3 * 64);
  EXPECT_EQ(cache.num_available(), 0);
}

// Bytes of a page of rows that differ everywhere.
std::vector<uint8_t> SomePages(int64_t num_pages, uint8_t seed) {
  std::vector<uint8_t> bytes(size_t(num_pages * SmallShape().page_bytes()));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = uint8_t(seed + i * 31 + (i >> 8));
  return bytes;
}

std::vector<uint8_t> PageOf(const SequenceKv& kv, int64_t i) {
  std::vector<uint8_t> page(size_t(SmallShape().page_bytes()));
  kv.ReadPage(i, page);
  return page;
}

TEST_P(KvCacheTest, PagesComeBackAsTheyWereWritten) {
  const auto page_bytes = size_t(SmallShape().page_bytes());
  const std::vector<uint8_t> bytes = SomePages(4, 3);
  SequenceKv kv(cache_);
  kv.Prepare(0, 5 * 64);
  kv.WritePages(0, std::span(bytes).first(3 * page_bytes));
  kv.WritePages(4, std::span(bytes).subspan(3 * page_bytes));
  const auto* far = dynamic_cast<FarMemory*>(memory_.get());
  EXPECT_EQ(far ? far->num_writes : 2, 2);
  for (const int64_t page : {0, 1, 2, 4}) {
    const auto want =
        bytes.begin() + std::ptrdiff_t(size_t(std::min<int64_t>(page, 3)) * page_bytes);
    EXPECT_TRUE(std::ranges::equal(PageOf(kv, page), std::span(want, page_bytes))) << page;
  }
  EXPECT_EQ(PageOf(kv, 3), std::vector<uint8_t>(page_bytes, 0));
}

// What a sequence adopts of the inside of a page is a copy of all layers' rows and index keys.
TEST_P(KvCacheTest, ACopyInsideAPageHasAllOfItsRows) {
  const std::vector<int32_t> ids = Text(1, 128);
  const std::vector<uint8_t> bytes = SomePages(2, 5);
  const auto page_bytes = size_t(SmallShape().page_bytes());
  SequenceKv first(cache_), second(cache_);
  first.Prepare(0, 128);
  first.WritePages(0, bytes);
  first.Commit(ids);
  std::vector<int32_t> other = ids;
  other.back() = -1;
  EXPECT_EQ(second.Adopt(other, 0), 127);
  EXPECT_EQ(second.pages()[0], first.pages()[0]);
  EXPECT_NE(second.pages()[1], first.pages()[1]);
  EXPECT_TRUE(std::ranges::equal(PageOf(second, 1), std::span(bytes).subspan(page_bytes)));
}

TEST_P(KvCacheTest, PagesAreNamedByTheirAddresses) {
  SequenceKv kv(cache_);
  kv.Prepare(0, 200);
  ASSERT_EQ(kv.pages().size(), 4u);
  const PagePool& pool = cache_.pool();
  for (int64_t i = 0; i < 4; ++i) {
    const auto page = size_t(kv.pages()[size_t(i)]);
    EXPECT_EQ(pool.latent_memory()[page], kv.latents(0).page(i * 64));
    EXPECT_EQ(pool.index_memory()[page], kv.index_keys(0).page(i * 64));
  }
}

TEST_P(KvCacheTest, EveryListOfPagesHasAVersionOfItsOwn) {
  const std::vector<int32_t> ids = Text(1, 200);
  SequenceKv first(cache_), second(cache_);
  std::vector<uint64_t> seen = {first.version()};
  const auto expect_new = [&](const SequenceKv& kv) {
    EXPECT_EQ(std::ranges::count(seen, kv.version()), 0);
    seen.push_back(kv.version());
  };
  const auto expect_same = [&](const SequenceKv& kv) { EXPECT_EQ(kv.version(), seen.back()); };
  expect_new(second);
  Compute(first, ids, 0);
  expect_new(first);
  first.Prepare(200, 230);  // in the last page
  first.Truncate(193);
  expect_same(first);
  Compute(second, ids, 0);  // three of its pages become the first one's
  expect_new(second);
  second.Truncate(128);
  expect_new(second);
  second.Truncate(100);
  expect_same(second);
  second.Prepare(100, 101);  // a copy of a shared page
  expect_new(second);
  second.Truncate(0);
  expect_new(second);
  second.Truncate(0);
  expect_same(second);
  EXPECT_EQ(second.Adopt(std::span(ids).first(100), 0), 100);
  expect_new(second);
}

// Sequences that grow, diverge, go back and end at random, over texts with common beginnings, in a
// cache that is always short of pages. Every sequence must always hold its own rows.
TEST_P(KvCacheTest, ManySequencesAtRandom) {
  std::mt19937 random(3);
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  struct Live {
    std::unique_ptr<SequenceKv> kv;
    std::vector<int32_t> ids;
  };
  std::vector<Live> live;
  int64_t refusals = 0, adopted = 0;
  for (int step = 0; step < 6000; ++step) {
    if (live.size() < 5 && below(3) == 0) {
      live.push_back({std::make_unique<SequenceKv>(cache_), {}});
      std::vector<int32_t> ids = Text(int(below(3)), 64 * (1 + below(4)) + below(64));
      for (size_t i = size_t(below(int64_t(ids.size()))); i < ids.size(); ++i) ids[i] += 1;
      const int64_t held = live.back().kv->Adopt(ids, 0);
      adopted += held;
      live.back().ids.assign(ids.begin(), ids.begin() + held);
    } else if (!live.empty()) {
      const auto which = size_t(below(int64_t(live.size())));
      Live& one = live[which];
      const int64_t action = below(8);
      if (action == 0) {
        live.erase(live.begin() + std::ptrdiff_t(which));
      } else if (action <= 2) {
        const int64_t n = below(int64_t(one.ids.size()) + 1);
        one.kv->Truncate(n);
        one.ids.resize(size_t(n));
      } else {
        std::vector<int32_t> ids = one.ids;
        const std::vector<int32_t> more = Text(int(below(3)), 1 + below(100));
        ids.insert(ids.end(), more.begin(), more.end());
        try {
          Compute(*one.kv, ids, int64_t(one.ids.size()));
          one.ids = ids;
        } catch (const Error&) {
          one.kv->Truncate(int64_t(one.ids.size()));
          ++refusals;
        }
      }
    }
    for (const Live& one : live) ASSERT_TRUE(Holds(*one.kv, one.ids, int64_t(one.ids.size())));
    ASSERT_LE(cache_.pool().num_used(), cache_.pool().max_pages());
  }
  EXPECT_GT(refusals, 10);
  EXPECT_GT(adopted, 1000);
  live.clear();
  EXPECT_EQ(cache_.num_available(), cache_.pool().max_pages());
  EXPECT_EQ(used_bytes(), uint64_t(cache_.pool().max_pages() * SmallShape().page_bytes()));
}

// 512 sequences of mixed lengths fit the pages of the sum of their lengths, each rounded up.
TEST(KvCacheBudget, FiveHundredAndTwelveSequences) {
  HostMemory memory;
  const KvShape shape = SmallShape();
  int64_t pages = 0;
  const auto length = [](int64_t i) { return 1 + (i * 37) % 700; };
  for (int64_t i = 0; i < 512; ++i) pages += KvShape::PagesOf(length(i));
  KvCache cache(shape, memory, pages, 0);
  std::vector<std::unique_ptr<SequenceKv>> sequences;
  for (int64_t i = 0; i < 512; ++i) {
    sequences.push_back(std::make_unique<SequenceKv>(cache));
    sequences.back()->Prepare(0, length(i));
  }
  EXPECT_EQ(cache.num_available(), 0);
  EXPECT_EQ(memory.budget().used(), uint64_t(pages * shape.page_bytes()));
  EXPECT_THROW(SequenceKv(cache).Prepare(0, 1), Error);
  sequences.clear();
  EXPECT_EQ(cache.num_available(), pages);
}

// With every page under one hash, the comparison of tokens and parents alone decides.
TEST(PrefixIndexTest, ACollisionOfHashesIsNoHit) {
  PrefixIndex index(1, [](std::span<const int32_t>, uint64_t) { return uint64_t{7}; });
  const std::vector<int32_t> a(64, 1), b(64, 2);
  const auto under_root = index.Insert(PrefixIndex::kRoot, a, 0);
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, b), PrefixIndex::kNone);
  const auto child = index.Insert(under_root, b, 1);
  const auto sibling = index.Insert(PrefixIndex::kRoot, b, 2);
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, a), under_root);
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, b), sibling);
  EXPECT_EQ(index.Find(under_root, b), child);
  EXPECT_EQ(index.Find(under_root, a), PrefixIndex::kNone);
  EXPECT_EQ(index.Find(child, b), PrefixIndex::kNone);
  index.Remove(sibling);
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, b), PrefixIndex::kNone);
  EXPECT_EQ(index.Find(under_root, b), child);
}

TEST(PrefixIndexTest, APartOfAPageIsFoundByItsTokens) {
  PrefixIndex index(1);
  const auto node = index.Insert(PrefixIndex::kRoot, std::vector<int32_t>(64, 1), 0);
  std::vector<int32_t> nearly(64, 1);
  nearly[63] = 9;
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, nearly), PrefixIndex::kNone);
  const PrefixIndex::Partial partial = index.FindPartial(PrefixIndex::kRoot, nearly);
  EXPECT_EQ(partial.node, node);
  EXPECT_EQ(partial.num_tokens, 63);
}

}  // namespace
}  // namespace hillstar
