// KV rows in pages, queries, and the slices over them, for the tests of attention.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/kernel_test.h"

namespace hillstar {

// Keys of one sequence, in pages that lie in no order, and queries of all their heads.
class AttentionInputs {
 public:
  AttentionInputs(const KvRowLayout& layout, int64_t heads, int64_t num_keys, uint64_t seed)
      : random_(seed), layout_(layout), heads_(heads), num_keys_(num_keys) {
    for (int64_t p = 0; p * kPageTokens < num_keys; ++p) {
      memory_.emplace_back(static_cast<size_t>(layout_.page_bytes()), uint8_t{0x5a});
    }
    for (auto& page : memory_) pages_.push_back(page.data());
    for (size_t p = pages_.size(); p > 0; --p) page_ids_.push_back(PageId(p - 1));
  }

  // `spread` multiplies the scores: small ones give a flat softmax, large ones a peaked one.
  void Fill(ValueKind query_kind, ValueKind key_kind, int64_t num_queries, float spread) {
    for (int64_t pos = 0; pos < num_keys_; ++pos) {
      uint8_t* row = this->row(pos);
      StorePart(key_kind, layout_.latent_part(), row);
      StorePart(key_kind, layout_.rope_part(), row);
    }
    ResizeQueries(num_queries);
    for (size_t h = 0; h < latent_scale_.size(); ++h) {
      int8_t* hi = &q_hi_[h * static_cast<size_t>(layout_.padded())];
      int8_t* lo = &q_lo_[h * static_cast<size_t>(layout_.padded())];
      const float factor = 0x1p-8f * spread;
      const int64_t latent = layout_.padded_latent();
      latent_scale_[h] = Quantise(query_kind, layout_.latent, latent, hi, lo) * factor;
      rope_scale_[h] =
          Quantise(query_kind, layout_.rope, layout_.padded_rope(), hi + latent, lo + latent) *
          factor;
    }
  }
  // Every plane of every query holds `query`, every byte of values in every row `key`.
  void FillConstant(int query, int key, float key_scale, float query_scale, int64_t num_queries) {
    for (int64_t pos = 0; pos < num_keys_; ++pos) {
      std::memset(row(pos), key, static_cast<size_t>(layout_.value_bytes()));
      SetScales(pos, key_scale);
    }
    ResizeQueries(num_queries);
    std::fill(q_hi_.begin(), q_hi_.end(), static_cast<int8_t>(query));
    std::fill(q_lo_.begin(), q_lo_.end(), static_cast<int8_t>(query));
    std::fill(latent_scale_.begin(), latent_scale_.end(), query_scale);
    std::fill(rope_scale_.begin(), rope_scale_.end(), query_scale);
  }

  void SetScales(int64_t pos, float scale) {
    std::memcpy(row(pos) + layout_.latent_part().scale_at, &scale, sizeof scale);
    std::memcpy(row(pos) + layout_.rope_part().scale_at, &scale, sizeof scale);
  }

  const KvRowLayout& layout() const { return layout_; }
  int64_t heads() const { return heads_; }
  int64_t num_pages() const { return int64_t(page_ids_.size()); }
  PageTable pages() const { return {page_ids_.data(), pages_.data(), 0}; }
  uint8_t* row(int64_t pos) const { return pages().row(layout_, pos); }
  AttentionQuery Query(int64_t query, int64_t num_keys, AttentionPartial* out) const {
    const int64_t first = query * heads_;
    return {q_hi_.data() + first * layout_.padded(),
            q_lo_.data() + first * layout_.padded(),
            latent_scale_.data() + first,
            rope_scale_.data() + first,
            num_keys,
            out};
  }
  // Distinct positions in ascending order, about every second one.
  std::vector<int32_t> SparseList() {
    std::vector<int32_t> list;
    for (int64_t pos = 0; pos < num_keys_; ++pos) {
      if (random_.Below(2)) list.push_back(static_cast<int32_t>(pos));
    }
    return list;
  }

 private:
  void ResizeQueries(int64_t num_queries) {
    latent_scale_.resize(static_cast<size_t>(num_queries * heads_));
    rope_scale_.resize(latent_scale_.size());
    q_hi_.resize(latent_scale_.size() * static_cast<size_t>(layout_.padded()));
    q_lo_.resize(q_hi_.size());
  }
  float Quantise(ValueKind kind, int64_t n, int64_t padded, int8_t* hi, int8_t* lo) {
    const AlignedVector<float> x = TestValues(kind, n, random_);
    float scale = 0;
    EXPECT_TRUE(reference::QuantiseRow({x.data(), n, padded, hi, lo, &scale}));
    return scale;
  }
  void StorePart(ValueKind kind, const KvRowPart& part, uint8_t* row) {
    const AlignedVector<float> x = TestValues(kind, part.num_values, random_);
    float scale = 0;
    if (part.format == PartFormat::kE4m3) {
      EXPECT_TRUE(
          reference::EncodeE4m3({x.data(), part.num_values, part.padded, row + part.at, &scale}));
    } else {
      int8_t* hi = reinterpret_cast<int8_t*>(row + part.at);
      int8_t* lo = part.format == PartFormat::kTwoPlanes ? hi + part.padded : nullptr;
      EXPECT_TRUE(reference::QuantiseRow({x.data(), part.num_values, part.padded, hi, lo, &scale}));
    }
    std::memcpy(row + part.scale_at, &scale, sizeof scale);
  }

  TestRandom random_;
  KvRowLayout layout_;
  int64_t heads_, num_keys_;
  std::vector<AlignedVector<uint8_t>> memory_;
  std::vector<uint8_t*> pages_;
  std::vector<PageId> page_ids_;
  AlignedVector<int8_t> q_hi_, q_lo_;
  AlignedVector<float> latent_scale_, rope_scale_;
};

// The scratch of a split, with a canary behind it.
class AttentionScratch {
 public:
  AttentionScratch(const KvRowLayout& layout, int64_t num_heads)
      : used_(static_cast<size_t>(AttentionScratchBytes(layout, num_heads))),
        bytes_(used_ + 256, kPoisonByte) {}
  ~AttentionScratch() {
    for (size_t i = used_; i < bytes_.size(); ++i) {
      EXPECT_EQ(bytes_[i], kPoisonByte) << "byte " << i - used_ << " behind the scratch";
    }
  }
  uint8_t* data() { return bytes_.data(); }

 private:
  size_t used_;
  AlignedVector<uint8_t> bytes_;
};

// A whole attention of one query over `list`: splits of 256 keys, each in slices of at most
// `heads_at_once` heads, then the merge. Returns f32 [heads, latent].
inline AlignedVector<float> Attend(const CpuKernels& k, const AttentionInputs& in, int64_t query,
                                   const std::vector<int32_t>& list, int64_t heads_at_once) {
  const int64_t num_keys = static_cast<int64_t>(list.size()), heads = in.heads();
  const int64_t num_splits = (num_keys + kSplitKeys - 1) / kSplitKeys;
  const size_t padded = static_cast<size_t>(in.layout().padded_latent());
  AlignedVector<float> values(static_cast<size_t>(num_splits * heads) * padded);
  std::vector<AttentionPartial> partials(static_cast<size_t>(num_splits * heads));
  for (size_t i = 0; i < partials.size(); ++i) partials[i].values = values.data() + i * padded;
  AttentionScratch scratch(in.layout(), heads);
  for (int64_t split = 0; split < num_splits; ++split) {
    const int64_t first = split * kSplitKeys;
    const AttentionQuery q =
        in.Query(query, std::min(kSplitKeys, num_keys - first), &partials[size_t(split * heads)]);
    AttentionSplit s{in.layout(), in.pages(), list.data() + first, 0, &q, 1};
    s.scratch = scratch.data();
    for (s.first_head = 0; s.first_head < heads; s.first_head += heads_at_once) {
      s.num_heads = std::min(heads_at_once, heads - s.first_head);
      k.attend_split(s);
    }
  }
  AlignedVector<float> out(static_cast<size_t>(heads * in.layout().latent));
  for (int64_t h = 0; h < heads; ++h) {
    k.merge_splits({&partials[static_cast<size_t>(h)], heads, num_splits, in.layout().latent,
                    out.data() + h * in.layout().latent});
  }
  return out;
}

}  // namespace hillstar
