// The operations on a CPU: cuts each into pieces for the workers and calls the level's kernels.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/thread_pool.h"
#include "device/host_memory.h"
#include "ops/kernels.h"
#include "ops/ops.h"

namespace hillstar {

class CpuOps : public Ops {
 public:
  // `budget` outlives the object. max_context: the longest sequence whose keys are ever scored.
  CpuOps(const CpuKernels& kernels, int num_threads, int64_t max_context, MemoryBudget& budget);

  std::string_view name() const override { return kernels_.level; }
  int num_threads() const { return pool_.num_threads(); }

  uint8_t* Alloc(size_t num_bytes) override;

  void Embed(const WeightView& table, const StepTokens& step, float* x) override;
  void Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) override;
  void Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                const RowOwner& owner) override;
  void Linear(std::span<const LinearSlice> layers) override;
  void SwiGlu(std::span<const SwiGluSlice> layers) override;
  void FloatLinear(const FloatLinearSlice& layer) override;
  void Concatenate(const float* a, const float* b, int64_t rows, int64_t n, float* out) override;
  void AddRows(float* x, const float* y, int64_t rows, int64_t n) override;
  void AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight, float eps,
                     const KvRowLayout& layout, TokenPages pages) override;
  void AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                       const IndexKeyLayout& layout, TokenPages pages) override;
  void QuantiseHeads(const HeadRows& rows, int64_t num_tokens, int64_t num_heads,
                     const ActivationPlanes& planes) override;
  void MakeQueries(const StepTokens& step, const float* latents, const HeadRows& rope,
                   const QueryShape& shape, const AttentionQueries& out) override;
  void MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                        const QueryShape& shape, const IndexQueries& out) override;
  void Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
              const IndexKeyLayout& layout, TokenPages pages, const Selection& selection) override;
  void Attend(const StepTokens& step, const AttentionQueries& queries, int64_t num_heads,
              const KvRowLayout& layout, TokenPages pages, const Selection& selection,
              float* out) override;
  void Choose(const RouterChoice& first_token, int64_t num_tokens) override;
  void Mix(const Mixture& mixture, int64_t num_tokens, int64_t n, float* x) override;
  void Finish() override {}
  int64_t TakeFirstBadToken() override;

 private:
  friend class CpuAttention;
  // Scratch of a worker, at least num_bytes, 64-byte aligned; valid until its next use.
  uint8_t* Scratch(int worker, size_t num_bytes);
  // Room for the partial results of a round of attention.
  uint8_t* PartialValues(size_t num_bytes);
  void NoteBad(int64_t token);
  // Cuts the panels of some layers into pieces and runs the kernel on each.
  template <typename Slice>
  void RunPanels(std::span<const Slice> layers, void (*kernel)(const Slice&));

  const CpuKernels& kernels_;
  ThreadPool pool_;
  MemoryBudget& budget_;
  int64_t max_context_;
  std::vector<HostBuffer> buffers_;
  std::vector<HostBuffer> scratch_;  // one a worker
  HostBuffer partial_values_;
  std::atomic<int64_t> first_bad_{-1};
};

}  // namespace hillstar
