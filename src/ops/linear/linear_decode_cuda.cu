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
  int sum_segments = 0;  // most segments x row blocks of a unit
  int num_entries = 0;   // of experts, at most
};

// Where things lie in shared memory.
template <WeightFormat kFormat, int kTiles>
struct DecodeLayout {
  size_t inputs, sums, entries, counts, end;

  __host__ __device__ DecodeLayout(const DecodeShape& shape, int warps) {
    inputs = size_t(warps) * size_t(shape.depth) * size_t(Stage<kFormat>::kBytes);
    sums = inputs + size_t(warps) * size_t(Inputs<kTiles>::Bytes(shape.num_columns / 2));
    entries = sums + SumBytes(shape) * 2;  // 16-byte aligned, as all before
    counts = entries + size_t(shape.num_entries) * sizeof(ExpertEntry);
    end = counts + kMostListWarps * sizeof(int);
  }
  static __host__ __device__ size_t SumBytes(const DecodeShape& shape) {
    return size_t(shape.sum_segments) * kBlockRows * Inputs<kTiles>::kTokens * sizeof(float);
  }
};

// What a warp multiplies with: the inputs of one segment, and where they came from.
template <WeightFormat kFormat, int kTiles>
class WarpInputs {
 public:
  __device__ WarpInputs(uint8_t* inputs, int num_columns, int lane)
      : inputs_(inputs), num_columns_(num_columns), lane_(lane) {}

  // By all lanes. Does nothing if they are there already.
  __device__ __forceinline__ void Load(const MatrixWork& m, const Quantum& q) {
    const int gid = lane_ / 4, tid = lane_ % 4;
    const int8_t* from[kTiles];
    bool changed = q.groups != groups_;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int t = i * kTileTokens + gid / 2;
      from[i] = nullptr;
      if (t < m.num_tokens) {
        from[i] = (gid % 2 == 0 ? m.x.hi : m.x.lo) + m.x_row(t) * m.x.stride() +
                  q.segment * kSegmentGroups * kGroup;
      }
      changed |= from[i] != from_[i];
      from_[i] = from[i];
    }
    groups_ = q.groups;
    if (!__any_sync(kAllLanes, changed)) return;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int column = i * 8 + gid;
      if (column >= num_columns_) continue;
      uint4 words[kSegmentGroups];
#pragma unroll
      for (int g = 0; g < kSegmentGroups; ++g) {
        words[g] = make_uint4(0, 0, 0, 0);
        if (!from[i] || g >= q.groups) continue;
        const auto* w = reinterpret_cast<const uint32_t*>(from[i] + g * kGroup) + tid;
        words[g] = make_uint4(w[0], w[4], w[8], w[12]);
      }
#pragma unroll
      for (int g = 0; g < kSegmentGroups; ++g) {
        *reinterpret_cast<uint4*>(inputs_ + (g * num_columns_ + column) * 64 + tid * 16) = words[g];
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int t = i * kTileTokens + tid;
      float2 scale = make_float2(0.0f, 0.0f);
      if (t < m.num_tokens && gid < q.groups) {
        const int64_t at = m.x_row(t) * m.groups + q.segment * kSegmentGroups + gid;
        scale.x = m.x.scale[at];
        scale.y =
            __int_as_float(int(0u - uint32_t(Tile<kFormat>::kOffset) * uint32_t(m.x.sum[at])));
      }
      scales()[gid * Inputs<kTiles>::kTokens + t] = scale;
    }
    __syncwarp();
  }
  // B words {tid, tid + 4, tid + 8, tid + 12} of this lane's column of a tile.
  __device__ __forceinline__ uint4 Words(int tile, int group) const {
    const int column = tile * 8 + lane_ / 4;
    if (column >= num_columns_) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(inputs_ + (group * num_columns_ + column) * 64 +
                                           lane_ % 4 * 16);
  }
  __device__ __forceinline__ float2 ScaleAndCorrection(int tile, int group) const {
    return scales()[group * Inputs<kTiles>::kTokens + tile * kTileTokens + lane_ % 4];
  }

 private:
  __device__ __forceinline__ float2* scales() const {
    return reinterpret_cast<float2*>(inputs_ + kSegmentGroups * num_columns_ * 64);
  }

  uint8_t* inputs_;
  int num_columns_, lane_;
  int groups_ = -1;
  const int8_t* from_[kTiles] = {};
};

// c[h] += rows 4 gid + 2 h and + 1 of 64 inputs, from the words of a plane of a stage.
template <WeightFormat kFormat>
__device__ __forceinline__ void MultiplyPlane(int (&c)[2][4], const uint4* words, uint4 x) {
  if constexpr (Tile<kFormat>::kIsW4) {
    constexpr uint32_t kLow = 0x0f0f0f0fu;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 q = words[s * kWarpLanes];
      const uint32_t b0 = s == 0 ? x.x : x.y, b1 = s == 0 ? x.z : x.w;
      MmaUnsignedSigned(c[0], {q.x & kLow, q.y & kLow, q.x >> 4 & kLow, q.y >> 4 & kLow}, b0, b1);
      MmaUnsignedSigned(c[1], {q.z & kLow, q.w & kLow, q.z >> 4 & kLow, q.w >> 4 & kLow}, b0, b1);
    }
  } else {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 p = words[2 * s * kWarpLanes], q = words[(2 * s + 1) * kWarpLanes];
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

// sums[tile][i] += group `group` of the segment, which lies at `words` (this lane's) of a stage and
// whose scales of this lane's panel lie at `scales`.
template <WeightFormat kFormat, int kTiles>
__device__ __forceinline__ void MultiplyGroup(float (&sums)[kTiles][4], const uint4* words,
                                              const uint8_t* scales,
                                              const WarpInputs<kFormat, kTiles>& x, int group,
                                              int lane) {
  float w_scale[4];
  Tile<kFormat>::Scales(scales, lane / 4 % 4, w_scale);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const uint4 b = x.Words(tile, group);
    const float2 s = x.ScaleAndCorrection(tile, group);
    // The low plane's columns begin with what corrects the offset of the weights.
    const int begin = __float_as_int(s.y);
    int high[2][4] = {{0, begin, 0, begin}, {0, begin, 0, begin}};
    int low[2][4] = {{0, begin, 0, begin}, {0, begin, 0, begin}};
    MultiplyPlane<kFormat>(high, words, b);
    if constexpr (Tile<kFormat>::kIsW15) MultiplyPlane<kFormat>(low, words + 4 * kWarpLanes, b);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float d = GroupDot<kFormat>(BothPlanes(high, i), BothPlanes(low, i));
      sums[tile][i] = __fmaf_rn(d, __fmul_rn(w_scale[i], s.x), sums[tile][i]);
    }
  }
}

// Adds the segments' sums of a unit in ascending order and writes what comes of them.
template <int kTokens>
__device__ __forceinline__ void WriteUnit(const MatrixWork& m, int first_block, const float* sums) {
  const int log_rows = m.up ? 4 : 5, rows = 1 << log_rows;
  const auto tokens = uint32_t(m.num_tokens);
  const uint32_t outputs = uint32_t(m.at_once) * tokens << log_rows;
  for (uint32_t i = threadIdx.x; i < outputs; i += blockDim.x) {
    const uint32_t j = i >> log_rows;
    const int row = int(i) & (rows - 1), block = int(j / tokens), t = int(j % tokens);
    const int64_t r = int64_t(first_block + block) * rows + row;
    if (r >= m.rows) continue;
    const float* from = sums + (block * m.segments * kBlockRows + row) * kTokens + t;
    float total = 0, up = 0;
    for (int s = 0; s < m.segments; ++s) {
      total = __fadd_rn(total, from[s * kBlockRows * kTokens]);
      if (m.up) up = __fadd_rn(up, from[(s * kBlockRows + kPanelRows) * kTokens]);
    }
    m.y[t * m.y_stride + r] = m.up ? __fmul_rn(Silu(total), up) : total;
  }
}

// All units of a launch that are this block's; the ring's first stages are on their way already.
template <WeightFormat kFormat, int kTiles, typename Units>
__device__ __forceinline__ void RunUnits(const Units& units, WeightRing<kFormat>& ring,
                                         uint8_t* shared, const DecodeShape& shape, int warp,
                                         int lane) {
  using S = Stage<kFormat>;
  constexpr int kTokens = Inputs<kTiles>::kTokens;
  const DecodeLayout<kFormat, kTiles> layout(shape, int(blockDim.x) / kWarpLanes);
  WarpInputs<kFormat, kTiles> x(
      shared + layout.inputs + warp * Inputs<kTiles>::Bytes(shape.num_columns / 2),
      shape.num_columns, lane);
  const uint8_t* stages = shared + warp * shape.depth * S::kBytes;
  const size_t sum_floats = layout.SumBytes(shape) / sizeof(float);
  int slot = 0;
  bool odd = false;
  for (int unit = int(blockIdx.x); unit < units.total; unit += int(gridDim.x), odd = !odd) {
    const Unit u = units.At(unit);
    float* unit_sums = reinterpret_cast<float*>(shared + layout.sums) + (odd ? sum_floats : 0);
    for (int pass = 0; pass < u.m.passes; ++pass) {
      const Quantum q = QuantumOf(u.m, u.first_block, warp, pass);
      if (q.groups == 0) continue;
      x.Load(u.m, q);
      float sums[kTiles][4] = {};
      for (int first = 0; first < q.groups; first += S::kGroups) {
        ring.WaitForStage();
        ring.Issue(units, units.total);
        CommitCopies();
        const uint8_t* stage = stages + slot * S::kBytes;
        slot = slot + 1 == shape.depth ? 0 : slot + 1;
#pragma unroll
        for (int j = 0; j < S::kGroups; ++j) {
          if (first + j >= q.groups) break;
          MultiplyGroup<kFormat, kTiles>(
              sums, reinterpret_cast<const uint4*>(stage + j * S::kSteps * S::kStepBytes) + lane,
              stage + S::kScaleOffset + (2 * j + lane / 16) * S::kPanelScaleBytes, x, first + j,
              lane);
        }
      }
      float* to = unit_sums + (((q.block - u.first_block) * u.m.segments + q.segment) * kBlockRows +
                               lane / 4 * 4) *
                                  kTokens;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[i * kTokens + tile * kTileTokens + lane % 4] = sums[tile][i];
        }
      }
    }
    __syncthreads();
    WriteUnit<kTokens>(u.m, u.first_block, unit_sums);
  }
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kMostDecodeWarps* kWarpLanes, 1)
    DecodeLinearKernel(const __grid_constant__ WorkList list, int num_units,
                       const __grid_constant__ DecodeShape shape) {
  uint8_t* shared = DynamicShared();
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const ListUnits<Inputs<kTiles>::kTokens> units{list, num_units};
  WeightRing<kFormat> ring(shared + warp * shape.depth * Stage<kFormat>::kBytes, shape.depth, warp,
                           lane);
  for (int i = 0; i < shape.depth - 1; ++i) {
    ring.Issue(units, num_units);
    CommitCopies();
  }
  WaitForPrevious();
  LetNextBegin();
  RunUnits<kFormat, kTiles>(units, ring, shared, shape, warp, lane);
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kMostDecodeWarps* kWarpLanes, 1)
    DecodeExpertsKernel(const __grid_constant__ ExpertWork work,
                        const __grid_constant__ MatrixWork beside,
                        const __grid_constant__ DecodeShape shape) {
  uint8_t* shared = DynamicShared();
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const DecodeLayout<kFormat, kTiles> layout(shape, int(blockDim.x) / kWarpLanes);
  auto* entries = reinterpret_cast<ExpertEntry*>(shared + layout.entries);
  auto* counts = reinterpret_cast<int*>(shared + layout.counts);
  const int early = beside.all_units();
  ExpertUnits<Inputs<kTiles>::kTokens> units{work, beside, entries, early};
  WeightRing<kFormat> ring(shared + warp * shape.depth * Stage<kFormat>::kBytes, shape.depth, warp,
                           lane);
  // What does not wait for the kernel before this one: the shared expert, and the others where they
  // are known.
  int issued = 0;
  for (; issued < shape.depth - 1 && ring.Issue(units, early); ++issued) CommitCopies();
  const auto list_experts = [&] {
    units.total += ListEntries(work, Inputs<kTiles>::kTokens, counts,
                               [&](int i, ExpertEntry entry) { entries[i] = entry; }) *
                   work.matrix.units;
    for (; issued < shape.depth - 1; ++issued) {
      ring.Issue(units, units.total);
      CommitCopies();
    }
  };
  if (work.begin_is_old) list_experts();
  WaitForPrevious();
  LetNextBegin();
  if (!work.begin_is_old) list_experts();
  RunUnits<kFormat, kTiles>(units, ring, shared, shape, warp, lane);
}

constexpr int CeilDivide(int a, int b) { return (a + b - 1) / b; }

// How a matrix is gone through by blocks of `warps` warps, `most` tokens at once.
void Plan(MatrixWork& m, int warps, int most) {
  m.segments = CeilDivide(m.groups, kSegmentGroups);
  m.inverse_segments = CeilDivide(256, m.segments);
  m.at_once = std::max(1, std::min(warps / m.segments, m.blocks()));
  m.passes = CeilDivide(m.segments, warps);
  m.units = CeilDivide(m.blocks(), m.at_once);
  m.chunks = CeilDivide(m.num_tokens, most);
}

// The time of a round of a block beside its loads, in what a warp's segment takes.
constexpr int kRoundOverhead = 2;

// A matrix of a launch that is laid out, and how often there is such a one.
struct Candidate {
  MatrixWork* m;
  int copies;
};
template <WeightFormat kFormat, int kTiles>
int ChooseWarps(const KernelContext& context, std::span<const Candidate> matrices,
                DecodeShape* shape, size_t* shared_bytes) {
  int best = 0;
  int64_t best_cost = 0;
  DecodeShape best_shape;
  for (int warps = 1; warps <= kMostDecodeWarps; ++warps) {
    DecodeShape s = *shape;
    int64_t units = 0, passes = 1;
    for (const Candidate& c : matrices) {
      Plan(*c.m, warps, Inputs<kTiles>::kTokens);
      units += int64_t(c.copies) * c.m->all_units();
      passes = std::max<int64_t>(passes, c.m->passes);
      s.sum_segments = std::max(s.sum_segments, c.m->segments * c.m->at_once);
    }
    for (int depth : {8, 6, 4, 3}) {
      s.depth = depth;
      if (DecodeLayout<kFormat, kTiles>(s, warps).end <= size_t(context.shared_bytes)) break;
      s.depth = 0;
    }
    if (s.depth == 0) continue;
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
  int units = 0;
  for (int i = 0; i < list.count; ++i) units += list.work[i].all_units();
  // Where tokens come in chunks a block keeps to one of them.
  const int chunks =
      std::min(CeilDivide(num_tokens, Inputs<kTiles>::kTokens), context.num_multiprocessors);
  const int blocks = context.num_multiprocessors / chunks * chunks;
  const LaunchShape launch{dim3(unsigned(std::min(units, blocks))),
                           dim3(unsigned(warps * kWarpLanes)), shared_bytes};
  Launch("linear of a few tokens", DecodeLinearKernel<kFormat, kTiles>, launch, context.stream,
         list, units, shape);
}

template <WeightFormat kFormat, int kTiles>
void LaunchExperts(const KernelContext& context, ExpertWork work, MatrixWork shared) {
  const int most = Inputs<kTiles>::kTokens;
  DecodeShape shape;
  shape.num_columns = 2 * std::min(std::max(work.num_slots, shared.num_tokens), most);
  shape.num_entries = std::min(work.num_slots, work.num_experts + work.num_slots / most);
  work.matrix.num_tokens = 1;  // of a chunk, when units are counted
  const Candidate candidates[] = {{&work.matrix, std::min(work.num_slots, work.num_experts)},
                                  {&shared, 1}};
  const bool beside = shared.num_tokens > 0;
  size_t shared_bytes = 0;
  const int warps = ChooseWarps<kFormat, kTiles>(
      context, std::span(candidates, beside ? size_t{2} : size_t{1}), &shape, &shared_bytes);
  const int units = shape.num_entries * work.matrix.units + shared.all_units();
  const LaunchShape launch{dim3(unsigned(std::min(units, context.num_multiprocessors))),
                           dim3(unsigned(warps * kWarpLanes)), shared_bytes};
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
