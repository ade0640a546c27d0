// The operations on a CPU: cuts each into pieces for the workers and calls the level's kernels.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/thread_pool.h"
#include "device/host_memory.h"
#include "ops/kernels.h"
#include "ops/ops.h"
#include "ops/stage_clock.h"

namespace hillstar {

class CpuOps : public Ops {
 public:
  // `budget` outlives the object.
  CpuOps(const CpuKernels& kernels, int num_threads, MemoryBudget& budget);

  // Bytes that Prepare takes.
  static uint64_t PreparedBytes(const Limits& limits, int num_threads);
  void Prepare(const Limits& limits) override;

  std::string_view name() const override { return kernels_.level; }
  bool is_host() const override { return true; }
  int num_threads() const { return pool_.num_threads(); }
  // Products alone: of all threads together, for some milliseconds.
  DevicePeaks MeasurePeaks() override;

  uint8_t* Alloc(size_t num_bytes) override;
  void Write(void* to, const void* from, size_t num_bytes) override;
  void Read(void* to, const void* from, size_t num_bytes) override { Write(to, from, num_bytes); }

  StepTokens BeginStep(const StepInput& input, bool is_repeated) override;
  StepTokens DropRowsBefore(const StepTokens& step, int64_t first) override;
  void RunStep(const StepTokens&, bool, int, const std::function<void()>& launch) override {
    launch();
  }
  void EnterLayer(int64_t layer, int64_t first) override {
    layer_ = layer;
    first_of_layer_ = first;
  }
  void EnterStage(Stage stage) override { clock_.Enter(stage); }
  std::span<const double> stage_seconds() const override { return clock_.seconds(); }

  void Embed(const WeightView& table, const StepTokens& step, float* x) override;
  void Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) override;
  void NormPlanes(float* x, const Addend& added, const NormWeights& norm, int64_t rows, int64_t n,
                  float* y, const ActivationPlanes& planes) override;
  void Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                const RowOwner& owner) override;
  void Linear(std::span<const LinearSlice> layers) override;
  void LinearByHead(const HeadMatrices& heads, const ActivationPlanes& x, int64_t num_tokens,
                    float* y) override;
  void SwiGlu(std::span<const SwiGluSlice> layers) override;
  void FloatLinear(const FloatLinearSlice& layer) override;
  void Concatenate(const float* a, const float* b, int64_t rows, int64_t n, float* out) override;
  void AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight, float eps,
                     const KvRowLayout& layout, StepPages pages) override;
  void AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                       const IndexKeyLayout& layout, StepPages pages) override;
  void QuantiseHeads(const HeadRows& rows, int64_t num_tokens, int64_t num_heads,
                     const ActivationPlanes& planes) override;
  void MakeQueries(const StepTokens& step, const float* latents, const HeadRows& rope,
                   const QueryShape& shape, const AttentionQueries& out) override;
  void MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                        const QueryShape& shape, int64_t max_keys,
                        const IndexQueries& out) override;
  void Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
              const IndexKeyLayout& layout, StepPages pages, const Selection& selection) override;
  void Attend(const StepTokens& step, const AttentionQueries& queries, int64_t num_heads,
              const KvRowLayout& layout, StepPages pages, const Selection& selection,
              const ActivationPlanes& out) override;
  void ListAll(const StepTokens& step, const Selection& selection) override;
  void Clear(void* bytes, size_t num_bytes) override;
  void KeepRows(void* rows, int64_t row_bytes, std::span<const int32_t> kept) override;
  void Choose(const RouterChoice& first_token, int64_t num_tokens) override;
  void GroupByExpert(const int32_t* experts, const StepTokens& step, const ExpertLayer& layer,
                     const ExpertGroups& groups) override;
  void ExpertsUp(const ExpertLayer& layer, const ExpertGroups& groups, const ActivationPlanes& x,
                 int64_t num_tokens, float* hidden, float* shared) override;
  void ExpertsDown(const ExpertLayer& layer, const ExpertGroups& groups,
                   const ActivationPlanes& hidden, const ActivationPlanes& shared,
                   int64_t num_tokens, float* rows, float* out) override;
  void Add(const Addend& added, int64_t num_tokens, int64_t n, float* x) override;
  std::vector<BadToken> TakeBadTokens() override;
  bool SetDraws(int64_t first, std::span<const DrawParams> draws) override;
  void Draw(const StepTokens& step, int64_t first, int64_t rows, const float* logits,
            int64_t n) override;
  void AskDrawn() override {}
  Drawn TakeDrawn() override { return {drawn_, {}}; }

 private:
  friend class CpuAttention;
  friend class CpuSelection;
  // What one round of attention is cut into; kept, so that a step allocates nothing.
  struct AttentionLists {
    struct Piece {
      int64_t first_token, num_tokens;  // that share one list of keys
      int64_t split;                    // of the list
    };
    std::vector<int64_t> first_partial;  // of each token
    std::vector<AttentionPartial> partials;
    std::vector<Piece> pieces;
  };
  // Of one token.
  void AddToRow(const Addend& added, int64_t t, int64_t n, float* row, int worker);
  static size_t ScratchBytes(const Limits& limits);
  static size_t PartialBytes(const Limits& limits);
  // Scratch of a worker, 64-byte aligned; valid until its next use. REQUIRES num_bytes within what
  // Prepare took.
  uint8_t* Scratch(int worker, size_t num_bytes);
  void NoteBad(int64_t token);
  // Cuts the panels of some layers into pieces and runs the kernel on each.
  template <typename Slice>
  void RunPanels(std::span<const Slice> layers, void (*kernel)(const Slice&));

  const CpuKernels& kernels_;
  ThreadPool pool_;
  MemoryBudget& budget_;
  Limits limits_;
  std::vector<HostBuffer> buffers_;
  std::vector<HostBuffer> scratch_;  // one a worker
  HostBuffer partial_values_;
  AttentionLists attention_;
  std::vector<const PageId*> page_ids_;  // of the step's tokens
  int64_t first_row_ = 0;                // of the step that rows are counted from
  int64_t layer_ = 0;
  StageClock clock_;
  int64_t first_of_layer_ = 0;      // row that the layer's rows are counted from
  std::vector<int32_t> next_slot_;  // [experts]
  std::vector<DrawParams> draws_;   // of the step's rows
  std::vector<int32_t> drawn_;      // likewise
  // Layers that run side by side; kept, so that a step allocates nothing.
  std::vector<LinearSlice> slices_;
  std::vector<SwiGluSlice> gates_;
  std::vector<std::atomic<bool>> bad_;  // [max_tokens]
  std::atomic<bool> any_bad_{false};
};

}  // namespace hillstar
