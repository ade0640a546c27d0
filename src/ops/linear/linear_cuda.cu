// Linear layers, SwiGLU and experts: what the launches are made of.
#include <algorithm>

#include "core/check.h"
#include "ops/linear/linear_cuda.cuh"

namespace hillstar::cuda {
namespace {

// Up to so many tokens the decode kernel is the faster one: it reads the weights again for each
// eight.
constexpr int kMostDecodeTokens = 8;
// Likewise of experts, which have few tokens each: slots for each expert there is. (64 experts of
// GLM-5.2 and the shared one take an H200 532 us where each has eight tokens; where each has nine
// 951 us, and 899 us with the other kernel.)
constexpr int kMostDecodeSlots = 8;

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
  int tokens = 0;
  for (int i = 0; i < list.count; ++i) tokens = std::max(tokens, list.work[i].num_tokens);
  if (tokens == 0) return;
  CHECK(list.work[0].floats.data == nullptr || tokens <= kMostFloatTokens);
  WithFormat(format, [&]<WeightFormat kFormat>() {
    if (tokens <= kMostDecodeTokens) {
      DecodeLinear<kFormat>(context, list);
    } else {
      PrefillLinear<kFormat>(context, list);
    }
  });
}

void RunExperts(const KernelContext& context, WeightFormat format, const ExpertWork& work,
                const MatrixWork& shared) {
  WithFormat(format, [&]<WeightFormat kFormat>() {
    if (work.num_slots <= kMostDecodeSlots * work.num_experts) {
      DecodeExperts<kFormat>(context, work, shared);
    } else {
      CHECK(work.matrix.floats.data == nullptr);
      PrefillExperts<kFormat>(context, work, shared);
    }
  });
}

ExpertWork WorkOf(const ExpertTask& task, const ActivationPlanes& x, float* y) {
  ExpertWork work;
  work.images = task.images;
  work.begin = task.begin;
  work.num_experts = int(task.num_experts);
  work.num_slots = int(task.num_slots);
  work.num_tokens = int(task.num_tokens);
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

void LinearOfFloats(const KernelContext& context, const LinearSlice& layer, const FloatRows& x) {
  WorkList list{1, {WorkOf(layer)}};
  list.work[0].floats = x;
  RunList(context, layer.w.format, list);
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
  m.floats = layer.floats;
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
                 float* rows, const LinearSlice& shared, const HiddenFloats& floats) {
  CHECK(floats.slots.data == nullptr || task.num_tokens <= kMostFloatTokens);
  ExpertWork work = WorkOf(task, x, rows);
  work.matrix.floats = floats.slots;
  work.begin_is_old = true;
  work.w_offset = ExpertPanelOffset(task.shape, 2, 0);
  work.matrix.w = kSomewhere;
  work.matrix.panel_stride = ViewExpert(task.shape, nullptr).down.panel_stride;
  work.matrix.rows = int(task.shape.hidden);
  work.matrix.y_stride = task.shape.hidden;
  MatrixWork other = WorkOf(shared);
  other.floats = floats.shared;
  const bool beside = shared.num_tokens > 0 && shared.w.format == task.shape.format;
  RunExperts(context, task.shape.format, work, beside ? other : MatrixWork{});
  if (!beside) RunList(context, shared.w.format, {1, {other}});
}

}  // namespace hillstar::cuda
