// A few tokens, bounded by how fast the weights come: the pieces of the decode kernel.
//
// A warp multiplies a row block (32 rows: two panels, or a panel of gate and one of up) with one
// segment (512 inputs) of up to four tokens a tile. Lane (gid, tid) = (lane / 4, lane % 4) copies
// and reads 16 bytes at panel gid / 4, vector tid + 4 step, byte 16 (gid % 4): 4 bytes each of rows
// 4 gid .. 4 gid + 3 of the block, which are the A fragments of two MMAs. Column 2 t of B is token
// t's high plane, column 2 t + 1 the low one, so lane tid gets both dots of token tid for its rows.
//
// What a warp reads passes through a ring of its own in shared memory, a stage of one or two groups
// a slot; loads run ahead over row blocks and matrices, and begin before the kernel before this one
// has ended. Sums of segments meet in shared memory and are added in ascending order.
#pragma once

#include "ops/linear/linear_cuda.cuh"

namespace hillstar::cuda {

inline constexpr int kTileTokens = 4;
inline constexpr int kMostDecodeWarps = 12;

// A stage of the ring.
template <WeightFormat kFormat>
struct Stage {
  using T = Tile<kFormat>;
  static constexpr int kGroups = T::kIsW4 ? 2 : 1;
  static constexpr int kSteps = T::kPlanes * T::kPlaneVectors / 4;  // words of a lane in a group
  static constexpr int kStepBytes = kWarpLanes * 16;
  static constexpr int kScaleLanes = kGroups * 2 * T::kScaleBytes;  // that copy 16 bytes of scales
  static constexpr int kScaleOffset = kGroups * kSteps * kStepBytes;
  static constexpr int kBytes = kScaleOffset + kScaleLanes * 16;
  static constexpr int kPanelScaleBytes = kPanelRows * T::kScaleBytes;
};

// A segment of a row block: what a warp does between two barriers, and where its weights are.
struct Quantum {
  int block = 0;  // of the unit's matrix
  int segment = 0;
  int groups = 0;  // of the segment; 0: nothing to do
};
__device__ __forceinline__ Quantum QuantumOf(const MatrixWork& m, int first_block, int warp,
                                             int pass) {
  Quantum q;
  if (m.passes > 1) {
    q.block = first_block;
    q.segment = warp + pass * int(blockDim.x) / kWarpLanes;
  } else {
    const int i = warp * m.inverse_segments >> 8;
    q.block = first_block + i;
    q.segment = warp - i * m.segments;
    if (i >= m.at_once) return q;
  }
  if (q.block >= m.blocks() || q.segment >= m.segments) return q;
  const int left = m.groups - q.segment * kSegmentGroups;
  q.groups = left < kSegmentGroups ? left : kSegmentGroups;
  return q;
}

// A unit: at_once row blocks of a matrix, for one block of threads.
struct Unit {
  MatrixWork m;
  int first_block;
};

// Unit `unit` of all of a matrix, `most` tokens a chunk. Divisions are dear.
__device__ __forceinline__ Unit UnitOf(const MatrixWork& m, int unit, int most) {
  int chunk = 0, head = 0;
  if (m.chunks > 1) {
    chunk = int(uint32_t(unit) % uint32_t(m.chunks));
    unit = int(uint32_t(unit) / uint32_t(m.chunks));
  }
  if (m.num_heads > 1) {
    head = int(uint32_t(unit) / uint32_t(m.units));
    unit -= head * m.units;
  }
  return {m.Head(head).Tokens(chunk * most, most), unit * m.at_once};
}

// The matrices of a list.
template <int kTokens>
struct ListUnits {
  const WorkList& list;
  int total;

  __device__ __forceinline__ Unit At(int unit) const {
    int i = 0;
    for (; i + 1 < list.count; ++i) {
      const int units = list.work[i].all_units();
      if (unit < units) break;
      unit -= units;
    }
    return UnitOf(list.work[i], unit, kTokens);
  }
};

// The shared expert, then the entries, which a block lists for itself.
template <int kTokens>
struct ExpertUnits {
  const ExpertWork& work;
  const MatrixWork& shared;
  const ExpertEntry* entries;  // in shared memory
  int total;

  __device__ __forceinline__ Unit At(int unit) const {
    const int of_shared = shared.all_units();
    if (unit < of_shared) return UnitOf(shared, unit, kTokens);
    unit -= of_shared;
    const int i = int(uint32_t(unit) / uint32_t(work.matrix.units));
    return {work.Expert(entries[i]), (unit - i * work.matrix.units) * work.matrix.at_once};
  }
};

// What a warp loads, ahead of what it multiplies.
template <WeightFormat kFormat>
class WeightRing {
 public:
  using T = Tile<kFormat>;
  using S = Stage<kFormat>;

  __device__ WeightRing(uint8_t* ring, int depth, int warp, int lane)
      : ring_(ring), depth_(depth), warp_(warp), lane_(lane), unit_(int(blockIdx.x)) {}

  // Puts the next stage on its way, if there is one among the units below `end`.
  template <typename Units>
  __device__ __forceinline__ bool Issue(const Units& units, int end) {
    while (left_ <= 0) {
      if (unit_ >= end) return false;
      Locate(units);
    }
    uint8_t* to = ring_ + slot_ * S::kBytes;
#pragma unroll
    for (int j = 0; j < S::kGroups; ++j) {
      const bool valid = valid_ && j < left_;
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        CopyAsync16(to + (j * S::kSteps + s) * S::kStepBytes + lane_ * 16,
                    from_ + j * T::kBytes + s * 4 * T::kVectorBytes, valid);
      }
    }
    if (lane_ < S::kScaleLanes) {
      CopyAsync16(to + S::kScaleOffset + lane_ * 16, scales_from_,
                  scale_valid_ && lane_ / (2 * T::kScaleBytes) < left_);
    }
    from_ += S::kGroups * T::kBytes;
    scales_from_ += S::kGroups * T::kBytes;
    left_ -= S::kGroups;
    slot_ = slot_ + 1 == depth_ ? 0 : slot_ + 1;
    return true;
  }

  // Until the oldest stage is there: `depth` - 1 have been committed, each by itself, or fewer if
  // there are no more.
  __device__ __forceinline__ void WaitForStage() const {
    switch (depth_) {
      case 8: WaitForCopies<6>(); break;
      case 6: WaitForCopies<4>(); break;
      case 4: WaitForCopies<2>(); break;
      default: WaitForCopies<1>();
    }
    __syncwarp();
  }

 private:
  // The next segment that is this warp's, of unit_ or, where left_ stays 0, of one of the next.
  template <typename Units>
  __device__ __forceinline__ void Locate(const Units& units) {
    const Unit u = units.At(unit_);
    const Quantum q = QuantumOf(u.m, u.first_block, warp_, pass_);
    if (++pass_ >= u.m.passes) {
      pass_ = 0;
      unit_ += int(gridDim.x);
    }
    left_ = q.groups;
    const int panel = lane_ / 16, scale_panel = lane_ / T::kScaleBytes % 2;
    const int64_t tile = int64_t(q.segment) * kSegmentGroups * T::kBytes;
    from_ = Panel(u.m, q.block, panel, &valid_) + tile + lane_ % 4 * T::kVectorBytes +
            lane_ / 4 % 4 * 16;
    scales_from_ = Panel(u.m, q.block, scale_panel, &scale_valid_) + tile + T::kScaleOffset +
                   lane_ / (2 * T::kScaleBytes) * T::kBytes + lane_ % T::kScaleBytes * 16;
  }
  __device__ __forceinline__ const uint8_t* Panel(const MatrixWork& m, int block, int which,
                                                  bool* valid) const {
    const int panel = m.up ? block : 2 * block + which;
    *valid = panel < m.panels();
    return (m.up && which == 1 ? m.up : m.w) + int64_t(panel) * int64_t(m.panel_stride);
  }

  uint8_t* ring_;
  int depth_, warp_, lane_;
  int unit_, pass_ = 0;
  int slot_ = 0;
  int left_ = 0;  // groups of the segment that is being loaded
  const uint8_t* from_ = nullptr;
  const uint8_t* scales_from_ = nullptr;
  bool valid_ = false, scale_valid_ = false;
};

// A segment of the inputs of up to 4 kTiles tokens, in the order of B fragments: [group][column]
// [tid] 16 bytes, columns 2 t and 2 t + 1 being token t's planes. Behind it, [group][token] the
// scale and -kOffset times the sum.
template <int kTiles>
struct Inputs {
  static constexpr int kTokens = kTiles * kTileTokens;
  static constexpr int kScaleBytes = kSegmentGroups * kTokens * 8;
  // For so many tokens of a launch.
  static constexpr int Bytes(int num_tokens) {
    return kSegmentGroups * 2 * num_tokens * 64 + kScaleBytes;
  }
};

}  // namespace hillstar::cuda
