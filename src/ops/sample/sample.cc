#include "ops/sample/sample.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "ops/kernels.h"

namespace hillstar {
namespace {

constexpr int kBins = 2048;
constexpr int64_t kStretch = 1024;  // ids whose weights are summed before one of them is looked for

// Ids of like logits.
struct Bin {
  uint64_t sum;
  int64_t count;
};

// A row's memory.
struct Scratch {
  uint64_t* weights;  // [n]
  Bin* bins;          // [kBins]
  int32_t* ids;       // [n]

  Scratch(uint8_t* bytes, int64_t n)
      : weights(reinterpret_cast<uint64_t*>(bytes)),
        bins(reinterpret_cast<Bin*>(weights + n)),
        ids(reinterpret_cast<int32_t*>(bins + kBins)) {}
};

// Finds the last of the most likely that is kept: bins first, then the order in one bin.
class Cut {
 public:
  Cut(const float* logits, int64_t n, float largest, double temperature, const Scratch& scratch)
      : logits_(logits),
        n_(n),
        largest_(largest),
        scale_(float(double(kBins) / (-kLeastGap * temperature))),
        s_(scratch) {
    std::fill_n(s_.bins, kBins, Bin{0, 0});
    for (int64_t i = 0; i < n_; ++i) {
      if (s_.weights[i] == 0) continue;
      Bin& bin = s_.bins[BinOf(i)];
      bin.sum += s_.weights[i];
      ++bin.count;
      ++num_candidates_;
    }
  }

  int64_t num_candidates() const { return num_candidates_; }
  // The first `count`; returns their sum. REQUIRES count < num_candidates().
  uint64_t KeepFirst(int64_t count) {
    int64_t before = 0;
    uint64_t sum = 0;
    int b = 0;
    for (; before + s_.bins[b].count < count; ++b) {
      before += s_.bins[b].count;
      sum += s_.bins[b].sum;
    }
    const int64_t in_bin = CollectBin(b);
    std::nth_element(s_.ids, s_.ids + (count - before - 1), s_.ids + in_bin, MoreLikely());
    for (int64_t i = 0; i < count - before; ++i) sum += s_.weights[s_.ids[i]];
    SetLast(s_.ids[count - before - 1]);
    return sum;
  }
  // The fewest whose sum is `least` or more. REQUIRES that there are such.
  void KeepSum(uint64_t least) {
    uint64_t sum = 0;
    int b = 0;
    for (; sum + s_.bins[b].sum < least; ++b) sum += s_.bins[b].sum;
    std::sort(s_.ids, s_.ids + CollectBin(b), MoreLikely());
    const int32_t* id = s_.ids;
    while ((sum += s_.weights[*id]) < least) ++id;
    SetLast(*id);
  }

  float pivot() const { return pivot_; }
  int64_t last_tie() const { return last_tie_; }

 private:
  // Of larger logits it is not larger.
  int BinOf(int64_t i) const {
    const float at = (largest_ - logits_[i]) * scale_;
    return at < float(kBins - 1) ? int(at) : kBins - 1;
  }
  // Its candidates in ascending order.
  int64_t CollectBin(int b) const {
    int64_t count = 0;
    for (int64_t i = 0; count < s_.bins[b].count; ++i) {
      if (s_.weights[i] > 0 && BinOf(i) == b) s_.ids[count++] = int32_t(i);
    }
    return count;
  }
  struct LikelihoodOrder {
    const float* logits;
    bool operator()(int32_t a, int32_t b) const {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    }
  };
  LikelihoodOrder MoreLikely() const { return {logits_}; }
  void SetLast(int32_t id) {
    pivot_ = logits_[id];
    last_tie_ = id;
  }

  const float* logits_;
  const int64_t n_;
  const float largest_, scale_;
  const Scratch s_;
  int64_t num_candidates_ = 0;
  float pivot_ = 0;
  int64_t last_tie_ = 0;
};

// The token of the kept ones at which their running sum exceeds the word's share of it.
int32_t DrawKept(const CpuKernels& kernels, KeptSlice kept, int64_t n, uint64_t word) {
  kept.first = 0;
  kept.end = n;
  uint64_t target = DrawTarget(word, kernels.sum_kept(kept));
  for (int64_t first = 0; first < n; first += kStretch) {
    kept.first = first;
    kept.end = std::min(n, first + kStretch);
    const uint64_t own = kernels.sum_kept(kept);
    if (target >= own) {
      target -= own;
      continue;
    }
    for (int64_t i = first;; ++i) {
      kept.first = i;
      kept.end = i + 1;
      const uint64_t weight = kernels.sum_kept(kept);
      if (target < weight) return int32_t(i);
      target -= weight;
    }
  }
  CHECK(false);  // the target is below the sum
  return -1;
}

}  // namespace

DrawParams DrawParamsOf(const SamplingParams& params) {
  DrawParams draw;
  draw.temperature = params.temperature;
  draw.top_p = params.top_p < 1 ? uint64_t(params.top_p * 0x1p64) : UINT64_MAX;
  draw.min_weight = uint64_t(std::ceil(params.min_p * double(kLargestWeight)));
  draw.seed = params.seed;
  draw.top_k = params.top_k;
  return draw;
}

size_t DrawScratchBytes(int64_t n) {
  return size_t(n) * (sizeof(uint64_t) + sizeof(int32_t)) + kBins * sizeof(Bin);
}

int32_t DrawToken(const CpuKernels& kernels, const float* logits, int64_t n,
                  const DrawParams& params, int64_t position, uint8_t* scratch) {
  CHECK(n <= kMaxDrawnLogits);
  const LogitRange range = kernels.find_largest(logits, n);
  if (!range.is_finite) return -1;
  if (params.is_greedy()) return int32_t(std::find(logits, logits + n, range.largest) - logits);
  const Scratch s(scratch, n);
  const uint64_t sum =
      kernels.weigh_logits({logits, n, range.largest, params.temperature, s.weights});
  KeptSlice kept{logits, s.weights, 0, n, params.min_weight, -INFINITY, n};
  if (params.top_k > 0 || params.top_p < UINT64_MAX) {
    Cut cut(logits, n, range.largest, params.temperature, s);
    uint64_t left = sum;
    bool is_cut = false;
    if (params.top_k > 0 && params.top_k < cut.num_candidates()) {
      left = cut.KeepFirst(params.top_k);
      is_cut = true;
    }
    const uint64_t least = NucleusSum(params.top_p, left);
    if (least < left) {
      cut.KeepSum(least);
      is_cut = true;
    }
    if (is_cut) {
      kept.pivot = cut.pivot();
      kept.last_tie = cut.last_tie();
    }
  }
  return DrawKept(kernels, kept, n, RandomWord(params.seed, uint64_t(position)));
}

}  // namespace hillstar
