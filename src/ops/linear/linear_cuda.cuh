// What the kernels of the linear layers share: a matrix, its inputs and its outputs in a kernel's
// arguments; experts as matrices; the bytes of a tile.
#pragma once

#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {

// Rows that a warp multiplies at once: two panels, or a panel of each of two matrices. Lane (gid,
// tid) = (lane / 4, lane % 4) has rows 4 gid .. 4 gid + 3.
inline constexpr int kBlockRows = 2 * kPanelRows;

// y[t, r] = row r of w times x[x_row(t)]; with `up`, y = silu(w x) * (up x). There may be several
// such matrices of one size behind each other: "heads", of which each has its own column of x rows
// and of y.
struct MatrixWork {
  const uint8_t* w = nullptr;   // panels, panel_stride bytes apart
  const uint8_t* up = nullptr;  // likewise, or null
  size_t panel_stride = 0;
  int rows = 0;
  int groups = 0;
  int num_heads = 1;
  int num_tokens = 0;
  ActivationPlanes x;
  FloatRows floats;                 // in the place of x, in the decode kernel
  const int32_t* x_rows = nullptr;  // row of token t, or null: x_first + t * x_step
  int64_t x_first = 0;
  int64_t x_step = 1;
  float* y = nullptr;
  int64_t y_stride = 0;

  // How a block of the decode kernel goes through it.
  int segments = 0;          // of 8 groups
  int inverse_segments = 0;  // 256 / segments, rounded up: divides numbers of warps
  int at_once = 0;           // row blocks of a unit
  int passes = 0;            // over the segments, a segment a warp
  int chunks = 1;            // of tokens

  constexpr int panels() const { return int(NumPanels(rows)); }
  // Row blocks: two panels, or a panel of each matrix.
  constexpr int blocks() const { return up ? panels() : (panels() + 1) / 2; }
  __device__ __forceinline__ int64_t x_row(int64_t t) const {
    return x_rows ? x_rows[t] : x_first + t * x_step;
  }
  // One head's matrix.
  __device__ __forceinline__ MatrixWork Head(int h) const {
    MatrixWork one = *this;
    one.w += size_t(h) * size_t(panels()) * panel_stride;
    one.x_first += h;
    one.y += int64_t(h) * rows;
    one.num_heads = 1;
    return one;
  }
  // At most `most` tokens from token `first` on.
  __device__ __forceinline__ MatrixWork Tokens(int first, int most) const {
    MatrixWork some = *this;
    if (x_rows) some.x_rows += first;
    some.x_first += first * x_step;
    some.y += first * y_stride;
    some.num_tokens = num_tokens - first < most ? num_tokens - first : most;
    return some;
  }
  // Row blocks of all heads and chunks.
  constexpr int all_blocks() const { return blocks() * num_heads * chunks; }
};

// Matrices of one format side by side in a launch.
struct WorkList {
  int count = 0;
  MatrixWork work[kMaxLayersAtOnce];
};

// An expert with some of its slots.
struct ExpertEntry {
  const uint8_t* image;
  int first;  // slot
  int count;
};

// The experts of a launch: expert e's matrix is at images[e] + offset, its tokens are the slots
// begin[e] .. begin[e + 1) - 1.
struct ExpertWork {
  const uint8_t* const* images = nullptr;
  const int32_t* begin = nullptr;
  const int32_t* slot_tokens = nullptr;  // rows of x; null: a slot's row is its own
  int num_experts = 0;
  int num_slots = 0;          // at most
  int num_tokens = 0;         // of an expert, and of a shared one, at most
  bool begin_is_old = false;  // begin was there before the kernel before this one began
  size_t w_offset = 0;        // in an image
  size_t up_offset = 0;       // likewise, where matrix.up is not null
  MatrixWork matrix;          // of every expert: sizes, x, y of slot 0; w and up say what there is

  __device__ __forceinline__ MatrixWork Expert(const ExpertEntry& e) const {
    MatrixWork one = matrix;
    one.w = e.image + w_offset;
    if (matrix.up) one.up = e.image + up_offset;
    one.x_rows = slot_tokens ? slot_tokens + e.first : nullptr;
    one.x_first = e.first;
    one.num_tokens = e.count;
    one.y += int64_t(e.first) * matrix.y_stride;
    return one;
  }
};

// What a launch has to do at least: bytes of weights, and products of two bytes for all tokens.
template <WeightFormat kFormat>
void AddWork(const MatrixWork& m, int64_t num_matrices, int64_t num_tokens, LaunchShape* launch) {
  const double tiles = double(num_matrices) * m.num_heads * m.panels() * m.groups * (m.up ? 2 : 1);
  constexpr double kProducts = (kFormat == WeightFormat::kW15 ? 4 : 2) * kPanelRows * kGroup;
  launch->bytes += tiles * double(TileBytes(kFormat));
  launch->products += tiles / double(num_matrices) * kProducts * double(num_tokens);
}
template <WeightFormat kFormat>
void AddWork(const WorkList& list, LaunchShape* launch) {
  for (int i = 0; i < list.count; ++i) {
    AddWork<kFormat>(list.work[i], 1, list.work[i].num_tokens, launch);
  }
}
// Of experts that nobody shares: the most that it can be.
template <WeightFormat kFormat>
void AddWork(const ExpertWork& work, const MatrixWork& shared, LaunchShape* launch) {
  const int64_t experts = work.num_slots < work.num_experts ? work.num_slots : work.num_experts;
  AddWork<kFormat>(work.matrix, experts, work.num_slots, launch);
  if (shared.num_tokens > 0) AddWork<kFormat>(shared, 1, shared.num_tokens, launch);
}

// Calls put(i, entry) for each entry i there is: the experts that have slots, at most `most` slots
// an entry, in the same order in every block; each by one thread. By all threads of a block, at
// most kMostListWarps warps; begins and ends with a barrier. `counts`: of as many. Returns how
// many.
inline constexpr int kMostListWarps = 16;
template <typename Put>
__device__ __forceinline__ int ListEntries(const ExpertWork& work, int most, int* counts,
                                           const Put& put) {
  const int lane = int(threadIdx.x) % kWarpLanes, warp = int(threadIdx.x) / kWarpLanes;
  const int num_warps = int(blockDim.x) / kWarpLanes;
  int total = 0;
  for (int base = 0; base < work.num_experts; base += int(blockDim.x)) {
    const int e = base + int(threadIdx.x);
    const int first = e < work.num_experts ? work.begin[e] : 0;
    const int count = e < work.num_experts ? work.begin[e + 1] - first : 0;
    const int mine = (count + most - 1) / most;
    const uint8_t* image = mine > 0 ? work.images[e] : nullptr;
    const int end = SumUpToLane(mine);  // of this lane's entries, in its warp's
    __syncthreads();
    if (lane == kWarpLanes - 1) counts[warp] = end;
    __syncthreads();
    int at = total + end - mine;
    for (int w = 0; w < num_warps; ++w) {
      if (w < warp) at += counts[w];
      total += counts[w];
    }
    for (int i = 0; i < mine; ++i) {
      const int left = count - i * most;
      put(at + i, ExpertEntry{image, first + i * most, left < most ? left : most});
    }
  }
  __syncthreads();
  return total;
}

// Where things lie in a tile of 16 rows x 64 inputs; docs/container.md.
template <WeightFormat kFormat>
struct Tile {
  static constexpr bool kIsW4 = kFormat == WeightFormat::kW4;
  static constexpr bool kIsW15 = kFormat == WeightFormat::kW15;
  static constexpr int kVectorBytes = 64;  // 4 bytes of each row
  static constexpr int kPlaneVectors = kIsW4 ? 8 : 16;
  static constexpr int kPlanes = kIsW15 ? 2 : 1;
  static constexpr int kScaleOffset = kPlanes * kPlaneVectors * kVectorBytes;
  static constexpr int kScaleBytes = kIsW15 ? 4 : 2;  // of a row
  static constexpr int kBytes = kScaleOffset + kPanelRows * kScaleBytes;
  static constexpr int kOffset = kIsW4 ? 8 : 128;  // what a stored value is too large by

  // The scales of rows 4 quad .. 4 quad + 3, as the products of scales take them.
  static __device__ __forceinline__ void Scales(const uint8_t* scales, int quad,
                                                float (&values)[4]) {
    if constexpr (kIsW15) {
      const float4 v = reinterpret_cast<const float4*>(scales)[quad];
      values[0] = __fmul_rn(v.x, 1.0f / 256);
      values[1] = __fmul_rn(v.y, 1.0f / 256);
      values[2] = __fmul_rn(v.z, 1.0f / 256);
      values[3] = __fmul_rn(v.w, 1.0f / 256);
    } else {
      const uint2 v = reinterpret_cast<const uint2*>(scales)[quad];
      values[0] = HalfBitsToFloat(uint16_t(v.x));
      values[1] = HalfBitsToFloat(uint16_t(v.x >> 16));
      values[2] = HalfBitsToFloat(uint16_t(v.y));
      values[3] = HalfBitsToFloat(uint16_t(v.y >> 16));
    }
  }
};

// The dot product of a group from the exact dots of each plane of the weights with x.
template <WeightFormat kFormat>
__device__ __forceinline__ float GroupDot(int high, int low) {
  const float h = __int2float_rn(high);
  if constexpr (kFormat == WeightFormat::kW15) {
    return __fmaf_rn(256.0f, h, __int2float_rn(low));
  } else {
    return h;
  }
}

// linear_decode_cuda.cu: few tokens. Any number is possible, but each eight read the weights again.
template <WeightFormat kFormat>
void DecodeLinear(const KernelContext& context, const WorkList& list);
template <WeightFormat kFormat>
void DecodeExperts(const KernelContext& context, const ExpertWork& work, const MatrixWork& shared);

// linear_prefill_cuda.cu: any number of tokens, in tiles.
template <WeightFormat kFormat>
void PrefillLinear(const KernelContext& context, const WorkList& list);
template <WeightFormat kFormat>
void PrefillExperts(const KernelContext& context, const ExpertWork& work, const MatrixWork& shared);

}  // namespace hillstar::cuda
