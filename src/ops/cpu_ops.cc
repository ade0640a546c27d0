#include "ops/cpu_ops.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/integers.h"

namespace hillstar {
namespace {

// Pieces a worker should find in a loop: enough to even out, few enough to cost nothing.
constexpr int64_t kPiecesPerWorker = 6;
constexpr size_t kAlignment = 64;
// How long a measurement of the peak takes at least.
constexpr double kPeakSeconds = 0.004;
constexpr int64_t kMostPeakRounds = int64_t{1} << 40;
// Rows of small float work (norms, quantising) that are worth handing to another thread.
constexpr int64_t kRowsPerPiece = 8;

// Matrices that stay in a core's own cache while many tokens go by: cut by tokens, so that each
// token's activations are packed once. Larger ones are cut by panels, so that weights are read
// once.
constexpr size_t kCachedMatrixBytes = 600 * 1024;
constexpr int64_t kTokensPerBlock = 8;

struct LinearPiece {
  int64_t layer;
  int64_t first_panel, num_panels;
  int64_t first_token, num_tokens;
};

int64_t Work(const LinearSlice& s) { return NumPanels(s.w.rows) * s.w.cols * s.num_tokens; }

// Pieces of about piece_work products.
void CutLinear(const LinearSlice& s, int64_t layer, int64_t piece_work,
               std::vector<LinearPiece>* pieces) {
  const int64_t panels = NumPanels(s.w.rows), tokens = s.num_tokens;
  if (MatrixBytes(s.w.format, s.w.rows, s.w.cols) <= kCachedMatrixBytes &&
      tokens >= 2 * kTokensPerBlock) {
    const int64_t block_work = kTokensPerBlock * panels * s.w.cols;
    const int64_t at_once = std::max<int64_t>(1, piece_work / block_work) * kTokensPerBlock;
    for (int64_t t = 0; t < tokens; t += at_once) {
      pieces->push_back({layer, 0, panels, t, std::min(at_once, tokens - t)});
    }
    return;
  }
  const int64_t at_once = std::clamp<int64_t>(piece_work / (s.w.cols * tokens), 1, panels);
  for (int64_t p = 0; p < panels; p += at_once) {
    pieces->push_back({layer, p, std::min(at_once, panels - p), 0, tokens});
  }
}

// Calls fn(row, worker) for every row, some rows a piece.
template <typename Fn>
void ForRows(ThreadPool& pool, int64_t rows, const Fn& fn) {
  pool.Run(CeilDiv(rows, kRowsPerPiece), [&](int64_t piece, int worker) {
    const int64_t end = std::min(rows, (piece + 1) * kRowsPerPiece);
    for (int64_t r = piece * kRowsPerPiece; r < end; ++r) fn(r, worker);
  });
}

}  // namespace

float* WorkspaceMemory::AllocFloats(int64_t n) {
  return reinterpret_cast<float*>(Alloc(size_t(n) * sizeof(float)));
}
int32_t* WorkspaceMemory::AllocInts(int64_t n) {
  return reinterpret_cast<int32_t*>(Alloc(size_t(n) * sizeof(int32_t)));
}
int8_t* WorkspaceMemory::AllocBytes(int64_t n) {
  return reinterpret_cast<int8_t*>(Alloc(size_t(n)));
}

ActivationPlanes WorkspaceMemory::AllocPlanes(int64_t rows, int64_t cols) {
  ActivationPlanes p;
  p.cols = cols;
  p.hi = AllocBytes(rows * p.stride());
  p.lo = AllocBytes(rows * p.stride());
  p.scale = AllocFloats(rows * p.groups());
  p.sum = AllocInts(rows * p.groups());
  return p;
}

CpuOps::CpuOps(const CpuKernels& kernels, int num_threads, MemoryBudget& budget)
    : kernels_(kernels), pool_(num_threads), budget_(budget) {}

size_t CpuOps::ScratchBytes(const Limits& limits) {
  const int64_t scored = limits.selects ? RoundUp(limits.max_context, kPageTokens) : 0;
  const size_t index_scores = 2 * size_t(scored) * sizeof(float);
  const size_t row = 4 * size_t(RoundUp(limits.max_row, kGroup)) * sizeof(float);
  return std::max({index_scores, row, DrawScratchBytes(limits.num_logits),
                   LinearScratchBytes(limits.max_row),
                   size_t(AttentionScratchBytes(limits.row, limits.num_heads))});
}

uint64_t CpuOps::PreparedBytes(const Limits& limits, int num_threads) {
  return PartialBytes(limits) + uint64_t(num_threads) * ScratchBytes(limits);
}

void CpuOps::Prepare(const Limits& limits) {
  limits_ = limits;
  bad_ = std::vector<std::atomic<bool>>(size_t(limits.max_tokens));
  scratch_.clear();
  for (int w = 0; w < pool_.num_threads(); ++w) {
    scratch_.emplace_back(budget_, MemoryTag::kWorkspace, ScratchBytes(limits));
  }
  partial_values_ = HostBuffer(budget_, MemoryTag::kWorkspace, PartialBytes(limits));
}

uint8_t* CpuOps::Alloc(size_t num_bytes) {
  buffers_.emplace_back(
      budget_, MemoryTag::kWorkspace,
      (std::max<size_t>(num_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment);
  return buffers_.back().data();
}

uint8_t* CpuOps::Scratch(int worker, size_t num_bytes) {
  const HostBuffer& buffer = scratch_[size_t(worker)];
  CHECK(num_bytes <= buffer.size());
  return buffer.data();
}

void CpuOps::NoteBad(int64_t token) {
  bad_[size_t(token)].store(true, std::memory_order_relaxed);
  any_bad_.store(true);
}

DevicePeaks CpuOps::MeasurePeaks() {
  using Clock = std::chrono::steady_clock;
  const int64_t items = pool_.num_threads();
  std::atomic<int32_t> result{0};  // keeps the products from being left out
  for (int64_t rounds = 1024;; rounds *= 2) {
    const auto start = Clock::now();
    pool_.Run(items, [&](int64_t, int) { result += kernels_.peak_dots(rounds); });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds < kPeakSeconds && rounds < kMostPeakRounds) continue;
    return {0, double(items) * double(rounds) * double(kPeakProductsPerRound) / seconds};
  }
}

std::vector<BadToken> CpuOps::TakeBadTokens() {
  std::vector<BadToken> tokens;
  if (!any_bad_.exchange(false)) return tokens;
  for (size_t t = 0; t < bad_.size(); ++t) {
    if (bad_[t].exchange(false))
      tokens.push_back({first_row_ + first_of_layer_ + int64_t(t), layer_});
  }
  return tokens;
}

bool CpuOps::SetDraws(int64_t first, std::span<const DrawParams> draws) {
  draws_.resize(std::max(draws_.size(), size_t(first) + draws.size()));
  std::ranges::copy(draws, draws_.begin() + first);
  return std::ranges::all_of(draws, &DrawParams::is_greedy);
}

void CpuOps::Draw(const StepTokens& step, int64_t first, int64_t rows, const float* logits,
                  int64_t n) {
  drawn_.resize(std::max(drawn_.size(), size_t(first + rows)));
  pool_.Run(rows, [&](int64_t r, int worker) {
    const int64_t row = first + r;
    drawn_[size_t(row)] = DrawToken(kernels_, logits + r * n, n, draws_[size_t(row)],
                                    step.positions[row] + 1, Scratch(worker, DrawScratchBytes(n)));
    if (drawn_[size_t(row)] < 0) NoteBad(r);
  });
}

void CpuOps::Write(void* to, const void* from, size_t num_bytes) {
  if (num_bytes > 0) std::memcpy(to, from, num_bytes);
}

StepTokens CpuOps::BeginStep(const StepInput& input, bool) {
  page_ids_.clear();
  for (int64_t t = 0; t < input.num_tokens; ++t) page_ids_.push_back(input.pages[t].ids);
  first_row_ = 0;
  if (any_bad_.exchange(false)) std::ranges::fill(bad_, false);
  StepTokens step;
  step.num_tokens = input.num_tokens;
  step.ids = input.ids;
  step.positions = input.positions;
  step.max_positions = 0;
  for (int64_t t = 0; t < input.num_tokens; ++t) {
    step.max_positions = std::max(step.max_positions, input.positions[t] + 1);
  }
  step.page_ids = page_ids_.data();
  step.latent_memory = input.memory.latents;
  step.index_memory = input.memory.index_keys;
  return step;
}

StepTokens CpuOps::DropRowsBefore(const StepTokens& step, int64_t first) {
  first_row_ += first;
  StepTokens rest = step;
  rest.num_tokens -= first;
  rest.ids += first;
  rest.positions += first;
  rest.page_ids += first;
  return rest;
}

void CpuOps::Embed(const WeightView& table, const StepTokens& step, float* x) {
  ForRows(pool_, step.num_tokens,
          [&](int64_t t, int) { DequantiseRow(table, step.ids[t], x + t * table.cols); });
}

void CpuOps::Norm(const float* x, const NormWeights& norm, int64_t rows, int64_t n, float* y) {
  ForRows(pool_, rows, [&](int64_t r, int) {
    if (!kernels_.rms_norm({x + r * n, norm.weight, nullptr, y + r * n, n, norm.eps})) NoteBad(r);
  });
}

void CpuOps::NormPlanes(float* x, const Addend& added, const NormWeights& norm, int64_t rows,
                        int64_t n, float* y, const ActivationPlanes& planes) {
  ForRows(pool_, rows, [&](int64_t r, int worker) {
    float* row = x + r * n;
    AddToRow(added, r, n, row, worker);
    float* normed =
        y ? y + r * n : reinterpret_cast<float*>(Scratch(worker, size_t(n) * sizeof(float)));
    bool finite = kernels_.rms_norm({row, norm.weight, nullptr, normed, n, norm.eps});
    finite = kernels_.quantise_groups({normed, planes.FromRow(r)}) && finite;
    if (!finite) NoteBad(r);
  });
}

void CpuOps::Quantise(const float* x, int64_t rows, const ActivationPlanes& planes,
                      const RowOwner& owner) {
  ForRows(pool_, rows, [&](int64_t r, int) {
    if (!kernels_.quantise_groups({x + r * planes.cols, planes.FromRow(r)})) {
      NoteBad(owner.token(r));
    }
  });
}

template <typename Slice>
void CpuOps::RunPanels(std::span<const Slice> layers, void (*kernel)(const Slice&)) {
  const auto linear = [](auto& s) -> auto& {
    if constexpr (std::is_same_v<Slice, SwiGluSlice>) {
      return s.linear;
    } else {
      return s;
    }
  };
  // Layers differ in width, so pieces are cut by work: products of one panel and all its tokens.
  int64_t work = 0;
  for (const Slice& s : layers) work += Work(linear(s));
  const int64_t piece_work = std::max<int64_t>(1, work / (pool_.num_threads() * kPiecesPerWorker));
  thread_local std::vector<LinearPiece> pieces;
  pieces.clear();
  for (const Slice& s : layers)
    CutLinear(linear(s), int64_t(&s - layers.data()), piece_work, &pieces);
  const std::vector<LinearPiece>& all = pieces;
  pool_.Run(int64_t(all.size()), [&](int64_t i, int worker) {
    const LinearPiece& piece = all[all.size() - 1 - size_t(i)];
    Slice slice = layers[size_t(piece.layer)];
    LinearSlice& s = linear(slice);
    s.first_panel = piece.first_panel;
    s.num_panels = piece.num_panels;
    s.x_first = s.x_row(piece.first_token);
    if (s.x_rows) s.x_rows += piece.first_token;
    s.y += piece.first_token * s.y_stride;
    s.num_tokens = piece.num_tokens;
    s.scratch = Scratch(worker, LinearScratchBytes(s.w.cols));
    kernel(slice);
  });
}

void CpuOps::Linear(std::span<const LinearSlice> layers) { RunPanels(layers, kernels_.linear); }

void CpuOps::LinearByHead(const HeadMatrices& heads, const ActivationPlanes& x, int64_t num_tokens,
                          float* y) {
  slices_.clear();
  for (int64_t h = 0; h < heads.num_heads; ++h) {
    LinearSlice s = WholeLayer(heads.head(h), x, num_tokens, y + h * heads.head_rows);
    s.x_first = h;
    s.x_step = heads.num_heads;
    s.y_stride = heads.num_heads * heads.head_rows;
    slices_.push_back(s);
  }
  Linear(slices_);
}

void CpuOps::SwiGlu(std::span<const SwiGluSlice> layers) { RunPanels(layers, kernels_.swiglu); }

void CpuOps::FloatLinear(const FloatLinearSlice& layer) {
  const int64_t rows_per_piece =
      std::max<int64_t>(4, layer.num_rows / (pool_.num_threads() * kPiecesPerWorker));
  pool_.Run(CeilDiv(layer.num_rows, rows_per_piece), [&](int64_t piece, int) {
    FloatLinearSlice s = layer;
    s.first_row = layer.first_row + piece * rows_per_piece;
    s.num_rows = std::min(rows_per_piece, layer.first_row + layer.num_rows - s.first_row);
    kernels_.float_linear(s);
  });
}

void CpuOps::Concatenate(const float* a, const float* b, int64_t rows, int64_t n, float* out) {
  ForRows(pool_, rows, [&](int64_t r, int) {
    std::copy_n(a + r * n, n, out + 2 * r * n);
    std::copy_n(b + r * n, n, out + (2 * r + 1) * n);
  });
}

void CpuOps::AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight,
                           float eps, const KvRowLayout& layout, StepPages pages) {
  const int64_t width = layout.latent + layout.rope;
  ForRows(pool_, step.num_tokens, [&](int64_t t, int worker) {
    float* latent = reinterpret_cast<float*>(Scratch(worker, size_t(width) * sizeof(float)));
    float* rope = latent + layout.latent;
    const float* in = kv + t * width;
    uint8_t* row = pages.of(t).row(layout, step.positions[t]);
    bool finite = kernels_.rms_norm({in, norm_weight, nullptr, latent, layout.latent, eps});
    kernels_.rope({in + layout.latent, step.cos(t), step.sin(t), step.half_rope, rope});
    finite = StoreRowPart(kernels_, layout.latent_part(), latent, row) && finite;
    finite = StoreRowPart(kernels_, layout.rope_part(), rope, row) && finite;
    if (!finite) NoteBad(t);
  });
}

void CpuOps::AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                             const IndexKeyLayout& layout, StepPages pages) {
  const int64_t dim = layout.dim, padded = RoundUp(dim, 16);
  const auto panel = [&](int64_t t) { return pages.of(t).panel(layout, step.positions[t]); };
  // Tokens of one panel share cache lines, so they stay with one worker: the one whose piece holds
  // the first of them.
  const auto starts_panel = [&](int64_t t) { return t == 0 || panel(t) != panel(t - 1); };
  pool_.Run(CeilDiv(step.num_tokens, kIndexPanelTokens), [&](int64_t piece, int worker) {
    float* normed =
        reinterpret_cast<float*>(Scratch(worker, size_t(2 * padded) * (sizeof(float) + 1)));
    float* key = normed + padded;
    int8_t *hi = reinterpret_cast<int8_t*>(key + padded), *lo = hi + padded;
    const int64_t end = std::min(step.num_tokens, (piece + 1) * kIndexPanelTokens);
    int64_t t = piece * kIndexPanelTokens;
    while (t < end && !starts_panel(t)) ++t;
    for (; t < step.num_tokens && (t < end || !starts_panel(t)); ++t) {
      bool finite =
          kernels_.layer_norm({k + t * dim, norm.weight, norm.bias, normed, dim, norm.eps});
      std::copy_n(normed, dim, key);
      kernels_.rope({normed, step.cos(t), step.sin(t), step.half_rope, key});
      float scale;
      finite = kernels_.quantise_row({key, dim, padded, hi, lo, &scale}) && finite;
      StoreIndexKey(layout, pages.of(t), step.positions[t], hi, lo, scale);
      if (!finite) NoteBad(t);
    }
  });
}

void CpuOps::QuantiseHeads(const HeadRows& rows, int64_t num_tokens, int64_t num_heads,
                           const ActivationPlanes& planes) {
  ForRows(pool_, num_tokens * num_heads, [&](int64_t r, int) {
    const int64_t t = r / num_heads, h = r % num_heads;
    const float* x = rows.data + t * rows.token_stride + h * rows.head_stride;
    if (!kernels_.quantise_groups({x, planes.FromRow(r)})) NoteBad(t);
  });
}

void CpuOps::MakeQueries(const StepTokens& step, const float* latents, const HeadRows& rope,
                         const QueryShape& shape, const AttentionQueries& out) {
  const KvRowLayout layout{shape.latent, shape.rope};
  const float softmax_scale = 1.0f / std::sqrt(float(shape.nope + shape.rope));
  ForRows(pool_, step.num_tokens * shape.num_heads, [&](int64_t r, int worker) {
    const int64_t t = r / shape.num_heads, h = r % shape.num_heads;
    int8_t *hi = out.planes.hi + r * out.planes.stride, *lo = out.planes.lo + r * out.planes.stride;
    float* rotated = reinterpret_cast<float*>(Scratch(worker, size_t(shape.rope) * sizeof(float)));
    const float* in = rope.data + t * rope.token_stride + h * rope.head_stride;
    kernels_.rope({in, step.cos(t), step.sin(t), step.half_rope, rotated});
    const int64_t padded = layout.padded_latent();
    float* scales[] = {out.latent_scale + r, out.rope_scale + r};
    bool finite = kernels_.quantise_row(
        {latents + r * shape.latent, shape.latent, padded, hi, lo, scales[0]});
    finite = kernels_.quantise_row({rotated, shape.rope, layout.padded_rope(), hi + padded,
                                    lo + padded, scales[1]}) &&
             finite;
    for (float* scale : scales) *scale = (*scale * 0x1p-8f) * softmax_scale;
    if (!finite) NoteBad(t);
  });
}

void CpuOps::MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                              const QueryShape& shape, int64_t max_keys, const IndexQueries& out) {
  const int64_t dim = shape.nope + shape.rope, heads = shape.num_heads;
  const float dim_scale = 1.0f / std::sqrt(float(dim)), head_scale = 1.0f / std::sqrt(float(heads));
  ForRows(pool_, step.num_tokens * heads, [&](int64_t r, int worker) {
    const int64_t t = r / heads;
    if (step.positions[t] < max_keys) return;
    float* row = reinterpret_cast<float*>(Scratch(worker, size_t(dim) * sizeof(float)));
    std::copy_n(q + r * dim, dim, row);
    kernels_.rope({q + r * dim, step.cos(t), step.sin(t), step.half_rope, row});
    float scale;
    const bool finite =
        kernels_.quantise_row({row, dim, out.planes.stride, out.planes.hi + r * out.planes.stride,
                               out.planes.lo + r * out.planes.stride, &scale});
    out.weight[r] = (weights[r] * head_scale) * ((scale * 0x1p22f) * dim_scale);
    if (!finite || !std::isfinite(out.weight[r])) NoteBad(t);
  });
}

void CpuOps::Clear(void* bytes, size_t num_bytes) { std::memset(bytes, 0, num_bytes); }

void CpuOps::KeepRows(void* rows, int64_t row_bytes, std::span<const int32_t> kept) {
  uint8_t* bytes = static_cast<uint8_t*>(rows);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == int32_t(i)) continue;
    std::memcpy(bytes + int64_t(i) * row_bytes, bytes + kept[i] * row_bytes, size_t(row_bytes));
  }
}

void CpuOps::Choose(const RouterChoice& first_token, int64_t num_tokens) {
  ForRows(pool_, num_tokens, [&](int64_t t, int worker) {
    RouterChoice c = first_token;
    c.logits += t * c.num_experts;
    c.experts += t * c.num_chosen;
    c.weights += t * c.num_chosen;
    c.scores = reinterpret_cast<float*>(Scratch(worker, size_t(c.num_experts) * sizeof(float)));
    if (!std::all_of(c.logits, c.logits + c.num_experts,
                     [](float v) { return std::isfinite(v); })) {
      return NoteBad(t);  // the choice of a bad token is never used
    }
    ChooseExperts(c);
  });
}

void CpuOps::GroupByExpert(const int32_t* experts, const StepTokens& step, const ExpertLayer& layer,
                           const ExpertGroups& groups) {
  const int64_t k = layer.num_chosen, count = step.num_tokens * k;
  int32_t* begin = groups.begin;
  std::fill_n(begin, layer.num_experts + 1, 0);
  for (int64_t i = 0; i < count; ++i) ++begin[experts[i] + 1];
  for (int64_t e = 0; layer.uses && e < layer.num_experts; ++e) {
    layer.uses[e] += uint64_t(begin[e + 1]);
  }
  for (int64_t e = 0; e < layer.num_experts; ++e) begin[e + 1] += begin[e];
  next_slot_.assign(begin, begin + layer.num_experts);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t slot = next_slot_[size_t(experts[i])]++;
    groups.slots[i] = slot;
    groups.slot_tokens[slot] = int32_t(i / k);
  }
}

// Each chosen expert over its tokens, and the shared expert over all, side by side.
void CpuOps::ExpertsUp(const ExpertLayer& layer, const ExpertGroups& groups,
                       const ActivationPlanes& x, int64_t num_tokens, float* hidden,
                       float* shared) {
  gates_.assign(1, {WholeLayer(layer.shared_gate, x, num_tokens, shared), layer.shared_up});
  for (int64_t e = 0; e < layer.num_experts; ++e) {
    const int64_t first = groups.begin[e], count = groups.begin[e + 1] - first;
    if (count == 0) continue;
    const ExpertViews expert = ViewExpert(layer.shape, layer.images[e]);
    LinearSlice gate = WholeLayer(expert.gate, x, count, hidden + first * layer.shape.intermediate);
    gate.x_rows = groups.slot_tokens + first;
    gates_.push_back({gate, expert.up});
  }
  SwiGlu(gates_);
}

void CpuOps::ExpertsDown(const ExpertLayer& layer, const ExpertGroups& groups,
                         const ActivationPlanes& hidden, const ActivationPlanes& shared,
                         int64_t num_tokens, float* rows, float* out) {
  slices_.assign(1, WholeLayer(layer.shared_down, shared, num_tokens, out));
  for (int64_t e = 0; e < layer.num_experts; ++e) {
    const int64_t first = groups.begin[e], count = groups.begin[e + 1] - first;
    if (count == 0) continue;
    const ExpertViews expert = ViewExpert(layer.shape, layer.images[e]);
    slices_.push_back(WholeLayer(expert.down, hidden, count, rows + first * layer.shape.hidden));
    slices_.back().x_first = first;
  }
  Linear(slices_);
}

void CpuOps::AddToRow(const Addend& added, int64_t t, int64_t n, float* row, int worker) {
  if (added.rows) kernels_.add_row(row, added.rows + t * n, n);
  const Mixture& m = added.mixture;
  if (!m.rows) return;
  const size_t bytes = size_t(m.num_ranks) * sizeof(float*);
  const float** rows = reinterpret_cast<const float**>(Scratch(worker, bytes));
  for (int64_t k = 0; k < m.num_ranks; ++k) rows[k] = m.rows + m.slots[t * m.num_ranks + k] * n;
  kernels_.weighted_sum({rows, m.weights + t * m.num_ranks, m.num_ranks,
                         m.shared ? m.shared + t * n : nullptr, row, n});
}

void CpuOps::Add(const Addend& added, int64_t num_tokens, int64_t n, float* x) {
  ForRows(pool_, num_tokens,
          [&](int64_t t, int worker) { AddToRow(added, t, n, x + t * n, worker); });
}

}  // namespace hillstar
