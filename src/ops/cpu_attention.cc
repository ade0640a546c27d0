// Attention on a CPU: how a step's tokens become pieces for the workers.
#include <algorithm>

#include "core/check.h"
#include "core/integers.h"
#include "ops/cpu_ops.h"

namespace hillstar {
namespace {

// Partial results that may wait for their merge at once; a step with more goes in rounds of at
// least one token.
constexpr int64_t kPartialBytes = int64_t{8} << 20;
constexpr int64_t kPiecesPerWorker = 4;
constexpr int64_t kMergesPerPiece = 32;

}  // namespace

// One step's attention. Tokens that see one list (dense: every key up to their own) form a group,
// whose queries share the gathered keys; each (group, split, some heads) is a piece.
class CpuAttention {
 public:
  using Lists = CpuOps::AttentionLists;

  CpuAttention(CpuOps& ops, const StepTokens& step, const AttentionQueries& queries,
               int64_t num_heads, const KvRowLayout& layout, StepPages pages,
               const Selection& selection, const ActivationPlanes& out)
      : ops_(ops),
        step_(step),
        queries_(queries),
        num_heads_(num_heads),
        layout_(layout),
        pages_(pages),
        selection_(selection),
        out_(out),
        first_partial_(ops.attention_.first_partial),
        partials_(ops.attention_.partials),
        pieces_(ops.attention_.pieces) {}

  void Run() {
    for (int64_t first = 0; first < step_.num_tokens;) {
      const int64_t end = RoundEnd(first);
      RunRound(first, end);
      first = end;
    }
  }

 private:
  bool IsDense(int64_t t) const { return selection_.counts[t] == 0; }
  int64_t NumKeys(int64_t t) const {
    return IsDense(t) ? step_.positions[t] + 1 : selection_.counts[t];
  }
  int64_t NumSplits(int64_t t) const { return CeilDiv(NumKeys(t), kSplitKeys); }

  // The most tokens from `first` on whose partial results fit.
  int64_t RoundEnd(int64_t first) const {
    const int64_t value_bytes = layout_.padded_latent() * int64_t(sizeof(float)) * num_heads_;
    int64_t bytes = 0, t = first;
    for (; t < step_.num_tokens; ++t) {
      bytes += NumSplits(t) * value_bytes;
      if (t > first && bytes > int64_t(ops_.partial_values_.size())) break;
    }
    return t;
  }

  void RunRound(int64_t first, int64_t end) {
    PlacePartials(first, end);
    FormGroups(first, end);
    const int64_t workers = ops_.pool_.num_threads();
    const int64_t head_cuts = std::clamp<int64_t>(
        CeilDiv(workers * kPiecesPerWorker, int64_t(pieces_.size())), 1, num_heads_);
    const int64_t heads = workers == 1 ? num_heads_ : CeilDiv(num_heads_, head_cuts);
    const int64_t cuts = CeilDiv(num_heads_, heads);
    ops_.pool_.Run(int64_t(pieces_.size()) * cuts, [&](int64_t i, int worker) {
      const int64_t first_head = i % cuts * heads;
      RunPiece(pieces_[size_t(i / cuts)], first_head, std::min(heads, num_heads_ - first_head),
               worker);
    });
    const int64_t merges = (end - first) * num_heads_;
    ops_.pool_.Run(CeilDiv(merges, kMergesPerPiece), [&](int64_t piece, int worker) {
      const int64_t last = std::min(merges, (piece + 1) * kMergesPerPiece);
      for (int64_t i = piece * kMergesPerPiece; i < last; ++i) Merge(first, i, worker);
    });
  }

  // Merges the splits of one head and quantises the result while it is in a cache.
  void Merge(int64_t first_token, int64_t i, int worker) {
    const int64_t t = first_token + i / num_heads_, h = i % num_heads_;
    float* latent =
        reinterpret_cast<float*>(ops_.Scratch(worker, size_t(layout_.latent) * sizeof(float)));
    ops_.kernels_.merge_splits({&partials_[size_t(first_partial_[size_t(t - first_token)] + h)],
                                num_heads_, NumSplits(t), layout_.latent, latent});
    if (!ops_.kernels_.quantise_groups({latent, out_.FromRow(t * num_heads_ + h)})) {
      ops_.NoteBad(t);
    }
  }

  // partials_[first_partial_[t] + split * heads + head].
  void PlacePartials(int64_t first, int64_t end) {
    round_first_ = first;
    first_partial_.clear();
    int64_t count = 0;
    for (int64_t t = first; t < end; ++t) {
      first_partial_.push_back(count);
      count += NumSplits(t) * num_heads_;
    }
    partials_.resize(size_t(count));
    const int64_t latent = layout_.padded_latent();
    CHECK(size_t(count * latent) * sizeof(float) <= ops_.partial_values_.size());
    float* values = reinterpret_cast<float*>(ops_.partial_values_.data());
    for (int64_t i = 0; i < count; ++i) partials_[size_t(i)].values = values + i * latent;
  }

  bool SameList(int64_t a, int64_t b) const {
    return IsDense(a) && IsDense(b) && pages_.ids[a] == pages_.ids[b] &&
           step_.positions[a] < step_.positions[b];
  }

  void FormGroups(int64_t first, int64_t end) {
    pieces_.clear();
    for (int64_t t = first; t < end;) {
      const int64_t first_token = t++;
      while (t < end && t - first_token < kMaxSplitQueries && SameList(t - 1, t)) ++t;
      for (int64_t s = 0; s < NumSplits(t - 1); ++s) {
        pieces_.push_back({first_token, t - first_token, s});
      }
    }
  }

  void RunPiece(const Lists::Piece& piece, int64_t first_head, int64_t num_heads, int worker) {
    const int64_t first_key = piece.split * kSplitKeys;
    AttentionQuery queries[kMaxSplitQueries];
    for (int64_t i = 0; i < piece.num_tokens; ++i) {
      const int64_t t = piece.first_token + i;
      const int64_t row = t * num_heads_;
      const int64_t partial = first_partial_[size_t(t - round_first_)] + piece.split * num_heads_;
      const int64_t num_keys = std::clamp<int64_t>(NumKeys(t) - first_key, 0, kSplitKeys);
      queries[i] = {queries_.planes.hi + row * queries_.planes.stride,
                    queries_.planes.lo + row * queries_.planes.stride,
                    queries_.latent_scale + row,
                    queries_.rope_scale + row,
                    num_keys,
                    num_keys > 0 ? &partials_[size_t(partial)] : nullptr};
    }
    const int64_t t = piece.first_token;
    const int32_t* list =
        IsDense(t) ? nullptr : selection_.lists + t * selection_.max_keys + first_key;
    ops_.kernels_.attend_split(
        {layout_, pages_.of(t), list, first_key, queries, piece.num_tokens, first_head, num_heads,
         ops_.Scratch(worker, size_t(AttentionScratchBytes(layout_, num_heads_)))});
  }

  CpuOps& ops_;
  const StepTokens& step_;
  const AttentionQueries& queries_;
  const int64_t num_heads_;
  const KvRowLayout& layout_;
  StepPages pages_;
  const Selection& selection_;
  const ActivationPlanes& out_;
  int64_t round_first_ = 0;
  std::vector<int64_t>& first_partial_;
  std::vector<AttentionPartial>& partials_;
  std::vector<Lists::Piece>& pieces_;
};

size_t CpuOps::PartialBytes(const Limits& limits) {
  const int64_t splits = CeilDiv(limits.max_keys, kSplitKeys);
  const int64_t token = splits * limits.num_heads * limits.row.padded_latent() * int64_t{4};
  return size_t(std::max(token, std::min(kPartialBytes, token * limits.max_tokens)));
}

void CpuOps::Attend(const StepTokens& step, const AttentionQueries& queries, int64_t num_heads,
                    const KvRowLayout& layout, StepPages pages, const Selection& selection,
                    const ActivationPlanes& out) {
  CpuAttention(*this, step, queries, num_heads, layout, pages, selection, out).Run();
}

}  // namespace hillstar
