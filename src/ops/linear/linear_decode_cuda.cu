// A few tokens: see linear_decode_cuda.cuh.
#include <algorithm>

#include "core/check.h"
#include "ops/linear/linear_decode_cuda.cuh"

namespace hillstar::cuda {
namespace {

// How a launch is laid out.
struct DecodeShape {
  int depth = 0;         // slots of a warp's ring
  int num_columns = 0;   // of B: 2 for each token there may be
  int input_slots = 1;   // segments of inputs that a warp keeps
  int sum_segments = 0;  // most segments x row blocks of a unit
  int sum_buffers = 2;
  int num_entries = 0;  // of experts, at most
};

// Where things lie in shared memory.
template <WeightFormat kFormat, int kTiles>
struct DecodeLayout {
  size_t inputs, sums, cursors, entries, counts, barriers, end;

  __host__ __device__ DecodeLayout(const DecodeShape& shape, int warps) {
    inputs = size_t(warps) * size_t(shape.depth) * size_t(Stage<kFormat>::kBytes);
    sums = inputs + size_t(warps) * size_t(shape.input_slots) *
                        size_t(Inputs<kTiles>::Bytes(shape.num_columns));
    // 16-byte aligned, as all before; two a warp.
    cursors = sums + SumBytes(shape) * size_t(shape.sum_buffers);
    entries = cursors + size_t(warps) * 2 * sizeof(Cursor);
    barriers = entries + size_t(shape.num_entries) * sizeof(ExpertEntry);
    counts = barriers + size_t(warps) * size_t(shape.depth) * sizeof(uint64_t);
    end = counts + kMostListWarps * sizeof(int);
  }
  static __host__ __device__ size_t SumBytes(const DecodeShape& shape) {
    return size_t(shape.sum_segments) * kBlockRows * Inputs<kTiles>::kTokens * sizeof(float);
  }
};

// Of what it loads, and of what it multiplies.
template <WeightFormat kFormat, int kTiles>
__device__ __forceinline__ Cursor* CursorsOf(const DecodeLayout<kFormat, kTiles>& layout,
                                             int warp) {
  return reinterpret_cast<Cursor*>(DynamicShared() + layout.cursors) + 2 * warp;
}

// What a warp multiplies with: the inputs of a segment, or of a segment for each pass.
template <WeightFormat kFormat, int kTiles>
class WarpInputs {
 public:
  using I = Inputs<kTiles>;

  __device__ WarpInputs(uint8_t* inputs, const DecodeShape& shape, int lane)
      : inputs_(inputs),
        num_columns_(shape.num_columns),
        num_slots_(shape.input_slots),
        lane_(lane) {
    Use(0);
  }

  // By all lanes. Does nothing if they are there already. `run` names the run, `pass` the segment.
  __device__ __forceinline__ void Load(const MatrixWork& m, const Quantum& q, int run, int pass) {
    const bool kept = pass < num_slots_;
    if (run != run_) {
      run_ = run;
      loaded_ = 0;
    }
    Use(kept ? pass : 0);
    if (pass < loaded_ && (kept && m.passes <= num_slots_)) return;
    loaded_ = pass + 1;
    const int gid = lane_ / 4, tid = lane_ % 4;
    __syncwarp();
    uint8_t* to = inputs_ + (kept ? pass : 0) * I::Bytes(num_columns_);
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) {
      const int column = i * 8 + gid, t = column / 2;
      if (t >= m.num_tokens) continue;
      const int8_t* from = (gid % 2 == 0 ? m.x.hi : m.x.lo) + m.x_row(t) * m.x.stride() +
                           q.segment * kSegmentGroups * kGroup;
      // Words tid + 4 i, i counting up.
      const int8_t* word = from + tid * 4;
      uint8_t* place = to + column * I::kColumnBytes + tid * 16;
#pragma unroll 2
      for (int g = 0; g < q.groups; ++g) {
#pragma unroll
        for (int j = 0; j < 4; ++j) CopyAsync4(place + g * 64 + j * 4, word + g * kGroup + j * 16);
      }
    }
    CommitCopies();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int t = i * kTileTokens + tid;
      if (t >= m.num_tokens || gid >= q.groups) continue;
      const int64_t at = m.x_row(t) * m.groups + q.segment * kSegmentGroups + gid;
      const uint32_t sum = uint32_t(m.x.sum[at]) * uint32_t(Tile<kFormat>::kOffset);
      *reinterpret_cast<float2*>(to + num_columns_ * I::kColumnBytes + t * I::kScaleBytes +
                                 gid * 8) =
          make_float2(m.x.scale[at], __int_as_float(int(0u - sum)));
    }
    WaitForCopies<0>();
    __syncwarp();
  }
  // B words {tid, tid + 4, tid + 8, tid + 12} of this lane's column of a tile. Columns that nobody
  // has are another's: what comes of them is not used.
  __device__ __forceinline__ uint4 Words(int tile, int group) const {
    return *reinterpret_cast<const uint4*>(words_[tile] + group * 64);
  }
  __device__ __forceinline__ float2 ScaleAndCorrection(int tile, int group) const {
    return *reinterpret_cast<const float2*>(scales_ + tile * kTileTokens * I::kScaleBytes +
                                            group * 8);
  }

 private:
  __device__ __forceinline__ void Use(int slot) {
    const uint8_t* from = inputs_ + slot * I::Bytes(num_columns_);
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) {
      const int column = min(i * 8 + lane_ / 4, num_columns_ - 1);
      words_[i] = from + column * I::kColumnBytes + lane_ % 4 * 16;
    }
    scales_ = from + num_columns_ * I::kColumnBytes + lane_ % 4 * I::kScaleBytes;
  }

  uint8_t* inputs_;
  int num_columns_, num_slots_, lane_;
  int run_ = -1, loaded_ = 0;  // passes of the run that have been loaded
  const uint8_t* words_[kTiles];
  const uint8_t* scales_;
};

// c[h] += rows 4 gid + 2 h and + 1 of 64 inputs, from the words of a plane of a stage.
constexpr int kStepWords = 4 * Tile<WeightFormat::kW4>::kVectorBytes / 16;  // from step to step
template <WeightFormat kFormat>
__device__ __forceinline__ void MultiplyPlane(int (&c)[2][4], const uint4* words, uint4 x) {
  if constexpr (Tile<kFormat>::kIsW4) {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 q = words[s * kStepWords];
      const uint32_t b0 = s == 0 ? x.x : x.y, b1 = s == 0 ? x.z : x.w;
      MmaUnsignedSigned(c[0], {q.x & kLow, q.y & kLow, q.x >> 4 & kLow, q.y >> 4 & kLow}, b0, b1);
      MmaUnsignedSigned(c[1], {q.z & kLow, q.w & kLow, q.z >> 4 & kLow, q.w >> 4 & kLow}, b0, b1);
    }
  } else {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 p = words[2 * s * kStepWords], q = words[(2 * s + 1) * kStepWords];
      const uint32_t b0 = s == 0 ? x.x : x.z, b1 = s == 0 ? x.y : x.w;
      MmaUnsignedSigned(c[0], {p.x, p.y, q.x, q.y}, b0, b1);
      MmaUnsignedSigned(c[1], {p.z, p.w, q.z, q.w}, b0, b1);
    }
  }
}

// Both planes of x of a row's dot: row i of the lane's four.
__device__ __forceinline__ int BothPlanes(const int (&c)[2][4], int i) {
  return int(256u * uint32_t(c[i / 2][i % 2 * 2]) + uint32_t(c[i / 2][i % 2 * 2 + 1]));
}

// sums[tile][i] += group `group` of the segment, of which this lane's panel is at `panel`.
template <WeightFormat kFormat, int kTiles, int kUsedTiles>
__device__ __forceinline__ void MultiplyGroup(float (&sums)[kTiles][4], const uint8_t* panel,
                                              const WarpInputs<kFormat, kTiles>& x, int group,
                                              int lane) {
  using T = Tile<kFormat>;
  float w_scale[4];
  T::Scales(panel + T::kScaleOffset, lane / 4 % 4, w_scale);
  const auto* words =
      reinterpret_cast<const uint4*>(panel + lane % 4 * T::kVectorBytes + lane / 4 % 4 * 16);
#pragma unroll
  for (int tile = 0; tile < kUsedTiles; ++tile) {
    const uint4 b = x.Words(tile, group);
    const float2 s = x.ScaleAndCorrection(tile, group);
    // The low plane's columns begin with what corrects the offset of the weights.
    const int begin = __float_as_int(s.y);
    int high[2][4] = {{0, begin, 0, begin}, {0, begin, 0, begin}};
    int low[2][4] = {{0, begin, 0, begin}, {0, begin, 0, begin}};
    MultiplyPlane<kFormat>(high, words, b);
    if constexpr (T::kIsW15) MultiplyPlane<kFormat>(low, words + 4 * kStepWords, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float d = GroupDot<kFormat>(BothPlanes(high, i), BothPlanes(low, i));
      sums[tile][i] = __fmaf_rn(d, __fmul_rn(w_scale[i], s.x), sums[tile][i]);
    }
  }
}

// A segment, stage by stage.
template <WeightFormat kFormat, int kTiles, int kUsedTiles, typename Runs>
__device__ __forceinline__ void MultiplySegment(float (&sums)[kTiles][4], const Runs& runs,
                                                WeightRing<kFormat>& ring,
                                                const WarpInputs<kFormat, kTiles>& x, int groups,
                                                int warp, int lane) {
  using S = Stage<kFormat>;
#pragma unroll 1
  for (int first = 0; first < groups; first += S::kGroups) {
    const uint8_t* panel = ring.WaitForStage() + lane / 16 * S::kPanelBytes;
    ring.Issue(runs, warp);
    ring.Commit();
    if (S::kGroups == 1 || first + S::kGroups <= groups) {
#pragma unroll
      for (int j = 0; j < S::kGroups; ++j) {
        MultiplyGroup<kFormat, kTiles, kUsedTiles>(sums, panel + j * S::T::kBytes, x, first + j,
                                                   lane);
      }
    } else {
#pragma unroll 1
      for (int j = 0; first + j < groups; ++j) {
        MultiplyGroup<kFormat, kTiles, kUsedTiles>(sums, panel + j * S::T::kBytes, x, first + j,
                                                   lane);
      }
    }
  }
}

// Adds the segments' sums of a unit in ascending order and writes what comes of them. `thread`: of
// the block, from another warp on each time.
template <int kTokens>
__device__ __forceinline__ void WriteUnit(const MatrixWork& m, int first_block, int blocks,
                                          const float* sums, uint32_t thread) {
  const int log_rows = m.up ? 4 : 5, rows = 1 << log_rows;
  const auto tokens = uint32_t(m.num_tokens);
  const uint32_t outputs = uint32_t(blocks) * tokens << log_rows;
  for (uint32_t i = thread; i < outputs; i += blockDim.x) {
    const uint32_t j = i >> log_rows;
    const int row = int(i) & (rows - 1), block = tokens == 1 ? int(j) : int(j / tokens);
    const int t = int(j) - block * int(tokens);
    const int64_t r = int64_t(first_block + block) * rows + row;
    if (r >= m.rows) continue;
    const float* from = sums + (block * m.segments * kTokens + t) * kBlockRows + row;
    float total = 0, up = 0;
#pragma unroll 4
    for (int s = 0; s < m.segments; ++s) {
      total = __fadd_rn(total, from[s * kBlockRows * kTokens]);
      if (m.up) up = __fadd_rn(up, from[s * kBlockRows * kTokens + kPanelRows]);
    }
    m.y[t * m.y_stride + r] = m.up ? __fmul_rn(Silu(total), up) : total;
  }
}

// All units of a launch that are this block's; the ring's first stages are on their way already.
template <WeightFormat kFormat, int kTiles, typename Runs>
__device__ __forceinline__ void RunUnits(const Runs& runs, WeightRing<kFormat>& ring,
                                         uint8_t* shared, const DecodeShape& shape, int warp,
                                         int lane) {
  using I = Inputs<kTiles>;
  const DecodeLayout<kFormat, kTiles> layout(shape, int(blockDim.x) / kWarpLanes);
  WarpInputs<kFormat, kTiles> x(
      shared + layout.inputs + warp * shape.input_slots * I::Bytes(shape.num_columns), shape, lane);
  const int sum_floats = shape.sum_segments * kBlockRows * I::kTokens;
  bool odd = false;
  uint32_t thread = threadIdx.x;
  Cursor& at = CursorsOf<kFormat, kTiles>(layout, warp)[1];
  if (lane == 0) at.Begin();
  while (at.Next(runs, lane)) {
    float* unit_sums = reinterpret_cast<float*>(shared + layout.sums) + (odd ? sum_floats : 0);
    const Quantum q = QuantumOf(at.m, at.blocks, warp, at.pass);
    if (q.groups > 0) {
      x.Load(at.m, q, at.run(), at.pass);
      float sums[kTiles][4] = {};
      if (kTiles == 1 || at.m.num_tokens > kTileTokens) {
        MultiplySegment<kFormat, kTiles, kTiles>(sums, runs, ring, x, q.groups, warp, lane);
      } else {
        MultiplySegment<kFormat, kTiles, 1>(sums, runs, ring, x, q.groups, warp, lane);
      }
      float* to = unit_sums +
                  ((q.block * at.m.segments + q.segment) * I::kTokens + lane % 4) * kBlockRows +
                  lane / 4 * 4;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        *reinterpret_cast<float4*>(to + tile * kTileTokens * kBlockRows) =
            make_float4(sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]);
      }
    }
    if (at.pass + 1 < at.m.passes) continue;
    __syncthreads();
    WriteUnit<I::kTokens>(at.m, at.place.at - at.place.first, at.blocks, unit_sums, thread);
    thread = thread >= kWarpLanes ? thread - kWarpLanes : thread + blockDim.x - kWarpLanes;
    if (shape.sum_buffers == 1) {
      __syncthreads();
    } else {
      odd = !odd;
    }
  }
}

template <WeightFormat kFormat, int kTiles>
__device__ __forceinline__ WeightRing<kFormat> RingOf(const DecodeShape& shape, int warp,
                                                      int lane) {
  const DecodeLayout<kFormat, kTiles> layout(shape, int(blockDim.x) / kWarpLanes);
  return WeightRing<kFormat>(
      DynamicShared() + warp * shape.depth * Stage<kFormat>::kBytes,
      CursorsOf<kFormat, kTiles>(layout, warp),
      reinterpret_cast<uint64_t*>(DynamicShared() + layout.barriers) + warp * shape.depth,
      shape.depth, lane);
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kMostDecodeWarps* kWarpLanes, kTiles == 1 ? 2 : 1)
    DecodeLinearKernel(const __grid_constant__ WorkList list, int all_blocks,
                       const __grid_constant__ DecodeShape shape) {
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const ListRuns<Inputs<kTiles>::kTokens> runs{list, all_blocks};
  WeightRing<kFormat> ring = RingOf<kFormat, kTiles>(shape, warp, lane);
  for (int i = 0; i < shape.depth - 1; ++i) {
    ring.Issue(runs, warp);
    ring.Commit();
  }
  WaitForPrevious();
  LetNextBegin();
  RunUnits<kFormat, kTiles>(runs, ring, DynamicShared(), shape, warp, lane);
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kMostDecodeWarps* kWarpLanes, kTiles == 1 ? 2 : 1)
    DecodeExpertsKernel(const __grid_constant__ ExpertWork work,
                        const __grid_constant__ MatrixWork beside,
                        const __grid_constant__ DecodeShape shape) {
  uint8_t* shared = DynamicShared();
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const DecodeLayout<kFormat, kTiles> layout(shape, int(blockDim.x) / kWarpLanes);
  auto* entries = reinterpret_cast<ExpertEntry*>(shared + layout.entries);
  auto* counts = reinterpret_cast<int*>(shared + layout.counts);
  ExpertRuns<Inputs<kTiles>::kTokens> runs{work, beside, entries, -1};
  WeightRing<kFormat> ring = RingOf<kFormat, kTiles>(shape, warp, lane);
  // What does not wait for the kernel before this one: the shared expert, and the others where they
  // are known.
  int issued = 0;
  for (; issued < shape.depth - 1 && ring.Issue(runs, warp); ++issued) ring.Commit();
  const auto list_experts = [&] {
    runs.num_entries = ListEntries(work, Inputs<kTiles>::kTokens, counts,
                                   [&](int i, ExpertEntry entry) { entries[i] = entry; });
    for (; issued < shape.depth - 1; ++issued) {
      ring.Issue(runs, warp);
      ring.Commit();
    }
  };
  if (work.begin_is_old) list_experts();
  WaitForPrevious();
  LetNextBegin();
  if (!work.begin_is_old) list_experts();
  RunUnits<kFormat, kTiles>(runs, ring, shared, shape, warp, lane);
}

constexpr int CeilDivide(int a, int b) { return (a + b - 1) / b; }

// How a matrix is gone through by blocks of `warps` warps, `most` tokens at once.
void Plan(MatrixWork& m, int warps, int most) {
  m.segments = CeilDivide(m.groups, kSegmentGroups);
  m.inverse_segments = CeilDivide(256, m.segments);
  m.at_once = std::max(1, std::min(warps / m.segments, m.blocks()));
  m.passes = CeilDivide(m.segments, warps);
  m.chunks = CeilDivide(m.num_tokens, most);
}

// The time of a round of a block beside its loads, in what a warp's segment takes.
constexpr int kRoundOverhead = 2;

// A matrix of a launch that is laid out, and how often there is such a one.
struct Candidate {
  MatrixWork* m;
  int copies;
};

// Chooses what fits into shared memory for so many warps: long rings, and inputs that stay.
template <WeightFormat kFormat, int kTiles>
bool FitShape(const KernelContext& context, int warps, int passes, DecodeShape* s) {
  s->sum_buffers = passes > 1 ? 1 : 2;
  for (int slots : {passes, 1}) {
    s->input_slots = slots;
    for (int depth : {8, 6, 4, 3}) {
      s->depth = depth;
      if (DecodeLayout<kFormat, kTiles>(*s, warps).end <= size_t(context.shared_bytes)) return true;
    }
  }
  return false;
}

template <WeightFormat kFormat, int kTiles>
int ChooseWarps(const KernelContext& context, std::span<const Candidate> matrices,
                DecodeShape* shape, size_t* shared_bytes) {
  int best = 0;
  int64_t best_cost = 0;
  DecodeShape best_shape;
  for (int warps = 1; warps <= kMostDecodeWarps; ++warps) {
    DecodeShape s = *shape;
    int64_t units = 0;
    int passes = 1;
    for (const Candidate& c : matrices) {
      Plan(*c.m, warps, Inputs<kTiles>::kTokens);
      units += int64_t(c.copies) * CeilDivide(c.m->all_blocks(), c.m->at_once);
      passes = std::max(passes, c.m->passes);
      s.sum_segments = std::max(s.sum_segments, c.m->segments * c.m->at_once);
    }
    if (!FitShape<kFormat, kTiles>(context, warps, passes, &s)) continue;
    const int64_t rounds =
        (units + context.num_multiprocessors - 1) / context.num_multiprocessors * passes;
    const int64_t cost = rounds * (warps + kRoundOverhead);
    if (best != 0 && cost > best_cost) continue;
    best = warps;
    best_cost = cost;
    best_shape = s;
  }
  CHECK(best > 0);
  for (const Candidate& c : matrices) Plan(*c.m, best, Inputs<kTiles>::kTokens);
  *shape = best_shape;
  *shared_bytes = DecodeLayout<kFormat, kTiles>(best_shape, best).end;
  return best;
}

template <WeightFormat kFormat, int kTiles>
void LaunchLinear(const KernelContext& context, WorkList list, int num_tokens) {
  DecodeShape shape;
  shape.num_columns = 2 * std::min(num_tokens, Inputs<kTiles>::kTokens);
  Candidate candidates[kMaxLayersAtOnce];
  for (int i = 0; i < list.count; ++i) candidates[i] = {&list.work[i], 1};
  size_t shared_bytes = 0;
  const int warps = ChooseWarps<kFormat, kTiles>(context, std::span(candidates, size_t(list.count)),
                                                 &shape, &shared_bytes);
  int blocks = 0;
  for (int i = 0; i < list.count; ++i) blocks += list.work[i].all_blocks();
  const LaunchShape launch{dim3(unsigned(std::min(blocks, context.num_multiprocessors))),
                           dim3(unsigned(warps * kWarpLanes)), shared_bytes};
  Launch("linear of a few tokens", DecodeLinearKernel<kFormat, kTiles>, launch, context.stream,
         list, blocks, shape);
}

template <WeightFormat kFormat, int kTiles>
void LaunchExperts(const KernelContext& context, ExpertWork work, MatrixWork shared) {
  const int most = Inputs<kTiles>::kTokens;
  DecodeShape shape;
  shape.num_columns = 2 * std::min(std::max(work.num_slots, shared.num_tokens), most);
  shape.num_entries = std::min(work.num_slots, work.num_experts + work.num_slots / most);
  work.matrix.num_tokens = 1;  // of a chunk, when blocks are counted
  const Candidate candidates[] = {{&work.matrix, std::min(work.num_slots, work.num_experts)},
                                  {&shared, 1}};
  const bool beside = shared.num_tokens > 0;
  size_t shared_bytes = 0;
  const int warps = ChooseWarps<kFormat, kTiles>(
      context, std::span(candidates, beside ? size_t{2} : size_t{1}), &shape, &shared_bytes);
  const int blocks = shape.num_entries * work.matrix.blocks() + (beside ? shared.all_blocks() : 0);
  const LaunchShape launch{dim3(unsigned(std::min(blocks, context.num_multiprocessors))),
                           dim3(unsigned(warps * kWarpLanes)), shared_bytes};
  if (!beside) shared = MatrixWork{};
  Launch("experts of a few tokens", DecodeExpertsKernel<kFormat, kTiles>, launch, context.stream,
         work, shared, shape);
}

}  // namespace

template <WeightFormat kFormat>
void DecodeLinear(const KernelContext& context, const WorkList& list) {
  int tokens = 0;
  for (int i = 0; i < list.count; ++i) tokens = std::max(tokens, list.work[i].num_tokens);
  if (tokens <= kTileTokens) {
    LaunchLinear<kFormat, 1>(context, list, tokens);
  } else {
    LaunchLinear<kFormat, 2>(context, list, tokens);
  }
}

template <WeightFormat kFormat>
void DecodeExperts(const KernelContext& context, const ExpertWork& work, const MatrixWork& shared) {
  // Few experts have more than a tile of tokens; those that do have another entry.
  if (shared.num_tokens <= kTileTokens || work.num_slots <= work.num_experts) {
    LaunchExperts<kFormat, 1>(context, work, shared);
  } else {
    LaunchExperts<kFormat, 2>(context, work, shared);
  }
}

template void DecodeLinear<WeightFormat::kW4>(const KernelContext&, const WorkList&);
template void DecodeLinear<WeightFormat::kW8>(const KernelContext&, const WorkList&);
template void DecodeLinear<WeightFormat::kW15>(const KernelContext&, const WorkList&);
template void DecodeExperts<WeightFormat::kW4>(const KernelContext&, const ExpertWork&,
                                               const MatrixWork&);
template void DecodeExperts<WeightFormat::kW8>(const KernelContext&, const ExpertWork&,
                                               const MatrixWork&);
template void DecodeExperts<WeightFormat::kW15>(const KernelContext&, const ExpertWork&,
                                                const MatrixWork&);

}  // namespace hillstar::cuda
