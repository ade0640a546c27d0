#include "ops/cuda_ops.h"

#include <algorithm>
#include <bit>

#include "core/check.h"
#include "device/cuda/launch.cuh"

namespace hillstar::cuda {
namespace {

// Steps of more tokens are prompts, each of its own length, and not worth capturing.
constexpr int64_t kMaxCapturedTokens = 512;
// Shapes of contexts begin here and double.
constexpr int64_t kLeastPositions = 2048;

// Results of more floats than these do without pinned memory.
constexpr size_t kMostHostFloats = size_t{16} << 20;
// Steps at once whose drawn tokens are asked for.
constexpr size_t kQuestions = 4;

// BadTokens::code of a layer: the head is layer -1.
int32_t CodeOf(int64_t layer) { return int32_t(layer + 2); }

}  // namespace

CudaOps::CudaOps(CudaMemory& memory, const cudaDeviceProp& device, bool eager)
    : memory_(memory), eager_(eager) {
  context_.stream = memory.stream();
  context_.num_multiprocessors = device.multiProcessorCount;
  context_.shared_bytes = int(device.sharedMemPerBlockOptin);
}

CudaOps::~CudaOps() {
  for (const Answer& answer : answers_) {
    cudaEventSynchronize(answer.done);
    cudaEventDestroy(answer.done);
    cudaFreeHost(answer.values);
  }
  for (cudaEvent_t event : followed_) {
    if (event) cudaEventDestroy(event);
  }
  cudaFreeHost(codes_);
  cudaFreeHost(host_floats_);
}

namespace {

// A row each for the sequences, and rounded up as steps are.
int64_t MaxDrawn(const Ops::Limits& limits) {
  return std::min(limits.max_tokens, kMaxCapturedTokens);
}

size_t BinBytes(const Ops::Limits& limits) {
  return limits.selects ? SelectBinBytes(limits.max_tokens) : 0;
}

}  // namespace

size_t CudaOps::ScratchBytes(const Limits& limits) {
  const size_t attend =
      AttendScratchBytes(limits.max_tokens, limits.max_keys, limits.num_heads, limits.row);
  const size_t select =
      limits.selects ? SelectScratchBytes(limits.max_tokens, limits.max_context) : 0;
  return std::max(attend, select);
}

uint64_t CudaOps::PreparedBytes(const Limits& limits) {
  return ScratchBytes(limits) + uint64_t(limits.max_tokens) * sizeof(int32_t) +
         StepTables::Bytes(limits) + sizeof(int32_t) + BinBytes(limits) + DrawTaskBytes() +
         uint64_t(MaxDrawn(limits)) * (sizeof(int32_t) + sizeof(DrawParams));
}

void CudaOps::Prepare(const Limits& limits) {
  limits_ = limits;
  scratch_ = memory_.Alloc(MemoryTag::kWorkspace, ScratchBytes(limits));
  bad_ = memory_.Alloc(MemoryTag::kWorkspace, size_t(limits.max_tokens) * sizeof(int32_t));
  ticket_ = memory_.Alloc(MemoryTag::kWorkspace, sizeof(int32_t));
  bins_ = memory_.Alloc(MemoryTag::kWorkspace, BinBytes(limits));
  max_drawn_ = MaxDrawn(limits);
  drawn_ = memory_.Alloc(MemoryTag::kWorkspace, size_t(max_drawn_) * sizeof(int32_t));
  draws_ = memory_.Alloc(MemoryTag::kWorkspace, size_t(max_drawn_) * sizeof(DrawParams));
  draw_scratch_ = memory_.Alloc(MemoryTag::kWorkspace, DrawTaskBytes());
  const auto num_values = size_t(max_drawn_ + limits.max_tokens);
  if (!codes_) {
    Check(cudaHostAlloc(&codes_, size_t(limits.max_tokens) * sizeof(int32_t), cudaHostAllocDefault),
          "taking pinned memory");
  }
  for (cudaEvent_t& event : followed_) {
    if (event) continue;
    Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  }
  while (answers_.size() < kQuestions) {
    Answer& answer = answers_.emplace_back();
    Check(cudaHostAlloc(&answer.values, num_values * sizeof(int32_t), cudaHostAllocDefault),
          "taking pinned memory");
    Check(cudaEventCreateWithFlags(&answer.done, cudaEventDisableTiming), "making an event");
  }
  tables_.emplace(memory_, limits);
  graphs_.emplace(memory_.stream());
}

uint8_t* CudaOps::Alloc(size_t num_bytes) {
  buffers_.push_back(memory_.Alloc(MemoryTag::kWorkspace, std::max<size_t>(num_bytes, 1)));
  return buffers_.back().data();
}

void CudaOps::Write(void* to, const void* from, size_t num_bytes) {
  memory_.staging().Upload(to, from, num_bytes);
}

// Codes of bad tokens come along, since whoever reads results asks for them next.
void CudaOps::Read(void* to, const void* from, size_t num_bytes) {
  Check(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToHost, memory_.stream()),
        "copying from the GPU");
  ReadCodes();
}

void CudaOps::ReadCodes() {
  Check(cudaMemcpyAsync(codes_, bad_.data(), size_t(num_tokens_) * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, memory_.stream()),
        "copying from the GPU");
  memory_.Synchronize();
  has_codes_ = true;
}

float* CudaOps::HostFloats(size_t n) {
  if (n > kMostHostFloats) return nullptr;
  if (n > num_host_floats_) {
    cudaFreeHost(host_floats_);
    host_floats_ = nullptr;
    num_host_floats_ = 0;
    if (cudaHostAlloc(&host_floats_, n * sizeof(float), cudaHostAllocDefault) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    num_host_floats_ = n;
  }
  return host_floats_;
}

int64_t CudaOps::ShapedFor(int64_t num_tokens) const {
  constexpr int64_t kExact = 4, kFine = 8, kFineEnd = 64, kCoarse = 64;
  if (num_tokens <= kExact) return num_tokens;
  const int64_t shaped = RoundUp(num_tokens, num_tokens <= kFineEnd ? kFine : kCoarse);
  return shaped <= limits_.max_tokens ? shaped : num_tokens;
}

StepTokens CudaOps::BeginStep(const StepInput& input, bool is_repeated) {
  is_captured_ = is_repeated && !eager_ && input.num_tokens <= kMaxCapturedTokens;
  const int64_t num_tokens = is_captured_ ? ShapedFor(input.num_tokens) : input.num_tokens;
  num_tokens_ = input.num_tokens;
  first_row_ = 0;
  has_codes_ = false;
  Check(cudaMemsetAsync(bad_.data(), 0, size_t(num_tokens) * sizeof(int32_t), memory_.stream()),
        "beginning a step");
  shaped_for_ = num_tokens;
  CountKeys(input);
  return Shaped(tables_->Send(input, num_tokens));
}

void CudaOps::CountKeys(const StepInput& input) {
  context_.seen_keys = context_.attended_keys = 0;
  if (!profile_) return;
  for (int64_t t = 0; t < input.num_tokens; ++t) {
    const int64_t keys = input.positions[t] + 1;
    context_.seen_keys += keys;
    context_.attended_keys += std::min(keys, limits_.max_keys);
  }
}

StepTokens CudaOps::NextStep(const StepInput& input) {
  CHECK(input.num_tokens == num_tokens_);
  return Shaped(tables_->SendNext(input, shaped_for_));
}

StepTokens CudaOps::Shaped(StepTokens step) const {
  if (!is_captured_) return step;
  const auto positions = int64_t(std::bit_ceil(uint64_t(step.max_positions)));
  step.max_positions = std::min(std::max(positions, kLeastPositions), limits_.max_context);
  return step;
}

StepTokens CudaOps::DropRowsBefore(const StepTokens& step, int64_t first) {
  first_row_ += first;
  return tables_->DropRowsBefore(step, first);
}

void CudaOps::RunStep(const StepTokens& step, bool is_repeated, int part,
                      const std::function<void()>& launch) {
  has_codes_ = false;
  if (profile_ && is_repeated) return profile_->Run(launch);
  if (!is_repeated || !is_captured_) return launch();
  graphs_->Run({step.num_tokens, step.max_positions, part}, launch);
}

void CudaOps::EnterLayer(int64_t layer, int64_t first) {
  if (profile_) profile_->EnterLayer(layer);
  has_codes_ = false;
  context_.bad = {reinterpret_cast<int32_t*>(bad_.data()) + first_row_ + first, CodeOf(layer)};
}

namespace {

std::vector<BadToken> BadTokensOf(std::span<const int32_t> codes) {
  std::vector<BadToken> tokens;
  for (size_t t = 0; t < codes.size(); ++t) {
    if (codes[t] != 0) tokens.push_back({int64_t(t), int64_t(codes[t]) - CodeOf(0)});
  }
  return tokens;
}

}  // namespace

// An event that was never recorded is not waited for.
void CudaOps::Follow() {
  Check(cudaEventRecord(followed_[num_followed_++ % 2], memory_.stream()), "recording an event");
  Check(cudaEventSynchronize(followed_[num_followed_ % 2]), "waiting for a layer");
}

std::vector<BadToken> CudaOps::TakeBadTokens() {
  if (!has_codes_) ReadCodes();
  return BadTokensOf({codes_, size_t(num_tokens_)});
}

void CudaOps::BeginProfile() { profile_.emplace(memory_.stream()); }

std::vector<KernelTime> CudaOps::EndProfile() {
  std::vector<KernelTime> times = profile_->times();
  profile_.reset();
  return times;
}

// Half of the memory that is left, 4 GB at most, is read; what a cache holds would be no measure.
DevicePeaks CudaOps::MeasurePeaks() {
  constexpr uint64_t kMost = uint64_t{4} << 30;
  const uint64_t num_bytes = std::min(kMost, memory_.AvailableBytes() / 2) / 4096 * 4096;
  DevicePeaks peaks;
  const DeviceBuffer result = memory_.Alloc(MemoryTag::kWorkspace, sizeof(int32_t));
  auto* sum = reinterpret_cast<int32_t*>(result.data());
  if (num_bytes > 0) {
    const DeviceBuffer buffer = memory_.Alloc(MemoryTag::kWorkspace, num_bytes);
    const double seconds = SecondsOf([&] { ReadAll(context_, buffer.data(), num_bytes, sum); });
    peaks.read_bytes = double(num_bytes) / seconds;
  }
  double products = 0;
  const double seconds = SecondsOf([&] { products = MultiplyAll(context_, sum); });
  peaks.products = products / seconds;
  return peaks;
}

double CudaOps::SecondsOf(const std::function<void()>& launch) {
  constexpr int kRepeats = 5;
  cudaEvent_t start, end;
  Check(cudaEventCreateWithFlags(&start, cudaEventDefault), "making an event");
  Check(cudaEventCreateWithFlags(&end, cudaEventDefault), "making an event");
  float best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    Check(cudaEventRecord(start, memory_.stream()), "recording an event");
    launch();
    Check(cudaEventRecord(end, memory_.stream()), "recording an event");
    Check(cudaEventSynchronize(end), "waiting for a measurement");
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, start, end), "reading an event");
    if (i == 1 || (i > 1 && ms < best)) best = ms;  // the first is unmeasured
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  return 1e-3 * double(best);
}

bool CudaOps::SetDraws(int64_t first, std::span<const DrawParams> draws) {
  const auto end = size_t(first) + draws.size();
  CHECK(int64_t(end) <= max_drawn_);
  draws_are_greedy_ = std::ranges::all_of(draws, &DrawParams::is_greedy);
  if (draws_are_greedy_) return true;
  sent_draws_.resize(std::max(sent_draws_.size(), end));
  const auto held = sent_draws_.begin() + first;
  if (std::equal(draws.begin(), draws.end(), held)) return false;
  std::ranges::copy(draws, held);
  Write(reinterpret_cast<DrawParams*>(draws_.data()) + first, draws.data(), draws.size_bytes());
  return false;
}

void CudaOps::Draw(const StepTokens& step, int64_t first, int64_t rows, const float* logits,
                   int64_t n) {
  CHECK(first + rows <= std::min(step.num_tokens, max_drawn_) && rows <= kDrawRows);
  CHECK(n <= kMaxDrawnLogits);
  DrawTask task;
  task.logits = logits;
  task.rows = rows;
  task.n = n;
  if (!draws_are_greedy_) task.draws = reinterpret_cast<const DrawParams*>(draws_.data()) + first;
  task.ids = reinterpret_cast<int32_t*>(drawn_.data()) + first;
  // The tables are this object's own.
  task.next_ids = const_cast<int32_t*>(step.ids) + first;
  task.next_positions = const_cast<int64_t*>(step.positions) + first;
  task.positions = task.next_positions;
  task.scratch = draw_scratch_.data();
  cuda::Draw(context_, task);
}

void CudaOps::AskDrawn() {
  CHECK(num_asked_ - num_taken_ < kQuestions);
  Answer& answer = answers_[num_asked_++ % kQuestions];
  answer.num_tokens = num_tokens_;
  answer.num_drawn = std::min(num_tokens_ - first_row_, max_drawn_);
  const auto copy = [&](int32_t* to, const DeviceBuffer& from, int64_t count) {
    Check(cudaMemcpyAsync(to, from.data(), size_t(count) * sizeof(int32_t), cudaMemcpyDeviceToHost,
                          memory_.stream()),
          "copying tokens from the GPU");
  };
  copy(answer.values, drawn_, answer.num_drawn);
  copy(answer.values + answer.num_drawn, bad_, answer.num_tokens);
  Check(cudaEventRecord(answer.done, memory_.stream()), "recording an event");
}

Ops::Drawn CudaOps::TakeDrawn() {
  CHECK(num_taken_ < num_asked_);
  const Answer& answer = answers_[num_taken_++ % kQuestions];
  Check(cudaEventSynchronize(answer.done), "waiting for a step");
  const int32_t* bad = answer.values + answer.num_drawn;
  return {std::vector<int32_t>(answer.values, answer.values + answer.num_drawn),
          BadTokensOf({bad, size_t(answer.num_tokens)})};
}

void CudaOps::Embed(const WeightView& table, const StepTokens& step, float* x) {
  cuda::Embed(context_, table, step.ids, step.num_tokens, x);
}

void CudaOps::Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) {
  NormTask task;
  task.x = x;
  task.weight = norm.weight;
  task.eps = norm.eps;
  task.rows = rows;
  task.n = n;
  task.y = y;
  RmsNorm(context_, task);
}

void CudaOps::NormPlanes(float* x, const Addend& added, const NormWeights& norm, int64_t rows,
                         int64_t n, float* y, const ActivationPlanes& planes) {
  RmsNorm(context_, {x, added.rows, added.mixture, x, norm.weight, norm.eps, rows, n, y, planes});
}

void CudaOps::FinishProjections(const StepTokens& step, const Projections& p) {
  FinishTask task;
  task.norm.x = task.norm.sum = p.q_a;
  task.norm.weight = p.q_a_norm.weight;
  task.norm.eps = p.q_a_norm.eps;
  task.norm.rows = step.num_tokens;
  task.norm.n = p.q_lora;
  task.norm.planes = p.q_a_planes;
  task.latents = {step, p.kv, p.kv_norm.weight, p.kv_norm.eps, p.row, p.latents};
  task.has_index_keys = p.index_k != nullptr;
  task.index_keys = {step, p.index_k, p.index_norm, p.index, p.index_keys};
  cuda::FinishProjections(context_, task);
}

namespace {

FloatRows RowsOf(const float* x, int64_t cols, const RowOwner& owner = {}) {
  return {x, owner, 1, cols, 0};
}
FloatRows RowsOf(const HeadRows& rows, int64_t heads) {
  return {rows.data, {heads, nullptr}, heads, rows.token_stride, rows.head_stride};
}

}  // namespace

void CudaOps::Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                       const RowOwner& owner) {
  cuda::Quantise(context_, {RowsOf(x, planes.cols, owner), rows, planes});
}

void CudaOps::QuantiseHeads(const HeadRows& rows, int64_t num_tokens, int64_t num_heads,
                            const ActivationPlanes& planes) {
  cuda::Quantise(context_, {RowsOf(rows, num_heads), num_tokens * num_heads, planes});
}

void CudaOps::Linear(std::span<const LinearSlice> layers) { cuda::Linear(context_, layers); }

void CudaOps::LinearByHead(const HeadMatrices& heads, const ActivationPlanes& x, int64_t num_tokens,
                           float* y) {
  cuda::LinearByHead(context_, {heads.w, heads.num_heads, heads.head_rows, x, num_tokens, y});
}

void CudaOps::LinearOfFloats(const float* x, const LinearSlice& layer) {
  if (layer.num_tokens > kMostFloatTokens) return Ops::LinearOfFloats(x, layer);
  cuda::LinearOfFloats(context_, layer, RowsOf(x, layer.x.cols));
}

void CudaOps::LinearByHeadOfFloats(const HeadMatrices& heads, const HeadRows& x,
                                   const ActivationPlanes& planes, int64_t num_tokens, float* y) {
  if (num_tokens > kMostFloatTokens) {
    return Ops::LinearByHeadOfFloats(heads, x, planes, num_tokens, y);
  }
  cuda::LinearByHead(context_, {heads.w, heads.num_heads, heads.head_rows, planes, num_tokens, y,
                                RowsOf(x, heads.num_heads)});
}

void CudaOps::SwiGlu(std::span<const SwiGluSlice> layers) {
  for (const SwiGluSlice& layer : layers) cuda::SwiGlu(context_, layer);
}

void CudaOps::FloatLinear(const FloatLinearSlice& layer) { cuda::FloatLinear(context_, layer); }

void CudaOps::Concatenate(const float* a, const float* b, int64_t rows, int64_t n, float* out) {
  cuda::Concatenate(context_, a, b, rows, n, out);
}

void CudaOps::AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight,
                            float eps, const KvRowLayout& layout, StepPages pages) {
  cuda::AppendLatents(context_, {step, kv, norm_weight, eps, layout, pages});
}

void CudaOps::AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                              const IndexKeyLayout& layout, StepPages pages) {
  cuda::AppendIndexKeys(context_, {step, k, norm, layout, pages});
}

void CudaOps::MakeQueries(const StepTokens& step, const float* latents, const HeadRows& rope,
                          const QueryShape& shape, const AttentionQueries& out) {
  cuda::MakeQueries(context_, {step, latents, rope, shape, out});
}

void CudaOps::MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                               const QueryShape& shape, int64_t max_keys, const IndexQueries& out) {
  cuda::MakeIndexQueries(context_, {step, q, weights, shape, max_keys, out});
}

void CudaOps::Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
                     const IndexKeyLayout& layout, StepPages pages, const Selection& selection) {
  SelectTask task;
  task.num_tokens = step.num_tokens;
  task.live = step.live;
  task.positions = step.positions;
  task.max_positions = step.max_positions;
  task.queries = queries;
  task.num_heads = num_heads;
  task.layout = layout;
  task.pages = pages;
  task.selection = selection;
  task.scratch = scratch_.data();
  task.scratch_bytes = scratch_.size();
  task.bins = reinterpret_cast<int32_t*>(bins_.data());
  cuda::Select(context_, task);
}

void CudaOps::Attend(const StepTokens& step, const AttentionQueries& queries, int64_t num_heads,
                     const KvRowLayout& layout, StepPages pages, const Selection& selection,
                     const ActivationPlanes& out) {
  AttendTask task;
  task.num_tokens = step.num_tokens;
  task.live = step.live;
  task.positions = step.positions;
  task.max_positions = step.max_positions;
  task.max_keys = std::min(limits_.max_keys, step.max_positions);
  task.queries = queries;
  task.num_heads = num_heads;
  task.layout = layout;
  task.pages = pages;
  task.selection = selection;
  task.out = out;
  task.scratch = scratch_.data();
  task.scratch_bytes = scratch_.size();
  cuda::Attend(context_, task);
}

void CudaOps::ListAll(const StepTokens& step, const Selection& selection) {
  cuda::ListAll(context_, step.num_tokens, step.live, step.positions, selection);
}

void CudaOps::Clear(void* bytes, size_t num_bytes) {
  Check(cudaMemsetAsync(bytes, 0, num_bytes, memory_.stream()), "clearing memory");
}

// A copy must not write what it reads: rows that move by some places are copied so many at a time.
void CudaOps::KeepRows(void* rows, int64_t row_bytes, std::span<const int32_t> kept) {
  uint8_t* bytes = static_cast<uint8_t*>(rows);
  for (size_t i = 0, count = 1; i < kept.size(); i += count, count = 1) {
    const size_t from = size_t(kept[i]), by = from - i;
    if (by == 0) continue;
    while (count < by && i + count < kept.size() && size_t(kept[i + count]) == from + count)
      ++count;
    memory_.Copy(bytes + i * size_t(row_bytes), bytes + from * size_t(row_bytes),
                 count * size_t(row_bytes));
  }
}

void CudaOps::Choose(const RouterChoice& first_token, int64_t num_tokens) {
  cuda::Choose(context_, first_token, num_tokens);
}

void CudaOps::Route(const FloatLinearSlice& router, const RouterChoice& first_token,
                    const StepTokens& step, const ExpertLayer& layer, const ExpertGroups& groups) {
  auto* ticket = reinterpret_cast<int32_t*>(ticket_.data());
  if (step.num_tokens == 1 &&
      RouteOne(context_, router, first_token, groups, UsesOf(layer), ticket)) {
    return;
  }
  Ops::Route(router, first_token, step, layer, groups);
}

void CudaOps::GroupByExpert(const int32_t* experts, const StepTokens& step,
                            const ExpertLayer& layer, const ExpertGroups& groups) {
  cuda::GroupByExpert(context_, {experts, step.num_tokens, step.live, layer.num_experts,
                                 layer.num_chosen, groups, UsesOf(layer)});
}

namespace {

ExpertTask TaskOf(const ExpertLayer& layer, const ExpertGroups& groups, int64_t num_tokens) {
  ExpertTask task;
  task.images = layer.images;
  task.shape = layer.shape;
  task.num_experts = layer.num_experts;
  task.begin = groups.begin;
  task.slot_tokens = groups.slot_tokens;
  task.num_slots = num_tokens * layer.num_chosen;
  task.num_tokens = num_tokens;
  return task;
}

}  // namespace

void CudaOps::ExpertsUp(const ExpertLayer& layer, const ExpertGroups& groups,
                        const ActivationPlanes& x, int64_t num_tokens, float* hidden,
                        float* shared) {
  cuda::ExpertsUp(context_, TaskOf(layer, groups, num_tokens), x, hidden,
                  {WholeLayer(layer.shared_gate, x, num_tokens, shared), layer.shared_up});
}

void CudaOps::ExpertsDown(const ExpertLayer& layer, const ExpertGroups& groups,
                          const ActivationPlanes& hidden, const ActivationPlanes& shared,
                          int64_t num_tokens, float* rows, float* out) {
  cuda::ExpertsDown(context_, TaskOf(layer, groups, num_tokens), hidden, rows,
                    WholeLayer(layer.shared_down, shared, num_tokens, out));
}

void CudaOps::ExpertsDownOfFloats(const ExpertLayer& layer, const ExpertGroups& groups,
                                  const HiddenRows& hidden, const HiddenRows& shared,
                                  int64_t num_tokens, float* rows, float* out) {
  const FloatRows slots = RowsOf(hidden.floats, hidden.planes.cols, {1, groups.slot_tokens});
  const FloatRows tokens = RowsOf(shared.floats, shared.planes.cols);
  const bool at_once = num_tokens <= kMostFloatTokens;
  if (!at_once) {
    QuantiseBoth(context_, {slots, num_tokens * layer.num_chosen, hidden.planes},
                 {tokens, num_tokens, shared.planes});
  }
  cuda::ExpertsDown(context_, TaskOf(layer, groups, num_tokens), hidden.planes, rows,
                    WholeLayer(layer.shared_down, shared.planes, num_tokens, out),
                    at_once ? HiddenFloats{slots, tokens} : HiddenFloats{});
}

void CudaOps::Add(const Addend& added, int64_t num_tokens, int64_t n, float* x) {
  if (added.rows) AddRows(context_, x, added.rows, num_tokens * n);
  if (added.mixture.rows) Mix(context_, added.mixture, num_tokens, n, x);
}

}  // namespace hillstar::cuda
