// Attention on a GPU against the reference: splits and their merge as Ops::Attend has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>

#include "device/cuda/launch.cuh"
#include "hillstar/error.h"
#include "ops/attention/attention_test_inputs.h"
#include "ops/cuda_kernel_test.h"

namespace hillstar::cuda {
namespace {

// A token: keys that it attends to, and whether they are a list.
struct TestToken {
  int64_t num_keys = 0;
  bool dense = true;
};
struct TestShape {
  KvRowLayout layout;
  int64_t heads = 16;
  std::vector<TestToken> tokens;
  int64_t num_live = -1;        // -1: all
  int64_t max_keys = 0;         // of the launch; 0: the largest
  int64_t scratch_splits = -1;  // that there is scratch for; -1: for all
  int num_multiprocessors = 4;
  int shared_bytes = 0;  // 0: the device's
  ValueKind kind = ValueKind::kNormal;
  float spread = 0.01f;
};

// The pages and queries of every token, on the device too.
class AttendRun {
 public:
  explicit AttendRun(const TestShape& shape) : shape_(shape), row_(shape.layout.padded()) {
    TestRandom random(uint64_t(97 * shape.heads + shape.layout.latent));
    const size_t num_tokens = shape.tokens.size(), rows = num_tokens * size_t(shape.heads);
    hi_.resize(rows * size_t(row_));
    lo_.resize(hi_.size());
    latent_scale_.resize(rows);
    rope_scale_.resize(rows);
    for (const TestToken& token : shape.tokens) max_keys_ = std::max(max_keys_, token.num_keys);
    lists_.assign(num_tokens * size_t(max_keys_), -1);
    for (size_t t = 0; t < num_tokens; ++t) AddToken(t, random);
  }
  AttentionInputs& inputs(size_t t) { return *inputs_[t]; }
  // After a change of the inputs' queries.
  void CopyQueries(size_t t) {
    const AttentionQuery q = inputs_[t]->Query(0, 1, nullptr);
    const size_t first = t * size_t(shape_.heads), count = size_t(shape_.heads);
    std::copy_n(q.hi, count * size_t(row_), hi_.begin() + int64_t(first) * row_);
    std::copy_n(q.lo, count * size_t(row_), lo_.begin() + int64_t(first) * row_);
    std::copy_n(q.latent_scale, count, latent_scale_.begin() + int64_t(first));
    std::copy_n(q.rope_scale, count, rope_scale_.begin() + int64_t(first));
  }

  void ExpectSameAsReference() {
    const size_t num_tokens = shape_.tokens.size();
    const size_t live = shape_.num_live < 0 ? num_tokens : size_t(shape_.num_live);
    TestContext context(num_tokens);
    context->num_multiprocessors = shape_.num_multiprocessors;
    if (shape_.shared_bytes > 0) context->shared_bytes = shape_.shared_bytes;
    UploadPages();
    const DeviceArray<int32_t> lists(lists_), counts(counts_);
    const DeviceArray<int64_t> positions(positions_);
    const DeviceArray<int32_t> num_live(std::vector<int32_t>{int32_t(live)});
    const DeviceArray<int8_t> hi(hi_), lo(lo_);
    const DeviceArray<float> latent_scale(latent_scale_), rope_scale(rope_scale_);
    const int64_t heads = shape_.heads, latent = shape_.layout.latent;
    const size_t rows = num_tokens * size_t(heads), groups = rows * size_t(NumGroups(latent));
    const DeviceArray<int8_t> out_hi(groups * kGroup), out_lo(groups * kGroup);
    const DeviceArray<float> out_scale(groups);
    const DeviceArray<int32_t> out_sum(groups);
    const int64_t bound = shape_.max_keys > 0 ? shape_.max_keys : max_keys_;
    size_t scratch_bytes = AttendScratchBytes(int64_t(num_tokens), bound, heads, shape_.layout);
    if (shape_.scratch_splits >= 0) {
      scratch_bytes =
          size_t(shape_.scratch_splits) * AttendScratchBytes(1, 1, heads, shape_.layout);
    }
    const DeviceArray<uint8_t> scratch(scratch_bytes);
    AttendTask task;
    task.num_tokens = int64_t(num_tokens);
    task.live = num_live.data();
    task.positions = positions.data();
    task.max_positions = bound;
    task.queries = {{hi.data(), lo.data(), row_}, latent_scale.data(), rope_scale.data()};
    task.num_heads = heads;
    task.layout = shape_.layout;
    task.pages = {ids_->data(), memory_->data(), 0};
    task.selection = {lists.data(), counts.data(), max_keys_};
    task.out = {latent, out_hi.data(), out_lo.data(), out_scale.data(), out_sum.data()};
    task.scratch = scratch.data();
    task.scratch_bytes = scratch_bytes;
    Attend(*context, task);

    TestPlanes want(int64_t(rows), latent);
    std::vector<int32_t> want_bad(num_tokens, 0);
    for (size_t t = 0; t < live; ++t) {
      const AlignedVector<float> out = Attended(t);
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t row = int64_t(t) * heads + h;
        if (!reference::QuantiseGroups({&out[size_t(h * latent)], want.view.FromRow(row)})) {
          want_bad[t] = 7;
        }
      }
    }
    EXPECT_EQ(context.bad(), want_bad);
    const size_t live_groups = live * size_t(heads * NumGroups(latent));
    ExpectSame(out_hi.Download(), want.hi, live_groups * kGroup, "hi");
    ExpectSame(out_lo.Download(), want.lo, live_groups * kGroup, "lo");
    ExpectSame(out_scale.Download(), want.scale, live_groups, "scale");
    ExpectSame(out_sum.Download(), want.sum, live_groups, "sum");
    scratch.Download();  // checks its canaries
  }

 private:
  template <typename T, typename A>
  static void ExpectSame(const std::vector<T>& got, const std::vector<T, A>& want, size_t count,
                         const char* what) {
    const std::vector<T> live(got.begin(), got.begin() + int64_t(count));
    const std::vector<T> expected(want.begin(), want.begin() + int64_t(count));
    EXPECT_EQ(FirstDifferenceOf(live, expected), "") << what;
    for (size_t i = count; i < got.size(); ++i) {
      ASSERT_TRUE(IsPoison(got[i])) << what << " of a token that is not live";
    }
  }

  void AddToken(size_t t, TestRandom& random) {
    const TestToken& token = shape_.tokens[t];
    // A list takes about every second key.
    const int64_t pages_keys = token.dense ? token.num_keys : 2 * token.num_keys + 40;
    inputs_.push_back(
        std::make_unique<AttentionInputs>(shape_.layout, shape_.heads, pages_keys, random.Next()));
    AttentionInputs& in = *inputs_.back();
    in.Fill(shape_.kind, shape_.kind, 1, shape_.spread);
    positions_.push_back(token.dense ? token.num_keys - 1 : pages_keys - 1);
    counts_.push_back(token.dense ? 0 : int32_t(token.num_keys));
    std::vector<int32_t> list;
    for (int64_t pos = 0; pos < pages_keys && int64_t(list.size()) < token.num_keys; ++pos) {
      const int64_t missing = token.num_keys - int64_t(list.size());
      if (token.dense || pages_keys - pos <= missing || random.Below(2)) {
        list.push_back(int32_t(pos));
      }
    }
    if (!token.dense) std::ranges::copy(list, lists_.begin() + int64_t(t) * max_keys_);
    keys_.push_back(list);
    CopyQueries(t);
  }
  AlignedVector<float> Attended(size_t t) {
    return hillstar::Attend(ReferenceKernels(), *inputs_[t], 0, keys_[t], shape_.heads);
  }

  // All tokens' pages in one table of memory, each token with its list of ids.
  void UploadPages() {
    std::vector<uint8_t*> memory;
    std::vector<const PageId*> ids;
    for (auto& in : inputs_) {
      const PageTable pages = in->pages();
      const int64_t num_pages = in->num_pages();
      std::vector<PageId> of_token;
      for (int64_t p = 0; p < num_pages; ++p) {
        const uint8_t* page = pages.page(p * kPageTokens);
        const size_t bytes = size_t(shape_.layout.page_bytes());
        pages_.push_back(
            std::make_unique<DeviceArray<uint8_t>>(std::vector<uint8_t>(page, page + bytes)));
        of_token.push_back(PageId(memory.size()));
        memory.push_back(pages_.back()->data());
      }
      token_ids_.push_back(std::make_unique<DeviceArray<PageId>>(of_token));
      ids.push_back(token_ids_.back()->data());
    }
    memory_ = std::make_unique<DeviceArray<uint8_t*>>(memory);
    ids_ = std::make_unique<DeviceArray<const PageId*>>(ids);
  }

  TestShape shape_;
  int64_t row_, max_keys_ = 1;
  std::vector<std::unique_ptr<AttentionInputs>> inputs_;
  std::vector<std::vector<int32_t>> keys_;
  std::vector<int64_t> positions_;
  std::vector<int32_t> counts_, lists_;
  std::vector<int8_t> hi_, lo_;
  std::vector<float> latent_scale_, rope_scale_;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> pages_;
  std::vector<std::unique_ptr<DeviceArray<PageId>>> token_ids_;
  std::unique_ptr<DeviceArray<uint8_t*>> memory_;
  std::unique_ptr<DeviceArray<const PageId*>> ids_;
};

constexpr KvFormat kFormats[] = {KvFormat::kQ15, KvFormat::kQ8, KvFormat::kFp8};

// Names of the kernels that are launched while it lives.
class LaunchNames : public LaunchObserver {
 public:
  LaunchNames() { CurrentObserver() = this; }
  ~LaunchNames() override { CurrentObserver() = nullptr; }
  void BeforeLaunch(const char* name, const LaunchShape&, cudaStream_t) override {
    names_.insert(name);
  }
  bool has(const std::string& name) const { return names_.count(name) > 0; }

 private:
  std::set<std::string> names_;
};

// `kernel`: one that the shape is meant for, or none.
void ExpectSameAsReference(const TestShape& shape, const std::string& kernel = "") {
  const LaunchNames launched;
  AttendRun(shape).ExpectSameAsReference();
  EXPECT_TRUE(kernel.empty() || launched.has(kernel)) << kernel;
}

TEST(AttentionCuda, EveryFormatWithAndWithoutLists) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    SCOPED_TRACE(int(format));
    ExpectSameAsReference(
        {{96, 24, format}, 5, {{1, true}, {65, false}, {300, true}, {70, false}}});
  }
}

TEST(AttentionCuda, ManyHeadsOfTheFullSize) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    SCOPED_TRACE(int(format));
    ExpectSameAsReference({{512, 64, format}, 40, {{260, false}}});
  }
}

// A list's length at every edge of chunks and splits.
TEST(AttentionCuda, NumbersOfKeys) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    TestShape shape{{64, 16, format}, 3, {}};
    for (int64_t n : {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 128, 255, 256, 257, 513, 1025}) {
      shape.tokens.push_back({n, n % 2 == 0});
    }
    SCOPED_TRACE(int(format));
    ExpectSameAsReference(shape);     // a block a token
    shape.num_multiprocessors = 100;  // cut into splits
    ExpectSameAsReference(shape);
  }
}

TEST(AttentionCuda, NumbersOfHeads) {
  HILLSTAR_NEEDS_GPU();
  for (int64_t heads : {1, 15, 16, 17, 31, 32, 33, 64}) {
    for (int num_multiprocessors : {1, 4, 1000}) {
      SCOPED_TRACE(fmt::format("{} heads, {} multiprocessors", heads, num_multiprocessors));
      TestShape shape{{128, 64, KvFormat::kQ8}, heads, {{300, true}, {70, false}}};
      shape.num_multiprocessors = num_multiprocessors;
      ExpectSameAsReference(shape);
    }
  }
}

// The largest parts that there may be, and the smallest; as much shared memory as small GPUs have.
TEST(AttentionCuda, Parts) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    for (const auto& [latent, rope] :
         std::vector<std::pair<int64_t, int64_t>>{{512, 512}, {1, 1}, {448, 65}, {130, 128}}) {
      SCOPED_TRACE(fmt::format("format {}, {} + {}", int(format), latent, rope));
      ExpectSameAsReference({{latent, rope, format}, 17, {{70, true}, {260, false}}});
    }
    TestShape shape{{512, 64, format}, 17, {{200, true}}};
    shape.shared_bytes = 99 << 10;
    ExpectSameAsReference(shape);
  }
  TestShape shape{{512, 512, KvFormat::kQ15}, 17, {{20, true}}};
  shape.shared_bytes = 99 << 10;
  EXPECT_THROW(ExpectSameAsReference(shape), Error);
}

// Tokens that are not there are left alone; the launch may be shaped for longer contexts.
TEST(AttentionCuda, FewerTokensAndShorterContextsThanTheLaunchIsShapedFor) {
  HILLSTAR_NEEDS_GPU();
  for (int num_multiprocessors : {1, 100}) {
    for (int64_t live : {0, 1, 3}) {
      TestShape shape{
          {64, 64, KvFormat::kQ8}, 8, {{300, true}, {64, false}, {600, true}, {5, true}}};
      shape.num_live = live;
      shape.max_keys = 5000;
      shape.num_multiprocessors = num_multiprocessors;
      ExpectSameAsReference(shape);
    }
  }
}

// Too little scratch for all: some tokens are split, the others are not.
TEST(AttentionCuda, LittleScratch) {
  HILLSTAR_NEEDS_GPU();
  TestShape shape{{64, 64, KvFormat::kQ8}, 8, {{300, true}, {600, true}, {20, true}, {900, false}}};
  shape.num_multiprocessors = 100;
  for (int64_t splits : {0, 1, 2, 4, 5, 6, 7, 9, 10, 11}) {
    SCOPED_TRACE(splits);
    shape.scratch_splits = splits;
    ExpectSameAsReference(shape);
  }
}

// More splits than the merge finds factors of at once, and than its ring has room for.
TEST(AttentionCuda, LongContexts) {
  HILLSTAR_NEEDS_GPU();
  TestShape shape{{64, 8, KvFormat::kQ8}, 2, {{513 * 256, true}, {80 * 256, true}, {20481, true}}};
  shape.spread = 0.3f;
  shape.num_multiprocessors = 100;
  ExpectSameAsReference(shape);
}

// Many splits of many heads for few multiprocessors: more heads a block, and weights found on their
// own or by those who find scores.
TEST(AttentionCuda, MuchToDo) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    for (int64_t heads : {20, 64, 70}) {
      for (int num_multiprocessors : {6, 9}) {
        SCOPED_TRACE(fmt::format("format {}, {} heads, {} multiprocessors", int(format), heads,
                                 num_multiprocessors));
        TestShape shape{{192, 64, format}, heads, {{2600, true}, {700, false}}};
        if (heads == 70) shape.tokens = {{4500, true}};
        shape.num_multiprocessors = num_multiprocessors;
        ExpectSameAsReference(shape);
      }
    }
  }
}

// Enough splits of many heads to keep every multiprocessor busy with 64 heads at once; with room
// for the rows of three chunks, of less than two, and for none.
TEST(AttentionCuda, ManySplitsOfManyHeads) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    for (int shared_bytes : {0, 200 << 10, 163 << 10, 99 << 10}) {
      for (int64_t heads : {33, 64, 70}) {
        SCOPED_TRACE(
            fmt::format("format {}, {} heads, {} bytes", int(format), heads, shared_bytes));
        TestShape shape{{512, 64, format}, heads, {{1100, true}, {300, false}, {20, true}}};
        if (heads == 64 && shared_bytes != 99 << 10) shape.layout = {450, 65, format};
        shape.num_multiprocessors = heads == 70 ? 10 : 7;
        shape.shared_bytes = shared_bytes;
        shape.spread = 0.1f;
        const bool has_room = shared_bytes == 0;  // as much as an H200
        ExpectSameAsReference(shape, has_room ? "long splits of attention" : "");
      }
    }
  }
}

// As many splits as there are multiprocessors to share them, each with all tiles of heads.
TEST(AttentionCuda, WholeTilesOfHeads) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    for (int64_t heads : {40, 64}) {
      SCOPED_TRACE(fmt::format("format {}, {} heads", int(format), heads));
      TestShape shape{{192, 64, format}, heads, {{2600, true}, {700, false}}};
      shape.num_multiprocessors = 30;
      ExpectSameAsReference(shape, "scores of attention");
    }
  }
}

TEST(AttentionCuda, ABadTokenOfManyHeadsIsNoted) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    for (int64_t bad_key : {0, 63, 300, 599}) {
      for (float bad : {std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
        for (int num_multiprocessors : {2, 7}) {  // a block a token; splits with all heads
          TestShape shape{{64, 64, format}, 40, {{400, true}, {600, true}, {90, true}}};
          shape.num_multiprocessors = num_multiprocessors;
          AttendRun run(shape);
          run.inputs(1).SetScales(bad_key, bad);
          run.ExpectSameAsReference();
        }
      }
    }
  }
}

TEST(AttentionCuda, KindsOfValues) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    for (ValueKind kind : kAllValueKinds) {
      for (float spread : {1e-6f, 0.05f, 30.0f}) {
        SCOPED_TRACE(
            fmt::format("{}, format {}, spread {}", ValueKindName(kind), int(format), spread));
        ExpectSameAsReference({.layout = {128, 32, format},
                               .heads = 4,
                               .tokens = {{300, true}, {80, false}},
                               .kind = kind,
                               .spread = spread});
        ExpectSameAsReference({.layout = {128, 32, format},
                               .heads = 34,
                               .tokens = {{300, true}, {80, false}},
                               .num_multiprocessors = 2,
                               .kind = kind,
                               .spread = spread});
      }
    }
  }
}

// The largest sums, and every code of fp8.
TEST(AttentionCuda, ExtremePlanes) {
  HILLSTAR_NEEDS_GPU();
  for (int key = 0; key < 256; key += 1) {
    const bool is_nan = (key & 0x7f) == 0x7f;
    for (KvFormat format : kFormats) {
      if (format == KvFormat::kFp8 ? is_nan : key != 127 && key != 129) continue;
      SCOPED_TRACE(fmt::format("format {}, key {}", int(format), key));
      TestShape shape{{format == KvFormat::kFp8 ? 64 : 512, 64, format}, 2, {{70, true}}};
      AttendRun run(shape);
      run.inputs(0).FillConstant(key % 2 ? 127 : -127, key, 1e-3f, 1e-9f, 1);
      run.CopyQueries(0);
      run.ExpectSameAsReference();
    }
  }
}

// Scores beyond the floats' range, in one of three tokens.
TEST(AttentionCuda, ABadTokenIsNoted) {
  HILLSTAR_NEEDS_GPU();
  for (int num_multiprocessors : {1, 100}) {
    for (int64_t bad_key : {0, 100, 299}) {
      for (float bad : {std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
        TestShape shape{{64, 64, KvFormat::kQ8}, 8, {{40, true}, {300, true}, {90, true}}};
        shape.num_multiprocessors = num_multiprocessors;
        AttendRun run(shape);
        run.inputs(1).SetScales(bad_key, bad);
        run.ExpectSameAsReference();
      }
    }
  }
}

// Every kernel once, in the smallest shapes.
TEST(AttentionCuda, EveryKernel) {
  HILLSTAR_NEEDS_GPU();
  for (KvFormat format : kFormats) {
    SCOPED_TRACE(int(format));
    const KvRowLayout layout{64, 16, format};
    TestShape shape{layout, 3, {{70, true}, {65, false}}};
    shape.num_multiprocessors = 1;
    ExpectSameAsReference(shape);  // a block a token
    shape.heads = 17;
    ExpectSameAsReference(shape);  // of more heads
    shape = {layout, 3, {{300, false}, {20, true}}};
    shape.num_multiprocessors = 100;
    ExpectSameAsReference(shape);  // splits, whose last block merges them
    shape = {layout, 3, {{20, true}, {3000, true}}};
    shape.num_multiprocessors = 3;
    ExpectSameAsReference(shape);  // a block takes several
    shape = {layout, 20, {{1700, true}}};
    shape.num_multiprocessors = 3;
    ExpectSameAsReference(shape);  // many splits, and a kernel that finds weights
    shape.tokens = {{3000, true}};
    ExpectSameAsReference(shape);  // who finds scores finds weights
    shape = {layout, 33, {{1100, true}}};
    shape.num_multiprocessors = 5;
    ExpectSameAsReference(shape, "long splits of attention");
  }
  TestShape shape{{64, 16, KvFormat::kQ8}, 2, {{4400, true}}};
  shape.num_multiprocessors = 100;
  ExpectSameAsReference(shape);  // so many splits that a kernel merges them
}

}  // namespace
}  // namespace hillstar::cuda
