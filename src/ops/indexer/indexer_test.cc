#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "core/integers.h"
#include "ops/kernel_test.h"

namespace hillstar {
namespace {

// Index keys of some tokens in pages that lie in no order, and the queries of one token.
class IndexInputs {
 public:
  IndexInputs(const IndexKeyLayout& layout, int64_t num_heads, int64_t num_keys, uint64_t seed)
      : random_(seed), layout_(layout), num_heads_(num_heads), num_keys_(num_keys) {
    const int64_t dim = layout.dim;
    const int64_t num_pages = (num_keys + kPageTokens - 1) / kPageTokens;
    for (int64_t p = 0; p < num_pages; ++p) {
      // Bytes of tokens that were never stored.
      memory_.emplace_back(static_cast<size_t>(layout_.page_bytes()), uint8_t{0x5a});
    }
    for (auto& page : memory_) pages_.push_back(page.data());
    for (size_t p = pages_.size(); p > 0; --p) page_ids_.push_back(PageId(p - 1));
    q_hi_.resize(static_cast<size_t>(dim * num_heads));
    q_lo_.resize(q_hi_.size());
    w_.resize(static_cast<size_t>(num_heads));
  }

  PageTable pages() const { return {page_ids_.data(), pages_.data(), 0}; }

  void Fill(ValueKind kind) {
    for (int64_t pos = 0; pos < num_keys_; ++pos) {
      std::vector<int8_t> hi(static_cast<size_t>(layout_.dim)), lo(hi.size());
      const float scale = Quantise(kind, hi.data(), lo.data());
      StoreIndexKey(layout_, pages(), pos, hi.data(), lo.data(), scale);
    }
    for (int64_t h = 0; h < num_heads_; ++h) {
      const float scale = Quantise(kind, &q_hi_[At(h)], &q_lo_[At(h)]);
      w_[static_cast<size_t>(h)] =
          random_.Normal() * scale * 0x1p22f / std::sqrt(float(layout_.dim));
    }
  }
  void FillConstant(int8_t q, int8_t key) { FillConstant(q, q, key, key); }
  void FillConstant(int8_t q_hi, int8_t q_lo, int8_t key_hi, int8_t key_lo) {
    const size_t dim = static_cast<size_t>(layout_.dim);
    const std::vector<int8_t> hi(dim, key_hi), lo(dim, key_lo);
    for (int64_t pos = 0; pos < num_keys_; ++pos) {
      StoreIndexKey(layout_, pages(), pos, hi.data(), lo.data(), 1.0f);
    }
    std::fill(q_hi_.begin(), q_hi_.end(), q_hi);
    std::fill(q_lo_.begin(), q_lo_.end(), q_lo);
    std::fill(w_.begin(), w_.end(), 1 / kIndexUnit);
  }

  IndexScoreSlice Slice(float* scores) const {
    IndexScoreSlice s;
    s.layout = layout_;
    s.pages = pages();
    s.q_hi = q_hi_.data();
    s.q_lo = q_lo_.data();
    s.w = w_.data();
    s.num_heads = num_heads_;
    s.num_panels = num_panels();
    s.scores = scores;
    return s;
  }
  int64_t num_panels() const { return (num_keys_ + kIndexPanelTokens - 1) / kIndexPanelTokens; }
  AlignedVector<float>& w() { return w_; }

  // The score in double precision, and the bound on the reference's error (see the test).
  double Exact(int64_t pos, double* bound) const {
    const uint8_t* panel = pages().panel(layout_, pos);
    const int64_t lane = pos % kIndexPanelTokens;
    float key_scale;
    std::memcpy(&key_scale, panel + layout_.scales_at() + 4 * lane, sizeof key_scale);
    double sum = 0, rounded = 0, omitted = 0;
    for (int64_t h = 0; h < num_heads_; ++h) {
      double dot = 0, left_out = 0;
      for (int64_t i = 0; i < layout_.dim; ++i) {
        const bool two_planes = layout_.num_planes == 2;
        const double key_lo = two_planes ? panel[layout_.low_at(lane, i)] - 128 : 0;
        const double key = (panel[layout_.high_at(lane, i)] - 128) + key_lo / 256;
        const size_t at = At(h) + static_cast<size_t>(i);
        const double q_lo = two_planes ? q_lo_[at] : 0;
        dot += (256.0 * q_hi_[at] + q_lo) * key;
        left_out += q_lo * key_lo / 256;
      }
      const double w = double{w_[static_cast<size_t>(h)]} * double{kIndexUnit};
      sum += w * std::max(dot, 0.0);
      rounded += std::fabs(w * (dot - left_out));
      omitted += std::fabs(w * left_out);
    }
    const double scale = double{key_scale};
    const double heads_of_sum = static_cast<double>(CeilDiv(num_heads_, kIndexSums));
    *bound = scale * ((4 + heads_of_sum) * 0x1p-24 * 1.001 * rounded + omitted);
    return sum * scale;
  }

 private:
  size_t At(int64_t head) const { return static_cast<size_t>(head * layout_.dim); }
  float Quantise(ValueKind kind, int8_t* hi, int8_t* lo) {
    const AlignedVector<float> x = TestValues(kind, layout_.dim, random_);
    return QuantiseRow(x.data(), layout_.dim, hi, lo);
  }

  TestRandom random_;
  IndexKeyLayout layout_;
  int64_t num_heads_, num_keys_;
  std::vector<AlignedVector<uint8_t>> memory_;
  std::vector<uint8_t*> pages_;
  std::vector<PageId> page_ids_;
  AlignedVector<int8_t> q_hi_, q_lo_;
  AlignedVector<float> w_;
};

void ExpectScoresAgree(const IndexInputs& in, const std::string& note) {
  for (int64_t first : {int64_t{0}, int64_t{1}, in.num_panels() - 1}) {
    ExpectLevelsAgree(
        fmt::format("{} from panel {}", note, first), [&](const CpuKernels& k, KernelOutputs& out) {
          IndexScoreSlice s =
              in.Slice(out.Add<float>("scores", in.num_panels() * kIndexPanelTokens, 1));
          s.first_panel = std::min(first, in.num_panels());
          s.num_panels = in.num_panels() - s.first_panel;
          k.index_scores(s);
        });
  }
}

TEST(IndexScores, EveryLevelGivesTheSameBits) {
  for (int64_t planes : {1, 2}) {
    for (int64_t dim : {4, 16, 64, 128}) {
      for (int64_t heads : {1, 3, 8, 32}) {
        for (int64_t keys : {1, 16, 17, 63, 64, 65, 200}) {
          IndexInputs in({dim, planes}, heads, keys, static_cast<uint64_t>(dim * 1000 + heads));
          in.Fill(ValueKind::kNormal);
          ExpectScoresAgree(
              in, fmt::format("{} planes, dim {} heads {} keys {}", planes, dim, heads, keys));
        }
      }
    }
  }
}

TEST(IndexScores, EveryKindOfValue) {
  for (ValueKind kind : kAllValueKinds) {
    for (int64_t planes : {1, 2}) {
      IndexInputs in({128, planes}, 3, 33, 7);
      in.Fill(kind);
      ExpectScoresAgree(in, ValueKindName(kind));
    }
  }
}

// 512 * 127 * 127 * 258 = 2,130,576,384 is the largest product; with the keys' offset it comes
// within 0.01 % of 2^31.
TEST(IndexScores, ExtremesOfThePlanesStayExact) {
  for (int64_t dim : {16, 128, 512}) {
    for (int q : {-127, 127}) {
      for (int key : {-127, 127}) {
        for (int64_t planes : {1, 2}) {
          IndexInputs in({dim, planes}, 2, 16, 1);
          in.FillConstant(static_cast<int8_t>(q), static_cast<int8_t>(key));
          ExpectScoresAgree(in, fmt::format("{} planes, dim {} q {} key {}", planes, dim, q, key));
          AlignedVector<float> scores(16);
          reference::IndexScores(in.Slice(scores.data()));
          const float d = static_cast<float>(dim * q * key * (planes == 2 ? 258 : 256));
          EXPECT_EQ(scores[0], d > 0 ? 2 * d : 0.0f);
        }
      }
    }
  }
}

// The largest sums of products of opposite signs, whose planes' sums have them too.
TEST(IndexScores, OppositePlanesStayExact) {
  for (int64_t dim : {16, 128, 512}) {
    for (int64_t planes : {1, 2}) {
      for (int q : {-127, 127}) {
        IndexInputs in({dim, planes}, 2, 16, 1);
        in.FillConstant(static_cast<int8_t>(q), -128, 127, -128);
        ExpectScoresAgree(in, fmt::format("{} planes, dim {} q {}", planes, dim, q));
      }
    }
  }
}

// A negative weight times a tiny value underflows to -0, which would sort below +0.
TEST(IndexScores, NegativeZeroBecomesPositiveZero) {
  IndexInputs in({16, 2}, kIndexSums, 16, 1);
  in.FillConstant(1, 1);
  for (float& w : in.w()) w = -1e-44f;
  for (const CpuKernels* k : AvailableKernels()) {
    AlignedVector<float> scores(16, 9.0f);
    k->index_scores(in.Slice(scores.data()));
    for (float v : scores) {
      EXPECT_EQ(v, 0.0f) << k->level;
      EXPECT_FALSE(std::signbit(v)) << k->level;
    }
  }
}

TEST(IndexScores, NegativeProductsCountAsZero) {
  IndexInputs in({16, 2}, 2, 16, 1);
  in.FillConstant(1, -1);
  AlignedVector<float> scores(16, 9.0f);
  reference::IndexScores(in.Slice(scores.data()));
  for (float v : scores) EXPECT_EQ(v, 0.0f);
}

// The conversion of the exact integer rounds once; relu moves nothing apart; a head's term then
// meets the fma of its sum, two additions of sums and the product with the key's scale. sum(q_lo
// key_lo) is left out.
TEST(IndexScores, ReferenceIsWithinItsBoundOfDoublePrecision) {
  for (const IndexKeyLayout layout : {IndexKeyLayout{16, 2}, {128, 2}, {16, 1}, {128, 1}}) {
    IndexInputs in(layout, 32, 64, static_cast<uint64_t>(layout.dim));
    in.Fill(ValueKind::kNormal);
    AlignedVector<float> scores(64);
    reference::IndexScores(in.Slice(scores.data()));
    for (int64_t pos = 0; pos < 64; ++pos) {
      double bound;
      const double exact = in.Exact(pos, &bound);
      EXPECT_LE(std::fabs(double{scores[static_cast<size_t>(pos)]} - exact), bound) << pos;
    }
  }
}

}  // namespace
}  // namespace hillstar
