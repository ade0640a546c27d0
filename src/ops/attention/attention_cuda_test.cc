// Attention on a GPU against the reference: splits and their merge as Ops::Attend has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

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
  int64_t num_live = -1;  // -1: all
  int64_t max_keys = 0;   // of the launch; 0: the largest
  bool splits = true;     // may cut contexts
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
    const DeviceArray<uint8_t> scratch(
        AttendScratchBytes(int64_t(num_tokens), bound, heads, shape_.layout));
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
  void CopyQueries(size_t t) {
    const AttentionQuery q = inputs_[t]->Query(0, 1, nullptr);
    const size_t first = t * size_t(shape_.heads), count = size_t(shape_.heads);
    std::copy_n(q.hi, count * size_t(row_), hi_.begin() + int64_t(first) * row_);
    std::copy_n(q.lo, count * size_t(row_), lo_.begin() + int64_t(first) * row_);
    std::copy_n(q.latent_scale, count, latent_scale_.begin() + int64_t(first));
    std::copy_n(q.rope_scale, count, rope_scale_.begin() + int64_t(first));
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

void ExpectSameAsReference(const TestShape& shape) { AttendRun(shape).ExpectSameAsReference(); }

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

}  // namespace
}  // namespace hillstar::cuda
