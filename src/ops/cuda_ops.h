// The operations on a GPU: puts kernels on a stream, or captures them and replays the whole step.
// docs/gpu.md tells how a step runs. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_memory.h"
#include "ops/cuda_graphs.h"
#include "ops/cuda_kernels.h"
#include "ops/cuda_profile.h"
#include "ops/cuda_step_tables.h"
#include "ops/ops.h"

namespace hillstar::cuda {

class CudaOps : public Ops {
 public:
  // `memory` outlives the object. `eager`: nothing is captured.
  CudaOps(CudaMemory& memory, const cudaDeviceProp& device, bool eager);
  ~CudaOps() override;

  void Prepare(const Limits& limits) override;
  std::string_view name() const override { return "cuda"; }
  bool is_host() const override { return false; }
  uint8_t* Alloc(size_t num_bytes) override;
  void Write(void* to, const void* from, size_t num_bytes) override;
  void Read(void* to, const void* from, size_t num_bytes) override;
  float* HostFloats(size_t n) override;

  StepTokens BeginStep(const StepInput& input, bool is_repeated) override;
  StepTokens NextStep(const StepInput& input) override;
  StepTokens DropRowsBefore(const StepTokens& step, int64_t first) override;
  void RunStep(const StepTokens& step, bool is_repeated, int part,
               const std::function<void()>& launch) override;
  void EnterLayer(int64_t layer, int64_t first) override;
  void EnterStage(Stage stage) override {
    if (profile_) profile_->EnterStage(stage);
  }
  void Follow() override;
  std::vector<BadToken> TakeBadTokens() override;
  void BeginProfile() override;
  std::vector<KernelTime> EndProfile() override;
  DevicePeaks MeasurePeaks() override;
  bool SetDraws(int64_t first, std::span<const DrawParams> draws) override;
  void Draw(const StepTokens& step, int64_t first, int64_t rows, const float* logits,
            int64_t n) override;
  void AskDrawn() override;
  Drawn TakeDrawn() override;

  void Embed(const WeightView& table, const StepTokens& step, float* x) override;
  void Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) override;
  void NormPlanes(float* x, const Addend& added, const NormWeights& norm, int64_t rows, int64_t n,
                  float* y, const ActivationPlanes& planes) override;
  void Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                const RowOwner& owner) override;
  void Linear(std::span<const LinearSlice> layers) override;
  void LinearByHead(const HeadMatrices& heads, const ActivationPlanes& x, int64_t num_tokens,
                    float* y) override;
  void LinearOfFloats(const float* x, const LinearSlice& layer) override;
  void LinearByHeadOfFloats(const HeadMatrices& heads, const HeadRows& x,
                            const ActivationPlanes& planes, int64_t num_tokens, float* y) override;
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
  void Route(const FloatLinearSlice& router, const RouterChoice& first_token,
             const StepTokens& step, const ExpertLayer& layer, const ExpertGroups& groups) override;
  void FinishProjections(const StepTokens& step, const Projections& p) override;
  void GroupByExpert(const int32_t* experts, const StepTokens& step, const ExpertLayer& layer,
                     const ExpertGroups& groups) override;
  void ExpertsUp(const ExpertLayer& layer, const ExpertGroups& groups, const ActivationPlanes& x,
                 int64_t num_tokens, float* hidden, float* shared) override;
  void ExpertsDown(const ExpertLayer& layer, const ExpertGroups& groups,
                   const ActivationPlanes& hidden, const ActivationPlanes& shared,
                   int64_t num_tokens, float* rows, float* out) override;
  void ExpertsDownOfFloats(const ExpertLayer& layer, const ExpertGroups& groups,
                           const HiddenRows& hidden, const HiddenRows& shared, int64_t num_tokens,
                           float* rows, float* out) override;
  void Add(const Addend& added, int64_t num_tokens, int64_t n, float* x) override;

  // Bytes that Prepare takes.
  static uint64_t PreparedBytes(const Limits& limits);

 private:
  static size_t ScratchBytes(const Limits& limits);
  // The best of a few runs.
  double SecondsOf(const std::function<void()>& launch);
  // Waits for what was asked for, and for the codes of bad tokens.
  void ReadCodes();
  StepTokens Shaped(StepTokens step) const;
  // A profile replays its step some times, which counts nowhere.
  uint64_t* UsesOf(const ExpertLayer& layer) const { return profile_ ? nullptr : layer.uses; }
  // For what kernels say of their work, if they are timed.
  void CountKeys(const StepInput& input);
  // Tokens that a step of num_tokens is shaped for, so that few shapes come.
  int64_t ShapedFor(int64_t num_tokens) const;

  CudaMemory& memory_;
  KernelContext context_;
  const bool eager_;
  Limits limits_;
  std::vector<DeviceBuffer> buffers_;
  DeviceBuffer scratch_;  // of attention and selection, which follow each other
  DeviceBuffer bad_;      // int32 [max_tokens]
  DeviceBuffer ticket_;   // int32: RouteOne
  DeviceBuffer bins_;     // SelectTask::bins
  std::optional<StepTables> tables_;
  std::optional<StepGraphs> graphs_;
  std::optional<StepProfile> profile_;
  // Where the drawn ids of steps come to the host, with the codes of bad tokens behind them.
  struct Answer {
    int32_t* values = nullptr;  // pinned, [max_drawn + max_tokens]
    cudaEvent_t done = nullptr;
    int64_t num_drawn = 0, num_tokens = 0;
  };
  std::vector<Answer> answers_;
  cudaEvent_t followed_[2] = {};  // of the last calls of Follow
  uint64_t num_followed_ = 0;
  uint64_t num_asked_ = 0, num_taken_ = 0;
  int64_t max_drawn_ = 0;               // rows of a step that are drawn from, or lie before these
  DeviceBuffer drawn_;                  // int32 [max_drawn]
  DeviceBuffer draws_;                  // DrawParams [max_drawn]
  DeviceBuffer draw_scratch_;           // DrawTaskBytes
  std::vector<DrawParams> sent_draws_;  // what draws_ holds
  bool draws_are_greedy_ = true;        // of the step
  float* host_floats_ = nullptr;        // pinned, [num_host_floats_]
  size_t num_host_floats_ = 0;
  // Codes of bad tokens on the host, and whether nothing was launched since they came.
  int32_t* codes_ = nullptr;  // pinned, [max_tokens]
  bool has_codes_ = false;
  int64_t num_tokens_ = 0;  // of the step
  int64_t shaped_for_ = 0;
  bool is_captured_ = false;
  int64_t first_row_ = 0;  // of the step that rows are counted from
};

}  // namespace hillstar::cuda
