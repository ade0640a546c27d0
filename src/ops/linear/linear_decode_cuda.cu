// A few tokens: see linear_decode_cuda.cuh.
#include <algorithm>

#include "core/check.h"
#include "ops/linear/linear_decode_cuda.cuh"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {
namespace {

// What a warp multiplies with: the inputs of a segment, or of a segment for each pass.
template <WeightFormat kFormat, int kTiles>
class WarpInputs {
 public:
  using I = Inputs<kTiles>;

  __device__ WarpInputs(uint8_t* inputs, const DecodeShape& shape, const BadTokens& bad, int lane)
      : bad_(bad),
        inputs_(inputs),
        num_tokens_(shape.num_tokens),
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
    __syncwarp();
    uint8_t* to = inputs_ + (kept ? pass : 0) * I::Bytes(num_tokens_);
    if (m.floats.data) {
      Quantise(m, q, to);
    } else {
      Copy(m, q, to);
    }
    __syncwarp();
  }
  // The four B words of this lane's column of a tile. Columns that nobody
  // has are another's: what comes of them is not used.
  __device__ __forceinline__ uint4 Words(int tile, int group) const {
    return *reinterpret_cast<const uint4*>(words_[tile] + group * 64);
  }
  __device__ __forceinline__ float2 ScaleAndCorrection(int tile, int group) const {
    return *reinterpret_cast<const float2*>(scales_[tile] + group * 8);
  }

 private:
  // Of the 16 words of a group lane tid of a column has words tid + 4 i, i counting up, but for W4
  // 0, 2, 1, 3: neighbours meet in an MMA. The j-th of them is that of this i, and the reverse.
  static __device__ __forceinline__ int Permuted(int j) {
    return Tile<kFormat>::kIsW4 ? j % 2 * 2 + j / 2 : j;
  }
  static __device__ __forceinline__ float2 ScaleAndCorrectionOf(float scale, int sum) {
    return make_float2(scale,
                       __int_as_float(int(0u - uint32_t(sum) * uint32_t(Tile<kFormat>::kOffset))));
  }

  // Four lanes have a group of the segment, each 16 of its values, in words 4 part .. 4 part + 3.
  __device__ __forceinline__ int group() const { return lane_ / 4; }
  __device__ __forceinline__ int part() const { return lane_ % 4; }
  __device__ __forceinline__ void Store(uint8_t* to, int t, const PlaneSixteenth& x) const {
    uint8_t* place = to + 2 * t * I::kColumnBytes + group() * 64 + Permuted(part()) * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint32_t*>(place + i * 16) = x.hi[i];
      *reinterpret_cast<uint32_t*>(place + I::kColumnBytes + i * 16) = x.lo[i];
    }
    if (part() != 0) return;
    *reinterpret_cast<float2*>(to + 2 * num_tokens_ * I::kColumnBytes + t * I::kScaleBytes +
                               group() * 8) = ScaleAndCorrectionOf(x.scale, x.sum);
  }
  // From planes.
  __device__ __forceinline__ void Copy(const MatrixWork& m, const Quantum& q, uint8_t* to) const {
    if (group() >= q.groups) return;
    const int64_t first = q.segment * kSegmentGroups + group();
    // Tokens whose loads are on their way together, as far as registers reach.
    [[maybe_unused]] constexpr int kAtOnce = kTiles == 1 || Tile<kFormat>::kIsW15 ? 2 : 4;
#pragma unroll kAtOnce
    for (int t = 0; t < m.num_tokens; ++t) {
      const int64_t at = m.x_row(t) * m.groups + first;
      PlaneSixteenth mine;
      const uint4 hi = reinterpret_cast<const uint4*>(m.x.hi + at * kGroup)[part()];
      const uint4 lo = reinterpret_cast<const uint4*>(m.x.lo + at * kGroup)[part()];
      mine.scale = m.x.scale[at];
      mine.sum = m.x.sum[at];
      mine.hi[0] = hi.x, mine.hi[1] = hi.y, mine.hi[2] = hi.z, mine.hi[3] = hi.w;
      mine.lo[0] = lo.x, mine.lo[1] = lo.y, mine.lo[2] = lo.z, mine.lo[3] = lo.w;
      Store(to, t, mine);
    }
  }
  // From floats.
  __device__ __forceinline__ void Quantise(const MatrixWork& m, const Quantum& q,
                                           uint8_t* to) const {
    const int64_t first = (q.segment * kSegmentGroups + group()) * kGroup + part() * 16;
    const int64_t left = group() < q.groups ? m.x.cols - first : 0;
#pragma unroll 1
    for (int t = 0; t < m.num_tokens; ++t) {
      const int64_t row = m.x_row(t);
      const PlaneSixteenth mine = QuantiseByFour(RowOf(m.floats, row) + first, left);
      Store(to, t, mine);
      if (!mine.finite && part() == 0) NoteBad(bad_.first, bad_.code, m.floats.owner.token(row));
    }
  }
  __device__ __forceinline__ void Use(int slot) {
    const uint8_t* from = inputs_ + slot * I::Bytes(num_tokens_);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int column = min(i * 8 + lane_ / 4, 2 * num_tokens_ - 1);
      const int t = min(i * kTileTokens + lane_ % 4, num_tokens_ - 1);
      words_[i] = from + column * I::kColumnBytes + lane_ % 4 * 16;
      scales_[i] = from + 2 * num_tokens_ * I::kColumnBytes + t * I::kScaleBytes;
    }
  }

  const BadTokens& bad_;
  uint8_t* inputs_;
  int num_tokens_, num_slots_, lane_;
  int run_ = -1, loaded_ = 0;  // passes of the run that have been loaded
  const uint8_t* words_[kTiles];
  const uint8_t* scales_[kTiles];
};

// What a lane needs of a group: weights, the scales of its rows, B words of each tile.
template <WeightFormat kFormat, int kUsedTiles>
struct GroupWords {
  using T = Tile<kFormat>;
  static constexpr int kSteps = T::kPlaneVectors / 4;
  uint4 w[T::kPlanes * kSteps];
  float w_scale[4];
  uint4 x[kUsedTiles];

  // `panel`: this lane's, of the group.
  template <int kTiles>
  __device__ __forceinline__ void Load(const uint8_t* panel,
                                       const WarpInputs<kFormat, kTiles>& x_of, int group,
                                       int lane) {
    const uint8_t* from = panel + lane % 4 * T::kVectorBytes + lane / 4 % 4 * 16;
#pragma unroll
    for (int i = 0; i < T::kPlanes * kSteps; ++i) {
      w[i] = *reinterpret_cast<const uint4*>(from + i * 4 * T::kVectorBytes);
    }
#pragma unroll
    for (int tile = 0; tile < kUsedTiles; ++tile) x[tile] = x_of.Words(tile, group);
    T::Scales(panel + T::kScaleOffset, lane / 4 % 4, w_scale);
  }
};

// c[h] = rows 4 gid + 2 h and + 1 of 64 inputs, from the words of a plane.
template <WeightFormat kFormat>
__device__ __forceinline__ void MultiplyPlane(int (&c)[2][4], const uint4* words, uint4 x) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[h][i] = 0;
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const uint32_t b0 = s == 0 ? x.x : x.z, b1 = s == 0 ? x.y : x.w;
    if constexpr (Tile<kFormat>::kIsW4) {
      constexpr uint32_t kLow = 0x0f0f0f0fu;
      const uint4 q = words[s];
      MmaUnsignedSigned(c[0], {q.x & kLow, q.y & kLow, q.x >> 4 & kLow, q.y >> 4 & kLow}, b0, b1);
      MmaUnsignedSigned(c[1], {q.z & kLow, q.w & kLow, q.z >> 4 & kLow, q.w >> 4 & kLow}, b0, b1);
    } else {
      const uint4 p = words[2 * s], q = words[2 * s + 1];
      MmaUnsignedSigned(c[0], {p.x, p.y, q.x, q.y}, b0, b1);
      MmaUnsignedSigned(c[1], {p.z, p.w, q.z, q.w}, b0, b1);
    }
  }
}

// Both planes of x of a row's dot, less the offset of the weights: row i of the lane's four.
__device__ __forceinline__ int BothPlanes(const int (&c)[2][4], int correction, int i) {
  return int(256u * uint32_t(c[i / 2][i % 2 * 2]) +
             (uint32_t(c[i / 2][i % 2 * 2 + 1]) + uint32_t(correction)));
}

// sums[tile][i] += a group.
template <WeightFormat kFormat, int kTiles, int kUsedTiles>
__device__ __forceinline__ void MultiplyGroup(float (&sums)[kTiles][4],
                                              const GroupWords<kFormat, kUsedTiles>& words,
                                              const WarpInputs<kFormat, kTiles>& x, int group) {
  using T = Tile<kFormat>;
#pragma unroll
  for (int tile = 0; tile < kUsedTiles; ++tile) {
    const float2 s = x.ScaleAndCorrection(tile, group);
    const int correction = __float_as_int(s.y);
    int high[2][4], low[2][4] = {};
    MultiplyPlane<kFormat>(high, words.w, words.x[tile]);
    if constexpr (T::kIsW15) MultiplyPlane<kFormat>(low, words.w + 4, words.x[tile]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float d = GroupDot<kFormat>(BothPlanes(high, correction, i),
                                        T::kIsW15 ? BothPlanes(low, correction, i) : 0);
      sums[tile][i] = __fmaf_rn(d, __fmul_rn(words.w_scale[i], s.x), sums[tile][i]);
    }
  }
}

// A segment, slot by slot. Of the `slots` of the pass some may be empty, all if `groups` is 0.
template <WeightFormat kFormat, int kTiles, int kUsedTiles>
__device__ __forceinline__ void MultiplySegment(float (&sums)[kTiles][4],
                                                const DecodeBlock<kFormat, kTiles>& block,
                                                RingPosition& ring,
                                                const WarpInputs<kFormat, kTiles>& x, int groups,
                                                int slots) {
  using S = Stage<kFormat, kTiles>;
#pragma unroll 1
  for (int first = 0; first < slots * S::kGroups; first += S::kGroups) {
    WaitForBarrier(block.full(block.warp, ring.slot), ring.parity);
    const uint8_t* panel = block.stage(block.warp, ring.slot) + block.lane / 16 * S::kPanelBytes;
    if (first + S::kGroups <= groups) {
      GroupWords<kFormat, kUsedTiles> words[2];  // the next group's are on their way
      words[0].Load(panel, x, first, block.lane);
#pragma unroll
      for (int j = 0; j < S::kGroups; ++j) {
        if (j + 1 < S::kGroups) {
          words[(j + 1) % 2].Load(panel + (j + 1) * S::T::kBytes, x, first + j + 1, block.lane);
        }
        MultiplyGroup<kFormat, kTiles, kUsedTiles>(sums, words[j % 2], x, first + j);
      }
    } else if (S::kGroups > 1) {
#pragma unroll 1
      for (int j = 0; first + j < groups; ++j) {
        GroupWords<kFormat, kUsedTiles> words;
        words.Load(panel + j * S::T::kBytes, x, first + j, block.lane);
        MultiplyGroup<kFormat, kTiles, kUsedTiles>(sums, words, x, first + j);
      }
    }
    Arrive(block.free(block.warp % kLoadingWarps, ring.slot));
    ring.Next(block.shape.depth);
  }
}

// The warps that multiply.
template <WeightFormat kFormat, int kTiles>
__device__ __forceinline__ void Multiply(const DecodeBlock<kFormat, kTiles>& block,
                                         const BadTokens& bad) {
  using I = Inputs<kTiles>;
  const DecodeShape& shape = block.shape;
  const int lane = block.lane;
  WarpInputs<kFormat, kTiles> x(block.shared + block.layout.inputs +
                                    block.warp * shape.input_slots * I::Bytes(shape.num_tokens),
                                shape, bad, lane);
  RingPosition ring;
  for (RingPosition at;; at.Next(shape.num_units)) {
    WaitForBarrier(block.told(at.slot), at.parity);
    const Unit& unit = block.unit(at.slot);
    if (unit.blocks == 0) return;
    const int passes = unit.m.passes;
    for (int pass = 0; pass < passes; ++pass) {
      const Quantum q = QuantumOf(unit.m, unit.blocks, shape.warps, block.warp, pass);
      if (q.groups > 0) x.Load(unit.m, q, unit.run, pass);
      const int slots = Stage<kFormat, kTiles>::SlotsOfPass(unit.m);
      float sums[kTiles][4] = {};
      if (kTiles == 1 || unit.m.num_tokens > kTileTokens) {
        MultiplySegment<kFormat, kTiles, kTiles>(sums, block, ring, x, q.groups, slots);
      } else {
        MultiplySegment<kFormat, kTiles, 1>(sums, block, ring, x, q.groups, slots);
      }
      if (q.groups == 0) continue;
      float* to =
          block.sums(at.slot) +
          ((q.block * unit.m.segments + q.segment) * shape.num_tokens + lane % 4) * kBlockRows +
          lane / 4 * 4;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile * kTileTokens + lane % 4 >= shape.num_tokens) break;
        *reinterpret_cast<float4*>(to + tile * kTileTokens * kBlockRows) =
            make_float4(sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]);
      }
    }
    Arrive(block.summed(at.slot));
  }
}

// Adds the segments' sums of a unit in ascending order and writes what comes of them, by the
// writing warps, of which this is thread `thread`. unit_tokens: DecodeShape::num_tokens.
__device__ __forceinline__ void WriteUnit(const Unit& unit, const float* sums, int unit_tokens,
                                          uint32_t thread) {
  const MatrixWork& m = unit.m;
  const bool swiglu = m.up != nullptr;
  const int log_rows = swiglu ? 4 : 5, rows = 1 << log_rows, segments = m.segments;
  const auto tokens = uint32_t(m.num_tokens);
  const uint32_t outputs = uint32_t(unit.blocks) * tokens << log_rows;
  for (uint32_t i = thread; i < outputs; i += kWritingWarps * kWarpLanes) {
    const uint32_t j = i >> log_rows;
    const int row = int(i) & (rows - 1), block = tokens == 1 ? int(j) : int(j / tokens);
    const int t = int(j) - block * int(tokens);
    const int64_t r = int64_t(unit.first_block + block) * rows + row;
    if (r >= m.rows) continue;
    const float* from = sums + (block * segments * unit_tokens + t) * kBlockRows + row;
    const int stride = unit_tokens * kBlockRows;
    float total = 0, up = 0;
#pragma unroll 4
    for (int s = 0; s < segments; ++s) {
      total = __fadd_rn(total, from[s * stride]);
      if (swiglu) up = __fadd_rn(up, from[s * stride + kPanelRows]);
    }
    m.y[t * m.y_stride + r] = swiglu ? __fmul_rn(Silu(total), up) : total;
  }
}

// The warps that write.
template <WeightFormat kFormat, int kTiles>
__device__ __forceinline__ void Write(const DecodeBlock<kFormat, kTiles>& block) {
  const auto thread = threadIdx.x - uint32_t((block.shape.warps + kLoadingWarps) * kWarpLanes);
  for (RingPosition at;; at.Next(block.shape.num_units)) {
    WaitForBarrier(block.told(at.slot), at.parity);
    const Unit& unit = block.unit(at.slot);
    if (unit.blocks == 0) return;
    WaitForBarrier(block.summed(at.slot), at.parity);
    WriteUnit(unit, block.sums(at.slot), block.shape.num_tokens, thread);
    Arrive(block.written(at.slot));
  }
}

// All that is left to do, each warp its part.
template <WeightFormat kFormat, int kTiles, typename Runs>
__device__ __forceinline__ void Run(const DecodeBlock<kFormat, kTiles>& block, const Runs& runs,
                                    Loader<kFormat, kTiles>& loader, const BadTokens& bad) {
  if (block.warp < block.shape.warps) {
    Multiply<kFormat, kTiles>(block, bad);
  } else if (block.loads()) {
    while (loader.LoadUnit(runs)) {
    }
    loader.End();
  } else {
    Write<kFormat, kTiles>(block);
  }
}

constexpr int kMostThreads = (kMostDecodeWarps + kOtherWarps) * kWarpLanes;
template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kMostThreads, 1)
    DecodeLinearKernel(const __grid_constant__ WorkList list, int all_blocks,
                       const __grid_constant__ DecodeShape shape,
                       const __grid_constant__ BadTokens bad) {
  const DecodeBlock<kFormat, kTiles> block(shape);
  const ListRuns<Inputs<kTiles>::kTokens> runs{list, all_blocks};
  Loader<kFormat, kTiles> loader(block);
  block.Begin();
  if (!block.loads()) WaitForPrevious();  // what is loaded does not change
  LetNextBegin();
  Run<kFormat, kTiles>(block, runs, loader, bad);
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(kMostThreads, 1)
    DecodeExpertsKernel(const __grid_constant__ ExpertWork work,
                        const __grid_constant__ MatrixWork beside,
                        const __grid_constant__ DecodeShape shape,
                        const __grid_constant__ BadTokens bad) {
  const DecodeBlock<kFormat, kTiles> block(shape);
  auto* entries = reinterpret_cast<ExpertEntry*>(block.shared + block.layout.entries);
  auto* counts = reinterpret_cast<int*>(block.shared + block.layout.counts);
  ExpertRuns<Inputs<kTiles>::kTokens> runs{work, beside, entries, -1};
  Loader<kFormat, kTiles> loader(block);
  block.Begin();
  // What does not wait for the kernel before this one: a unit of the shared expert, if nobody has
  // to make room for it, and the others where they are known.
  const bool fits =
      beside.passes == 1 && shape.depth * Stage<kFormat, kTiles>::kGroups >= kSegmentGroups;
  if (fits && block.loads()) loader.LoadUnit(runs);
  const auto list_experts = [&] {
    runs.num_entries = ListEntries(work, Inputs<kTiles>::kTokens, counts,
                                   [&](int i, ExpertEntry entry) { entries[i] = entry; });
  };
  if (work.begin_is_old) list_experts();
  if (!work.begin_is_old || !block.loads()) WaitForPrevious();
  // After the wait, unless begin_is_old: ExpertsDown and the norm behind it read the router's
  // results before they wait, which are whole only because this kernel had waited.
  LetNextBegin();
  if (!work.begin_is_old) list_experts();
  Run<kFormat, kTiles>(block, runs, loader, bad);
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

// Chooses what fits into shared memory: inputs that stay, then units, then long rings. (Half of it
// for each of two blocks, of this kernel and of the next, was slower: the loading warps cannot feed
// short slots.)
template <WeightFormat kFormat, int kTiles>
bool FitShape(const KernelContext& context, int passes, DecodeShape* s) {
  for (int slots : {passes, 1}) {
    s->input_slots = slots;
    for (int units : {3, 2, 1}) {
      s->num_units = units;
      for (int depth : {8, 7, 6, 5, 4, 3, 2}) {
        s->depth = depth;
        if (DecodeLayout<kFormat, kTiles>(*s).end <= size_t(context.shared_bytes)) return true;
      }
    }
  }
  return false;
}

template <WeightFormat kFormat, int kTiles>
LaunchShape ChooseShape(const KernelContext& context, std::span<const Candidate> matrices,
                        DecodeShape* shape) {
  int64_t best_cost = 0;
  DecodeShape best;
  for (int warps = 1; warps <= kMostDecodeWarps; ++warps) {
    DecodeShape s = *shape;
    s.warps = warps;
    int64_t units = 0;
    int passes = 1;
    for (const Candidate& c : matrices) {
      Plan(*c.m, warps, Inputs<kTiles>::kTokens);
      units += int64_t(c.copies) * CeilDivide(c.m->all_blocks(), c.m->at_once);
      passes = std::max(passes, c.m->passes);
      s.sum_segments = std::max(s.sum_segments, c.m->segments * c.m->at_once);
    }
    if (!FitShape<kFormat, kTiles>(context, passes, &s)) continue;
    const int64_t rounds =
        (units + context.num_multiprocessors - 1) / context.num_multiprocessors * passes;
    const int64_t cost = rounds * (warps + kRoundOverhead);
    if (best.warps != 0 && cost > best_cost) continue;
    best_cost = cost;
    best = s;
  }
  CHECK(best.warps > 0);
  for (const Candidate& c : matrices) Plan(*c.m, best.warps, Inputs<kTiles>::kTokens);
  *shape = best;
  return {dim3(unsigned(context.num_multiprocessors)),
          dim3(unsigned((best.warps + kOtherWarps) * kWarpLanes)),
          DecodeLayout<kFormat, kTiles>(best).end};
}

template <WeightFormat kFormat, int kTiles>
void LaunchLinear(const KernelContext& context, WorkList list, int num_tokens) {
  DecodeShape shape;
  shape.num_tokens = std::min(num_tokens, Inputs<kTiles>::kTokens);
  Candidate candidates[kMaxLayersAtOnce];
  for (int i = 0; i < list.count; ++i) candidates[i] = {&list.work[i], 1};
  LaunchShape launch =
      ChooseShape<kFormat, kTiles>(context, std::span(candidates, size_t(list.count)), &shape);
  int blocks = 0;
  for (int i = 0; i < list.count; ++i) blocks += list.work[i].all_blocks();
  launch.grid.x = std::min(launch.grid.x, unsigned(blocks));
  AddWork<kFormat>(list, &launch);
  Launch("linear of a few tokens", DecodeLinearKernel<kFormat, kTiles>, launch, context.stream,
         list, blocks, shape, context.bad);
}

template <WeightFormat kFormat, int kTiles>
void LaunchExperts(const KernelContext& context, ExpertWork work, MatrixWork shared) {
  const int most = Inputs<kTiles>::kTokens;
  DecodeShape shape;
  CHECK(work.num_tokens >= 1 && shared.num_tokens <= work.num_tokens);
  shape.num_tokens = std::min(work.num_tokens, most);
  shape.num_entries = std::min(work.num_slots, work.num_experts + work.num_slots / most);
  work.matrix.num_tokens = 1;  // of a chunk, when blocks are counted
  const Candidate candidates[] = {{&work.matrix, std::min(work.num_slots, work.num_experts)},
                                  {&shared, 1}};
  const bool beside = shared.num_tokens > 0;
  LaunchShape launch = ChooseShape<kFormat, kTiles>(
      context, std::span(candidates, beside ? size_t{2} : size_t{1}), &shape);
  if (!beside) shared = MatrixWork{};
  const int blocks = shape.num_entries * work.matrix.blocks() + shared.all_blocks();
  launch.grid.x = std::min(launch.grid.x, unsigned(blocks));
  AddWork<kFormat>(work, shared, &launch);
  Launch("experts of a few tokens", DecodeExpertsKernel<kFormat, kTiles>, launch, context.stream,
         work, shared, shape, context.bad);
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
