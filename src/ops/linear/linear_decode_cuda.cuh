// A few tokens, bounded by how fast the weights come: the pieces of the decode kernel.
//
// A warp multiplies a row block (32 rows: two panels, or a panel of gate and one of up) with one
// segment (512 inputs) of up to four tokens a tile. Lane (gid, tid) = (lane / 4, lane % 4) copies
// and reads 16 bytes at panel gid / 4, vector tid + 4 step, byte 16 (gid % 4): 4 bytes each of rows
// 4 gid .. 4 gid + 3 of the block, which are the A fragments of two MMAs. Column 2 t of B is token
// t's high plane, column 2 t + 1 the low one, so lane tid gets both dots of token tid for its rows.
//
// A block has up to 12 warps that multiply, some that load for them, and some that write: none of
// them waits for all others. What a warp multiplies passes through a ring of its own in shared
// memory, some groups of both panels a slot, as they are stored; loads run ahead over row blocks
// and matrices, and begin before the kernel before this one has ended. The rings that a warp loads
// go forward together: a slot is free once all their warps have read it. Sums of segments meet in
// shared memory and are added in ascending order by the writing warps.
#pragma once

#include "ops/linear/linear_cuda.cuh"

namespace hillstar::cuda {

inline constexpr int kTileTokens = 4;
inline constexpr int kMostDecodeWarps = 12;  // that multiply
inline constexpr int kLoadingWarps = 2;      // one alone cannot feed slots of two groups
inline constexpr int kWritingWarps = 2;
inline constexpr int kOtherWarps = kLoadingWarps + kWritingWarps;

// A slot of a ring.
template <WeightFormat kFormat, int kTiles>
struct Stage {
  using T = Tile<kFormat>;
  static constexpr int kGroups = T::kIsW15 ? 1 : (T::kIsW4 ? 4 : 2) / kTiles;
  static constexpr int kPanelBytes = kGroups * T::kBytes;
  static constexpr int kBytes = 2 * kPanelBytes;
  // Slots of every warp's ring that a pass over a matrix takes, empty ones too, so that all rings
  // of a loading warp are at the same slot.
  static __device__ __forceinline__ int SlotsOfPass(const MatrixWork& m) {
    return (min(m.groups, kSegmentGroups) + kGroups - 1) / kGroups;
  }
};

// A segment of a row block: what a warp does of a unit in a pass.
struct Quantum {
  int block = 0;  // of the unit
  int segment = 0;
  int groups = 0;  // of the segment; 0: nothing to do
};
// Of a unit of `blocks` row blocks, for warp `warp` of `warps`.
__device__ __forceinline__ Quantum QuantumOf(const MatrixWork& m, int blocks, int warps, int warp,
                                             int pass) {
  Quantum q;
  if (m.passes > 1) {
    q.segment = warp + pass * warps;
  } else {
    q.block = warp * m.inverse_segments >> 8;
    q.segment = warp - q.block * m.segments;
  }
  if (warp >= warps || q.block >= blocks || q.segment >= m.segments) return q;
  const int left = m.groups - q.segment * kSegmentGroups;
  q.groups = left < kSegmentGroups ? left : kSegmentGroups;
  return q;
}

// A run: the row blocks of one matrix (of one head) with some tokens. A launch has one or two lists
// of runs ("phases"); a block of threads goes through a range of the row blocks of each.
struct Place {
  int phase = -1;
  int at = 0, end = 0;  // row blocks of the phase
  int matrix = 0;
  int part = 0;    // run of the matrix
  int first = 0;   // row block of the run
  int blocks = 0;  // of the run

  // Row blocks of the unit that begins here.
  __device__ __forceinline__ int UnitBlocks(int at_once) const {
    const int left = min(first + blocks, end) - at;
    return left < at_once ? left : at_once;
  }
  __device__ __forceinline__ void BeginPhase(int all_blocks) {
    ++phase;
    at = int(int64_t(all_blocks) * blockIdx.x / gridDim.x);
    end = int(int64_t(all_blocks) * (blockIdx.x + 1) / gridDim.x);
    matrix = part = first = 0;
  }
};

// Part `part` of all of a matrix, `most` tokens a chunk.
__device__ __forceinline__ MatrixWork PartOf(const MatrixWork& m, int part, int most) {
  int chunk = part, head = 0;
  if (m.num_heads > 1) {
    chunk = int(uint32_t(part) / uint32_t(m.num_heads));
    head = part - chunk * m.num_heads;
  }
  return m.Head(head).Tokens(chunk * most, most);
}

// Goes to the run that holds p.at, from one before it, of a matrix or of one of the next.
template <typename Parts>
__device__ __forceinline__ void Seek(Place& p, const Parts& parts) {
  for (;;) {
    const MatrixWork& m = parts(p.matrix);
    p.blocks = m.blocks();
    const int all = (m.num_heads * m.chunks - p.part) * p.blocks;
    if (p.at - p.first < all) {
      const int skip = int(uint32_t(p.at - p.first) / uint32_t(p.blocks));
      p.part += skip;
      p.first += skip * p.blocks;
      return;
    }
    p.first += all;
    p.part = 0;
    ++p.matrix;
  }
}

// The matrices of a list.
template <int kTokens>
struct ListRuns {
  const WorkList& list;
  int all_blocks;

  // False: there is no other.
  __device__ __forceinline__ bool NextPhase(Place& p) const {
    if (p.phase == 0) return false;
    p.BeginPhase(all_blocks);
    if (p.at < p.end) SeekRun(p);
    return true;
  }
  __device__ __forceinline__ void SeekRun(Place& p) const {
    Seek(p, [&](int i) -> const MatrixWork& { return list.work[i]; });
  }
  __device__ __forceinline__ MatrixWork At(const Place& p) const {
    return PartOf(list.work[p.matrix], p.part, kTokens);
  }
};

// The shared expert, then the entries, which a block lists for itself.
template <int kTokens>
struct ExpertRuns {
  const ExpertWork& work;
  const MatrixWork& shared;
  const ExpertEntry* entries;  // in shared memory
  int num_entries;             // -1: not known yet

  __device__ __forceinline__ bool NextPhase(Place& p) const {
    if (p.phase == (num_entries < 0 ? 0 : 1)) return false;
    p.BeginPhase(p.phase < 0 ? shared.all_blocks() : num_entries * work.matrix.blocks());
    if (p.at < p.end) SeekRun(p);
    return true;
  }
  __device__ __forceinline__ void SeekRun(Place& p) const {
    if (p.phase == 0) {
      Seek(p, [&](int) -> const MatrixWork& { return shared; });
      return;
    }
    p.blocks = work.matrix.blocks();
    p.matrix = int(uint32_t(p.at) / uint32_t(p.blocks));
    p.first = p.matrix * p.blocks;
  }
  __device__ __forceinline__ MatrixWork At(const Place& p) const {
    return p.phase == 0 ? PartOf(shared, p.part, kTokens) : work.Expert(entries[p.matrix]);
  }
};

// Goes to the next unit that begins at or behind p.at. False: there is none, so far.
template <typename Runs>
__device__ __forceinline__ bool SeekUnit(Place& p, const Runs& runs) {
  while (p.at >= p.end) {
    if (!runs.NextPhase(p)) return false;
  }
  if (p.at - p.first >= p.blocks) runs.SeekRun(p);
  return true;
}

// A unit, as the loading warp tells the others of it, in shared memory.
struct alignas(16) Unit {
  MatrixWork m;
  int first_block;
  int blocks;  // 0: there is no other
  int run;     // another number, other tokens
};

// How a launch is laid out.
struct DecodeShape {
  int warps = 0;         // that multiply
  int depth = 0;         // slots of a warp's ring
  int num_units = 0;     // that there are at once, each with its sums
  int num_tokens = 0;    // of a unit, at most; B has twice as many columns
  int input_slots = 1;   // segments of inputs that a warp keeps
  int sum_segments = 0;  // most segments x row blocks of a unit
  int num_entries = 0;   // of experts, at most
};

// A segment of the inputs of up to 4 kTiles tokens, in the order of B fragments: columns 2 t and
// 2 t + 1 are token t's planes, [column][group][tid] 16 bytes, columns kColumnBytes apart so that
// two at once meet in no bank. Behind them, [token][group] the scale and -kOffset times the sum.
template <int kTiles>
struct Inputs {
  static constexpr int kTokens = kTiles * kTileTokens;
  static constexpr int kColumnBytes = kSegmentGroups * 64 + 64;
  static constexpr int kScaleBytes = kSegmentGroups * 8;  // of a token
  // For so many tokens of a launch.
  static constexpr int Bytes(int num_tokens) {
    return num_tokens * (2 * kColumnBytes + kScaleBytes);
  }
};

// Where things lie in shared memory.
template <WeightFormat kFormat, int kTiles>
struct DecodeLayout {
  size_t inputs, sums, units, entries, barriers, counts, end;

  __host__ __device__ explicit DecodeLayout(const DecodeShape& shape) {
    const size_t slots = size_t(shape.warps) * size_t(shape.depth);
    const auto num_units = size_t(shape.num_units);
    inputs = slots * size_t(Stage<kFormat, kTiles>::kBytes);
    sums = inputs + size_t(shape.warps) * size_t(shape.input_slots) *
                        size_t(Inputs<kTiles>::Bytes(shape.num_tokens));
    units = sums + num_units * SumBytes(shape);
    entries = units + num_units * sizeof(Unit);
    barriers = entries + size_t(shape.num_entries) * sizeof(ExpertEntry);
    counts = barriers + size_t(NumBarriers(shape)) * sizeof(uint64_t);
    end = counts + kMostListWarps * sizeof(int);
  }
  static __host__ __device__ int NumBarriers(const DecodeShape& shape) {
    return (shape.warps + kLoadingWarps) * shape.depth + 3 * shape.num_units;
  }
  static __host__ __device__ size_t SumBytes(const DecodeShape& shape) {
    return size_t(shape.sum_segments * shape.num_tokens * kBlockRows) * sizeof(float);
  }
};

// What the warps of a block share.
template <WeightFormat kFormat, int kTiles>
struct DecodeBlock {
  using S = Stage<kFormat, kTiles>;
  using I = Inputs<kTiles>;

  const DecodeShape& shape;
  uint8_t* shared;
  DecodeLayout<kFormat, kTiles> layout;
  int warp, lane;

  __device__ explicit DecodeBlock(const DecodeShape& s)
      : shape(s),
        shared(DynamicShared()),
        layout(s),
        warp(int(threadIdx.x) / kWarpLanes),
        lane(int(threadIdx.x) % kWarpLanes) {}

  __device__ __forceinline__ bool loads() const {
    return warp >= shape.warps && warp < shape.warps + kLoadingWarps;
  }
  __device__ __forceinline__ uint8_t* stage(int w, int slot) const {
    return shared + (w * shape.depth + slot) * S::kBytes;
  }
  // A warp's slot has what was asked for; those of all warps of a loading warp have been read.
  __device__ __forceinline__ uint64_t* full(int w, int slot) const {
    return barriers() + w * shape.depth + slot;
  }
  __device__ __forceinline__ uint64_t* free(int loading_warp, int slot) const {
    return full(shape.warps + loading_warp, slot);
  }
  // There is a unit; all its sums are there; it is written, and nobody
  // loads it any more.
  __device__ __forceinline__ uint64_t* told(int unit) const {
    return barriers() + (shape.warps + kLoadingWarps) * shape.depth + unit;
  }
  __device__ __forceinline__ uint64_t* summed(int unit) const {
    return told(unit) + shape.num_units;
  }
  __device__ __forceinline__ uint64_t* written(int unit) const {
    return told(unit) + 2 * shape.num_units;
  }
  __device__ __forceinline__ Unit& unit(int i) const {
    return reinterpret_cast<Unit*>(shared + layout.units)[i];
  }
  __device__ __forceinline__ float* sums(int unit) const {
    return reinterpret_cast<float*>(shared + layout.sums) +
           unit * (shape.sum_segments * shape.num_tokens * kBlockRows);
  }

  // By all threads; ends with a barrier.
  __device__ __forceinline__ void Begin() const {
    for (int i = int(threadIdx.x); i < layout.NumBarriers(shape); i += int(blockDim.x)) {
      InitBarrier(barriers() + i, Arrivals(i));
    }
    FenceBarriers();
    __syncthreads();
  }

 private:
  // Of a phase of barrier i. What has been read or written is handed over by every lane for itself,
  // and a warp waits for one barrier at a time. One lane's arrival for its warp, or lanes that wait
  // for different barriers, would be right too, but compute-sanitizer's racecheck does not follow
  // them.
  __device__ __forceinline__ int Arrivals(int i) const {
    const int num_full = shape.warps * shape.depth;
    if (i < num_full) return HasBulkCopies() ? 1 : kWarpLanes;
    i -= num_full;
    for (int loading_warp = 0; loading_warp < kLoadingWarps; ++loading_warp, i -= shape.depth) {
      const int warps = (shape.warps - loading_warp + kLoadingWarps - 1) / kLoadingWarps;
      if (i < shape.depth) return max(warps, 1) * kWarpLanes;  // free
    }
    if (i < shape.num_units) return 1;                             // told
    if (i < 2 * shape.num_units) return shape.warps * kWarpLanes;  // summed
    return (kLoadingWarps + kWritingWarps) * kWarpLanes;           // written
  }
  __device__ __forceinline__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(shared + layout.barriers);
  }
};

// Which of some slots is next, and the parity of its phase that is waited for.
struct RingPosition {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next(int depth) {
    if (++slot < depth) return;
    slot = 0;
    parity ^= 1;
  }
};

// A loading warp. Each loads for every kLoadingWarps-th of the warps that multiply: a lane for one
// of them, or all lanes together where there are no bulk copies. The first tells of the units.
template <WeightFormat kFormat, int kTiles>
class Loader {
 public:
  using T = Tile<kFormat>;
  using S = Stage<kFormat, kTiles>;

  __device__ explicit Loader(const DecodeBlock<kFormat, kTiles>& block)
      : block_(block),
        first_(block.warp - block.shape.warps),
        warp_(first_ + block.lane * kLoadingWarps) {}

  // Tells of the next unit and loads it. False: there is no other, so far.
  template <typename Runs>
  __device__ __forceinline__ bool LoadUnit(const Runs& runs) {
    if (!SeekUnit(place_, runs)) return false;
    Unit& unit = block_.unit(at_.slot);
    if (first_ == 0) {
      WaitForBarrier(block_.written(at_.slot), at_.parity ^ 1);
      if (block_.lane == 0) {
        unit.m = runs.At(place_);
        unit.first_block = place_.at - place_.first;
        unit.blocks = place_.UnitBlocks(unit.m.at_once);
        unit.run = 2 * place_.first + place_.phase;
        Arrive(block_.told(at_.slot));
      }
      __syncwarp();
    }
    WaitForBarrier(block_.told(at_.slot), at_.parity);
    place_.at += unit.blocks;
    const int passes = first_ < block_.shape.warps ? unit.m.passes : 0;
    for (int pass = 0; pass < passes; ++pass) LoadPass(unit, pass);
    Arrive(block_.written(at_.slot));
    at_.Next(block_.shape.num_units);
    return true;
  }
  // There is no other.
  __device__ __forceinline__ void End() {
    if (first_ != 0) return;
    WaitForBarrier(block_.written(at_.slot), at_.parity ^ 1);
    if (block_.lane == 0) {
      block_.unit(at_.slot).blocks = 0;
      Arrive(block_.told(at_.slot));
    }
  }

 private:
  __device__ __forceinline__ void LoadPass(const Unit& unit, int pass) {
    const MatrixWork& m = unit.m;
    const Quantum q = QuantumOf(m, unit.blocks, block_.shape.warps, warp_, pass);
    const int b = unit.first_block + q.block, panel = m.up ? b : 2 * b;
    const uint8_t* from =
        m.w + int64_t(panel) * int64_t(m.panel_stride) + q.segment * (kSegmentGroups * T::kBytes);
    int64_t other = int64_t(m.panel_stride);  // panel, from this one
    if (m.up) other = m.up - m.w;
    const bool has_other = m.up || panel + 1 < m.panels();
    int left = q.groups;
    const int slots = S::SlotsOfPass(m);
#pragma unroll 1  // a longer program makes the experts of a decode step 2 % slower on an H200
    for (int i = 0; i < slots; ++i) {
      WaitForBarrier(block_.free(first_, ring_.slot), ring_.parity ^ 1);
      __syncwarp();  // who has no warp to load for must not miss the phase
      const int bytes = max(0, min(left, S::kGroups)) * T::kBytes;
      if (!HasBulkCopies()) {
        CopyAll(from, other, bytes, has_other);
      } else if (warp_ < block_.shape.warps) {
        uint64_t* full = block_.full(warp_, ring_.slot);
        uint8_t* to = block_.stage(warp_, ring_.slot);
        ArriveExpecting(full, has_other ? 2 * bytes : bytes);
        if (bytes > 0) {
          BulkCopy(to, from, bytes, full);
          if (has_other) BulkCopy(to + S::kPanelBytes, from + other, bytes, full);
        }
      }
      ring_.Next(block_.shape.depth);
      from += S::kPanelBytes;
      left -= S::kGroups;
    }
  }
  // By all lanes: for each warp what its lane has been asked to copy of one panel, or of another
  // too, which begins `other` behind it.
  __device__ __forceinline__ void CopyAll(const uint8_t* from, int64_t other, int bytes,
                                          bool has_other) {
    for (int i = 0; first_ + i * kLoadingWarps < block_.shape.warps; ++i) {
      const int w = first_ + i * kLoadingWarps, of_panel = __shfl_sync(kAllLanes, bytes, i);
      const auto at = uint64_t(__shfl_sync(kAllLanes, int64_t(uintptr_t(from)), i));
      const int64_t second = __shfl_sync(kAllLanes, other, i);
      const bool both = __shfl_sync(kAllLanes, int(has_other), i) != 0;
      uint8_t* to = block_.stage(w, ring_.slot);
      for (int j = block_.lane * 16; j < of_panel; j += kWarpLanes * 16) {
        const uint8_t* source = reinterpret_cast<const uint8_t*>(at) + j;
        CopyAsync16(to + j, source);
        CopyAsync16(to + S::kPanelBytes + j, source + second, both);
      }
      ArriveAfterCopies(block_.full(w, ring_.slot));
    }
  }

  const DecodeBlock<kFormat, kTiles>& block_;
  int first_, warp_;  // that multiplies: of lane 0, of this lane
  Place place_;
  RingPosition at_;    // unit
  RingPosition ring_;  // of its warps
};

}  // namespace hillstar::cuda
