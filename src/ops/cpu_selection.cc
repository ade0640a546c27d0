// Selection on a CPU: how a step's tokens are scored and chosen for by the workers.
#include <algorithm>
#include <numeric>

#include "core/integers.h"
#include "ops/cpu_ops.h"

namespace hillstar {
namespace {

// Pieces that one token's keys are cut into, for each worker.
constexpr int64_t kPiecesPerWorker = 4;
// Panels that are worth handing to another thread.
constexpr int64_t kLeastPanels = 8;

}  // namespace

// One step's selection on a layer.
class CpuSelection {
 public:
  CpuSelection(CpuOps& ops, const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
               const IndexKeyLayout& layout, StepPages pages, const Selection& selection)
      : ops_(ops),
        step_(step),
        queries_(queries),
        num_heads_(num_heads),
        layout_(layout),
        pages_(pages),
        selection_(selection),
        padded_context_(RoundUp(ops.limits_.max_context, kPageTokens)) {}

  void Run() {
    std::fill_n(selection_.counts, step_.num_tokens, 0);
    if (step_.num_tokens >= ops_.pool_.num_threads()) {
      RunATokenAPiece();
    } else {
      RunAllWorkersOnEach();
    }
  }

 private:
  void RunATokenAPiece() {
    ops_.pool_.Run(step_.num_tokens, [&](int64_t t, int worker) {
      if (!NeedsSelection(t)) return;
      float* scores = Scores(worker);
      ops_.kernels_.index_scores(AllKeys(t, scores));
      Choose(t, scores, nullptr);
    });
  }

  void RunAllWorkersOnEach() {
    for (int64_t t = 0; t < step_.num_tokens; ++t) {
      if (!NeedsSelection(t)) continue;
      float* scores = Scores(0);
      const IndexScoreSlice whole = AllKeys(t, scores);
      const int64_t pieces = ops_.pool_.num_threads() * kPiecesPerWorker;
      const int64_t at_once = std::max(kLeastPanels, whole.num_panels / pieces);
      ops_.pool_.Run(CeilDiv(whole.num_panels, at_once), [&](int64_t piece, int) {
        IndexScoreSlice s = whole;
        s.first_panel = piece * at_once;
        s.num_panels = std::min(at_once, whole.num_panels - s.first_panel);
        ops_.kernels_.index_scores(s);
      });
      Choose(t, scores, &ops_.pool_);
    }
  }

  // Others see everything up to their own position.
  bool NeedsSelection(int64_t t) const { return step_.positions[t] >= selection_.max_keys; }

  // A worker's room for the scores of a context, and as much behind it for choosing among them.
  float* Scores(int worker) {
    return reinterpret_cast<float*>(
        ops_.Scratch(worker, size_t(2 * padded_context_) * sizeof(float)));
  }

  // Token t against every key up to its own.
  IndexScoreSlice AllKeys(int64_t t, float* scores) const {
    const int64_t row = t * num_heads_;
    IndexScoreSlice s;
    s.layout = layout_;
    s.pages = pages_.of(t);
    s.q_hi = queries_.planes.hi + row * queries_.planes.stride;
    s.q_lo = queries_.planes.lo + row * queries_.planes.stride;
    s.w = queries_.weight + row;
    s.num_heads = num_heads_;
    s.num_panels = CeilDiv(step_.positions[t] + 1, kIndexPanelTokens);
    s.scores = scores;
    return s;
  }

  // The list of token t. `scores` as from Scores().
  void Choose(int64_t t, float* scores, ThreadPool* pool) {
    const TopKRow row{scores, step_.positions[t] + 1, selection_.max_keys,
                      reinterpret_cast<int32_t*>(scores + padded_context_),
                      selection_.lists + t * selection_.max_keys};
    if (!SelectTopK(ops_.kernels_, row, pool)) {
      // The token's results are void, but it stays in the step until the layer's end: it takes no
      // more keys than the others, since attention has no memory for more.
      ops_.NoteBad(t);
      std::iota(row.selected, row.selected + row.k, 0);
    }
    selection_.counts[t] = int32_t(row.k);
  }

  CpuOps& ops_;
  const StepTokens& step_;
  const IndexQueries& queries_;
  const int64_t num_heads_;
  const IndexKeyLayout& layout_;
  StepPages pages_;
  const Selection& selection_;
  const int64_t padded_context_;
};

void CpuOps::Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
                    const IndexKeyLayout& layout, StepPages pages, const Selection& selection) {
  CpuSelection(*this, step, queries, num_heads, layout, pages, selection).Run();
}

void CpuOps::ListAll(const StepTokens& step, const Selection& selection) {
  pool_.Run(step.num_tokens, [&](int64_t t, int) {
    const int64_t num_keys = step.positions[t] + 1;
    if (selection.counts[t] > 0 || num_keys > selection.max_keys) return;
    int32_t* list = selection.lists + t * selection.max_keys;
    std::iota(list, list + num_keys, 0);
    selection.counts[t] = int32_t(num_keys);
  });
}

}  // namespace hillstar
