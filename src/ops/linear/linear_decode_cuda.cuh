// A few tokens, bounded by how fast the weights come: the pieces of the decode kernel.
//
// A warp multiplies a row block (32 rows: two panels, or a panel of gate and one of up) with one
// segment (512 inputs) of up to four tokens a tile. Lane (gid, tid) = (lane / 4, lane % 4) copies
// and reads 16 bytes at panel gid / 4, vector tid + 4 step, byte 16 (gid % 4): 4 bytes each of rows
// 4 gid .. 4 gid + 3 of the block, which are the A fragments of two MMAs. Column 2 t of B is token
// t's high plane, column 2 t + 1 the low one, so lane tid gets both dots of token tid for its rows.
//
// What a warp reads passes through a ring of its own in shared memory, some groups of both panels a
// slot, as they are stored; loads run ahead over row blocks and matrices, and begin before the
// kernel before this one has ended. Where there are bulk copies two lanes ask for a slot, a panel
// each; elsewhere all lanes do, for neighbouring 16 bytes. Sums of segments meet in shared memory
// and are added in ascending order.
#pragma once

#include "ops/linear/linear_cuda.cuh"

namespace hillstar::cuda {

inline constexpr int kTileTokens = 4;
inline constexpr int kMostDecodeWarps = 12;

// A slot of the ring.
template <WeightFormat kFormat>
struct Stage {
  using T = Tile<kFormat>;
  static constexpr int kGroups = T::kIsW4 ? 2 : 1;
  static constexpr int kPanelBytes = kGroups * T::kBytes;
  static constexpr int kBytes = 2 * kPanelBytes;
};

// A segment of a row block: what a warp does between two barriers.
struct Quantum {
  int block = 0;  // of the unit
  int segment = 0;
  int groups = 0;  // of the segment; 0: nothing to do
};
// Of a unit of `blocks` row blocks.
__device__ __forceinline__ Quantum QuantumOf(const MatrixWork& m, int blocks, int warp, int pass) {
  Quantum q;
  if (m.passes > 1) {
    q.segment = warp + pass * int(blockDim.x) / kWarpLanes;
  } else {
    q.block = warp * m.inverse_segments >> 8;
    q.segment = warp - q.block * m.segments;
  }
  if (q.block >= blocks || q.segment >= m.segments) return q;
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

// Where a warp is: its quanta of all units of its block. In shared memory, written by lane 0.
struct alignas(16) Cursor {
  Place place;
  int pass;
  int blocks;  // of the unit
  int any;     // or the end is reached, so far
  MatrixWork m;

  // Before the first quantum.
  __device__ __forceinline__ void Begin() {
    place = Place();
    pass = -1;
    blocks = 0;
    m.passes = 0;
  }
  // To the next quantum, by all lanes. False: there is no other.
  template <typename Runs>
  __device__ __forceinline__ bool Next(const Runs& runs, int lane) {
    __syncwarp();
    if (lane == 0 && ++pass >= m.passes) SeekUnit(runs);
    __syncwarp();
    return any != 0;
  }
  __device__ __forceinline__ int run() const { return 2 * place.first + place.phase; }

 private:
  template <typename Runs>
  __device__ __forceinline__ void SeekUnit(const Runs& runs) {
    Place p = place;
    p.at += blocks;
    bool same = true;
    while (p.at >= p.end) {
      same = false;
      if (runs.NextPhase(p)) continue;
      place = p;
      pass = -1;
      blocks = m.passes = any = 0;
      return;
    }
    if (p.at - p.first >= p.blocks) {
      same = false;
      runs.SeekRun(p);
    }
    if (!same) m = runs.At(p);
    place = p;
    pass = 0;
    blocks = p.UnitBlocks(m.at_once);
    any = 1;
  }
};

// What a warp loads, ahead of what it multiplies.
template <WeightFormat kFormat>
class WeightRing {
 public:
  using T = Tile<kFormat>;
  using S = Stage<kFormat>;

  // `cursor` and `barriers`, [depth], of this warp.
  __device__ WeightRing(uint8_t* ring, Cursor* cursor, uint64_t* barriers, int depth, int lane)
      : ring_(ring), cursor_(*cursor), barriers_(barriers), depth_(depth), lane_(lane) {
    if (lane == 0) {
      cursor->Begin();
      for (int i = 0; HasBulkCopies() && i < depth; ++i) InitBarrier(barriers + i, 2);
      FenceBarriers();
    }
    __syncwarp();
  }

  // Puts the next stage on its way, if there is one.
  template <typename Runs>
  __device__ __forceinline__ bool Issue(const Runs& runs, int warp) {
    while (left_ <= 0) {
      if (!cursor_.Next(runs, lane_)) return false;
      Locate(warp);
    }
    uint8_t* to = ring_ + issue_slot_ * S::kBytes;
    const int groups = left_ < S::kGroups ? left_ : S::kGroups;
    if (HasBulkCopies()) {
      if (lane_ < 2) {
        ArriveWithBulkCopy(barriers_ + issue_slot_, to + lane_ * S::kPanelBytes, from_,
                           valid_ ? groups * T::kBytes : 0);
      }
      from_ += S::kPanelBytes;
    } else {
      // Lanes 0 .. 15 a panel, 16 .. 31 the other.
      const int panel = lane_ / 16;
      constexpr int kChunks = S::kPanelBytes / 16;
#pragma unroll
      for (int i = 0; i < (kChunks + 15) / 16; ++i) {
        const int chunk = i * 16 + lane_ % 16;
        if (chunk < kChunks) {
          CopyAsync16(to + panel * S::kPanelBytes + chunk * 16, from_ + chunk * 16,
                      valid_ && chunk * 16 < groups * T::kBytes);
        }
      }
      from_ += S::kPanelBytes;
    }
    left_ -= S::kGroups;
    issue_slot_ = issue_slot_ + 1 == depth_ ? 0 : issue_slot_ + 1;
    return true;
  }
  // After each Issue that is waited for, also where there was nothing left.
  __device__ __forceinline__ void Commit() const {
    if (!HasBulkCopies()) CommitCopies();
  }

  // The oldest stage, when it is there; those before it are free. depth - 1 have been committed.
  __device__ __forceinline__ const uint8_t* WaitForStage() {
    if (HasBulkCopies()) {
      WaitForBarrier(barriers_ + slot_, parity_);
    } else {
      switch (depth_) {
        case 8: WaitForCopies<6>(); break;
        case 6: WaitForCopies<4>(); break;
        case 4: WaitForCopies<2>(); break;
        default: WaitForCopies<1>();
      }
    }
    __syncwarp();
    const uint8_t* stage = ring_ + slot_ * S::kBytes;
    if (++slot_ == depth_) {
      slot_ = 0;
      parity_ ^= 1;
    }
    return stage;
  }

 private:
  // The segment at the cursor.
  __device__ __forceinline__ void Locate(int warp) {
    const MatrixWork& m = cursor_.m;
    const Quantum q = QuantumOf(m, cursor_.blocks, warp, cursor_.pass);
    left_ = q.groups;
    const int which = HasBulkCopies() ? lane_ & 1 : lane_ / 16;
    const int block = cursor_.place.at - cursor_.place.first + q.block;
    const int panel = m.up ? block : 2 * block + which;
    valid_ = panel < m.panels();
    from_ = (m.up && which == 1 ? m.up : m.w) + int64_t(panel) * int64_t(m.panel_stride) +
            q.segment * (kSegmentGroups * T::kBytes);
  }

  uint8_t* ring_;
  Cursor& cursor_;
  uint64_t* barriers_;
  int depth_, lane_;
  int issue_slot_ = 0, slot_ = 0;
  uint32_t parity_ = 0;
  int left_ = 0;  // groups of the segment that is being loaded
  const uint8_t* from_ = nullptr;
  bool valid_ = false;
};

// A segment of the inputs of up to 4 kTiles tokens, in the order of B fragments: columns 2 t and
// 2 t + 1 are token t's planes, [column][group][tid] 16 bytes, columns kColumnBytes apart so that
// two at once meet in no bank. Behind them, [token][group] the scale and -kOffset times the sum.
template <int kTiles>
struct Inputs {
  static constexpr int kTokens = kTiles * kTileTokens;
  static constexpr int kColumnBytes = kSegmentGroups * 64 + 64;
  static constexpr int kScaleBytes = kSegmentGroups * 8;  // of a token
  // For so many columns of a launch.
  static constexpr int Bytes(int num_columns) {
    return num_columns * kColumnBytes + kTokens * kScaleBytes;
  }
};

}  // namespace hillstar::cuda
