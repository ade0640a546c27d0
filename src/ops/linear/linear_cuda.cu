// Linear layers, SwiGLU and experts: what the launches are made of.
#include <algorithm>

#include "core/check.h"
#include "ops/linear/linear_cuda.cuh"

namespace hillstar::cuda {
namespace {

// Slots of experts that the decode kernel takes.
constexpr int kMostDecodeSlots = 512;

// Threads of a block: 16 rows x 8 tokens.
constexpr int kPlainTokens = 8;

__device__ __forceinline__ uint32_t PlainDot(uint32_t w, const int8_t* hi, const int8_t* lo, int i,
                                             uint32_t sum) {
  // dp4a's first factor is signed: bytes from 128 on are corrected below.
  const int x_hi = *reinterpret_cast<const int*>(hi + i);
  const int x_lo = *reinterpret_cast<const int*>(lo + i);
  return sum + 256u * uint32_t(__dp4a(int(w), x_hi, 0)) + uint32_t(__dp4a(int(w), x_lo, 0));
}

// Row `row` of a panel times row x_row of x.
template <WeightFormat kFormat>
__device__ float PlainRow(const uint8_t* tile, int row, const ActivationPlanes& x, int64_t x_row) {
  using T = Tile<kFormat>;
  const int groups = int(x.groups());
  const int8_t* hi = x.hi + x_row * x.stride();
  const int8_t* lo = x.lo + x_row * x.stride();
  float total = 0, segment = 0;
  for (int g = 0; g < groups; ++g) {
    const int64_t at = x_row * groups + g;
    uint32_t high = 0, low = 0;
    for (int v = 0; v < T::kPlaneVectors; ++v) {
      const uint32_t q = *reinterpret_cast<const uint32_t*>(tile + v * T::kVectorBytes + 4 * row);
      if constexpr (T::kIsW4) {
        high = PlainDot(q & 0x0f0f0f0fu, hi, lo, 4 * v, high);
        high = PlainDot(q >> 4 & 0x0f0f0f0fu, hi, lo, 32 + 4 * v, high);
      } else {
        high = PlainDot(q ^ 0x80808080u, hi, lo, 4 * v, high);
      }
      if constexpr (T::kIsW15) {
        const uint32_t p = *reinterpret_cast<const uint32_t*>(
            tile + (T::kPlaneVectors + v) * T::kVectorBytes + 4 * row);
        low = PlainDot(p ^ 0x80808080u, hi, lo, 4 * v, low);
      }
    }
    const uint32_t correction = T::kIsW4 ? 8u * uint32_t(x.sum[at]) : 0u;
    const float scale = __fmul_rn(T::Scale(tile + T::kScaleOffset, row), x.scale[at]);
    segment = __fmaf_rn(GroupDot<kFormat>(high, low, correction), scale, segment);
    if (g % kSegmentGroups == kSegmentGroups - 1 || g == groups - 1) {
      total = __fadd_rn(total, segment);
      segment = 0;
    }
    hi += kGroup;
    lo += kGroup;
    tile += T::kBytes;
  }
  return total;
}

template <WeightFormat kFormat>
__device__ void PlainPanel(const MatrixWork& m, int panel, int first_token, int token_step) {
  const int row = int(threadIdx.x) % kPanelRows;
  const int64_t r = int64_t(panel) * kPanelRows + row;
  if (r >= m.rows) return;
  const size_t at = size_t(panel) * m.panel_stride;
  for (int64_t t = first_token + int(threadIdx.x) / kPanelRows; t < m.num_tokens; t += token_step) {
    const int64_t x_row = m.x_row(t);
    float y = PlainRow<kFormat>(m.w + at, row, m.x, x_row);
    if (m.up) y = __fmul_rn(Silu(y), PlainRow<kFormat>(m.up + at, row, m.x, x_row));
    m.y[t * m.y_stride + r] = y;
  }
}

// A block a panel; blocks (x, y) and (x, y + 1) hold the next 8 tokens, and so on.
template <WeightFormat kFormat>
__global__ void PlainLinearKernel(const __grid_constant__ WorkList list) {
  WaitForPrevious();
  LetNextBegin();
  int panel = int(blockIdx.x);
  for (int i = 0; i < list.count; ++i) {
    const MatrixWork& m = list.work[i];
    const int panels = m.panels() * m.num_heads;
    if (panel < panels) {
      PlainPanel<kFormat>(m.Head(panel / m.panels()), panel % m.panels(),
                          int(blockIdx.y) * kPlainTokens, int(gridDim.y) * kPlainTokens);
      return;
    }
    panel -= panels;
  }
}

// A block (panel, expert), and behind the experts the shared one.
template <WeightFormat kFormat>
__global__ void PlainExpertsKernel(const __grid_constant__ ExpertWork work,
                                   const __grid_constant__ MatrixWork shared) {
  WaitForPrevious();
  LetNextBegin();
  const int e = int(blockIdx.y), panel = int(blockIdx.x);
  if (e == work.num_experts) {
    if (panel < shared.panels()) PlainPanel<kFormat>(shared, panel, 0, kPlainTokens);
    return;
  }
  if (panel >= work.matrix.panels()) return;
  const int first = work.begin[e], count = work.begin[e + 1] - first;
  if (count > 0) PlainPanel<kFormat>(work.Expert(e, first, count), panel, 0, kPlainTokens);
}

MatrixWork WorkOf(const LinearSlice& s) {
  CHECK(s.x.cols == s.w.cols);
  MatrixWork m;
  m.w = s.w.data;
  m.panel_stride = s.w.panel_stride;
  m.rows = int(s.w.rows);
  m.groups = int(s.x.groups());
  m.num_tokens = int(s.num_tokens);
  m.x = s.x;
  m.x_rows = s.x_rows;
  m.x_first = s.x_first;
  m.x_step = s.x_step;
  m.y = s.y;
  m.y_stride = s.y_stride;
  return m;
}

MatrixWork WorkOf(const SwiGluSlice& s) {
  MatrixWork m = WorkOf(s.linear);
  CHECK(s.up.format == s.linear.w.format && s.up.panel_stride == m.panel_stride);
  m.up = s.up.data;
  return m;
}

// Calls fn<format>().
template <typename Fn>
void WithFormat(WeightFormat format, const Fn& fn) {
  switch (format) {
    case WeightFormat::kW4: return fn.template operator()<WeightFormat::kW4>();
    case WeightFormat::kW8: return fn.template operator()<WeightFormat::kW8>();
    case WeightFormat::kW15: return fn.template operator()<WeightFormat::kW15>();
    case WeightFormat::kF32: break;
  }
  CHECK(format != WeightFormat::kF32);
}

void RunList(const KernelContext& context, WeightFormat format, const WorkList& list) {
  int panels = 0, tokens = 0;
  for (int i = 0; i < list.count; ++i) {
    panels += list.work[i].panels() * list.work[i].num_heads;
    tokens = std::max(tokens, list.work[i].num_tokens);
  }
  if (tokens == 0) return;
  if (tokens <= kMostDecodeTokens) {
    return WithFormat(format,
                      [&]<WeightFormat kFormat>() { DecodeLinear<kFormat>(context, list); });
  }
  const LaunchShape shape{dim3(unsigned(panels), unsigned((tokens + 7) / kPlainTokens)),
                          dim3(kPanelRows * kPlainTokens)};
  WithFormat(format, [&]<WeightFormat kFormat>() {
    Launch("linear", PlainLinearKernel<kFormat>, shape, context.stream, list);
  });
}

void RunExperts(const KernelContext& context, WeightFormat format, const ExpertWork& work,
                const MatrixWork& shared) {
  if (shared.num_tokens <= kMostDecodeTokens && work.num_slots <= kMostDecodeSlots) {
    return WithFormat(
        format, [&]<WeightFormat kFormat>() { DecodeExperts<kFormat>(context, work, shared); });
  }
  const int panels = std::max(work.matrix.panels(), shared.num_tokens ? shared.panels() : 0);
  const LaunchShape shape{dim3(unsigned(panels), unsigned(work.num_experts + 1)),
                          dim3(kPanelRows * kPlainTokens)};
  WithFormat(format, [&]<WeightFormat kFormat>() {
    Launch("experts", PlainExpertsKernel<kFormat>, shape, context.stream, work, shared);
  });
}

ExpertWork WorkOf(const ExpertTask& task, const ActivationPlanes& x, float* y) {
  ExpertWork work;
  work.images = task.images;
  work.begin = task.begin;
  work.num_experts = int(task.num_experts);
  work.num_slots = int(task.num_slots);
  work.matrix.groups = int(x.groups());
  work.matrix.x = x;
  work.matrix.y = y;
  return work;
}

// An image's address stands for the expert's, which the kernel looks up.
const uint8_t* const kSomewhere = reinterpret_cast<const uint8_t*>(uintptr_t{64});

}  // namespace

void Linear(const KernelContext& context, std::span<const LinearSlice> layers) {
  CHECK(layers.size() <= size_t(kMaxLayersAtOnce));
  for (WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8, WeightFormat::kW15}) {
    WorkList list;
    for (const LinearSlice& s : layers) {
      if (s.w.format == format) list.work[list.count++] = WorkOf(s);
    }
    RunList(context, format, list);
  }
}

void LinearByHead(const KernelContext& context, const ByHead& layer) {
  WorkList list{1, {}};
  MatrixWork& m = list.work[0];
  m.w = layer.w.data;
  m.panel_stride = layer.w.panel_stride;
  m.rows = int(layer.head_rows);
  m.groups = int(layer.x.groups());
  m.num_heads = int(layer.num_heads);
  m.num_tokens = int(layer.num_tokens);
  m.x = layer.x;
  m.x_step = layer.num_heads;
  m.y = layer.y;
  m.y_stride = layer.num_heads * layer.head_rows;
  RunList(context, layer.w.format, list);
}

void SwiGlu(const KernelContext& context, const SwiGluSlice& layer) {
  RunList(context, layer.linear.w.format, {1, {WorkOf(layer)}});
}

void ExpertsUp(const KernelContext& context, const ExpertTask& task, const ActivationPlanes& x,
               float* hidden, const SwiGluSlice& shared) {
  ExpertWork work = WorkOf(task, x, hidden);
  const ExpertViews views = ViewExpert(task.shape, nullptr);
  work.slot_tokens = task.slot_tokens;
  work.w_offset = ExpertPanelOffset(task.shape, 0, 0);
  work.up_offset = ExpertPanelOffset(task.shape, 1, 0);
  work.matrix.w = work.matrix.up = kSomewhere;
  work.matrix.panel_stride = views.gate.panel_stride;
  work.matrix.rows = int(task.shape.intermediate);
  work.matrix.y_stride = task.shape.intermediate;
  const bool beside = shared.linear.num_tokens > 0 && shared.linear.w.format == task.shape.format;
  RunExperts(context, task.shape.format, work, beside ? WorkOf(shared) : MatrixWork{});
  if (!beside && shared.linear.num_tokens > 0) SwiGlu(context, shared);
}

void ExpertsDown(const KernelContext& context, const ExpertTask& task, const ActivationPlanes& x,
                 float* rows, const LinearSlice& shared) {
  ExpertWork work = WorkOf(task, x, rows);
  work.w_offset = ExpertPanelOffset(task.shape, 2, 0);
  work.matrix.w = kSomewhere;
  work.matrix.panel_stride = ViewExpert(task.shape, nullptr).down.panel_stride;
  work.matrix.rows = int(task.shape.hidden);
  work.matrix.y_stride = task.shape.hidden;
  const bool beside = shared.num_tokens > 0 && shared.w.format == task.shape.format;
  RunExperts(context, task.shape.format, work, beside ? WorkOf(shared) : MatrixWork{});
  if (!beside && shared.num_tokens > 0) Linear(context, std::span(&shared, 1));
}

}  // namespace hillstar::cuda
