// Many tokens, bounded by the tensor cores: a block of 8 warps multiplies kWarpsM x 64 rows with
// the tokens of a tile. A warp has 64 rows (two row blocks) x up to 32 tokens: per group it takes
// B, both planes of its tokens, into registers once and goes over its rows with it. The exact
// integer of a group is 256 times the high plane's dots, on which the low plane's are added by the
// MMAs.
//
// Groups pass through a ring of stages in shared memory. Tiles: as stored, but the 16-byte quarters
// of vectors 2, 3, 6, 7, ... are swapped in pairs; planes: 64 bytes a token, the quarters in an
// order that depends on the token. So no two lanes that read at once meet in a bank.
#include <algorithm>

#include "core/check.h"
#include "ops/linear/linear_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;
constexpr int kMostDepth = 8;  // slots of the ring
// Floats of a token's row in the staging of a warp's results: 16-byte words of one store meet in no
// bank.
constexpr int kStagingRow = kBlockRows + 4;

// Sizes of a launch's tiles: kM warps beside each other over the rows, the others over the tokens;
// a warp has kBlocks row blocks and kColumns times 8 tokens.
template <WeightFormat kFormatOf, int kM, int kBlocksOf, int kColumns>
struct Shape {
  static constexpr WeightFormat kFormat = kFormatOf;
  using T = Tile<kFormat>;
  static constexpr int kWarpsM = kM;
  static constexpr int kBlocksOfWarp = kBlocksOf;
  static constexpr int kColumnTiles = kColumns;
  static constexpr bool kIsLarge = kBlocksOf > 1;
  // Small tiles have warps that copy for the others. Of large ones all warps copy, for the
  // registers of others would be missing.
  static constexpr int kCopyingWarps = kIsLarge ? 0 : 4;
  static constexpr int kAllThreads = kThreads + kCopyingWarps * kWarpLanes;
  static constexpr int kWarpTokens = 8 * kColumnTiles;
  static constexpr int kTokens = kWarps / kWarpsM * kWarpTokens;
  static constexpr int kBlocks = kBlocksOfWarp * kWarpsM;
  static constexpr int kPanels = 2 * kBlocks;
  // A stage: tiles, planes [2][kTokens][64], scales and sums [kTokens].
  static constexpr int kPlanesAt = kPanels * T::kBytes;
  static constexpr int kScalesAt = kPlanesAt + 2 * kTokens * kGroup;
  static constexpr int kSumsAt = kScalesAt + kTokens * 4;
  static constexpr int kStageBytes = kSumsAt + kTokens * 4;
  static constexpr int kStagingBytes = kWarps * kWarpTokens * kStagingRow * int(sizeof(float));
};

// Some rows and tokens of a matrix: a block's work.
struct TileOfWork {
  MatrixWork m;
  int first_block;
  int first_token;
};

// Tiles of a matrix, of one head.
__host__ __device__ constexpr int RowTiles(const MatrixWork& m, int blocks) {
  return (m.blocks() + blocks - 1) / blocks;
}
__host__ __device__ constexpr int TokenTiles(const MatrixWork& m, int tokens) {
  return (m.num_tokens + tokens - 1) / tokens;
}

// At the beginning of a block's shared memory, the ring of stages behind it: not in registers,
// which the sums need.
template <typename S>
struct Header {
  alignas(16) uint8_t tile_bytes[sizeof(TileOfWork)];
  // Where things begin: panels; rows of a plane of x, high then low; their groups' scales, then
  // sums. Behind the last panel and token others stand in: what comes of them is not used.
  const uint8_t* panels[S::kPanels];
  const int8_t* planes[2 * S::kTokens];
  const uint8_t* numbers[2 * S::kTokens];
  // Of small tiles: a slot has been copied; it has been read, as every lane says for itself (see
  // DecodeBlock::Arrivals).
  uint64_t full[kMostDepth], free[kMostDepth];

  __device__ const TileOfWork& tile() const {
    return *reinterpret_cast<const TileOfWork*>(tile_bytes);
  }
  // By all threads; ends without a barrier.
  __device__ __forceinline__ void Fill(const TileOfWork& tile) {
    const MatrixWork& m = tile.m;
    const int thread = int(threadIdx.x);
    if (thread == 0) *reinterpret_cast<TileOfWork*>(tile_bytes) = tile;
    if (thread < S::kPanels) {
      const int block = tile.first_block + thread / 2;
      const int panel = m.up ? block : 2 * block + thread % 2;
      const uint8_t* of = m.up && thread % 2 == 1 ? m.up : m.w;
      panels[thread] = of + int64_t(min(panel, m.panels() - 1)) * int64_t(m.panel_stride);
    }
    static_assert(S::kPanels <= kThreads && S::kTokens <= kThreads);
    if (thread >= S::kTokens) return;
    const int64_t at = m.x_row(min(tile.first_token + thread, m.num_tokens - 1)) * m.groups;
    planes[thread] = m.x.hi + at * kGroup;
    planes[S::kTokens + thread] = m.x.lo + at * kGroup;
    numbers[thread] = reinterpret_cast<const uint8_t*>(m.x.scale + at);
    numbers[S::kTokens + thread] = reinterpret_cast<const uint8_t*>(m.x.sum + at);
  }
};
template <typename S>
constexpr int kRingAt = (int(sizeof(Header<S>)) + 127) / 128 * 128;

// Where a stage keeps a 16-byte quarter of a tile's values, or of a token's plane.
__device__ __forceinline__ int SwappedChunk(int chunk) { return chunk ^ (chunk / 4 & 2); }
__device__ __forceinline__ int SwappedQuarter(int token, int quarter) {
  return quarter ^ (token / 2 & 3);
}

// Copies a group to a stage of a large tile, by all threads, with few instructions: a fifth of all
// that are issued. What follows from a thread's number is found again each time and keeps no
// registers.
template <typename S>
__device__ __forceinline__ void CopyStage(const Header<S>& header, uint8_t* stage, int group) {
  using T = typename S::T;
  int forgotten = int(threadIdx.x);
  Forget(forgotten);
  const auto thread = unsigned(forgotten), lane = thread % kWarpLanes, warp = thread / kWarpLanes;
  static_assert(S::kPanels % kWarps == 0 && T::kScaleOffset % (16 * kWarpLanes) == 0);
#pragma unroll
  for (unsigned i = 0; i < S::kPanels / kWarps; ++i) {
    const unsigned p = warp + i * kWarps;
    const uint8_t* from = header.panels[p] + group * T::kBytes + lane * 16;
    uint8_t* to = stage + p * T::kBytes + SwappedChunk(int(lane)) * 16;
#pragma unroll
    for (int at = 0; at < T::kScaleOffset; at += 16 * kWarpLanes) CopyAsync16(to + at, from + at);
  }
  constexpr unsigned kScaleChunks = (T::kBytes - T::kScaleOffset) / 16;  // of a tile
  static_assert(S::kPanels * kScaleChunks <= kThreads);
  if (thread < S::kPanels * kScaleChunks) {
    const unsigned p = thread / kScaleChunks, at = T::kScaleOffset + thread % kScaleChunks * 16;
    CopyAsync16(stage + p * T::kBytes + at, header.panels[p] + group * T::kBytes + at);
  }
  constexpr unsigned kRowsAtOnce = kThreads / 4, kRows = 2 * S::kTokens;
  static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
  const unsigned first_row = thread / 4, quarter = thread % 4;
  uint8_t* to =
      stage + S::kPlanesAt + first_row * kGroup + SwappedQuarter(int(first_row), int(quarter)) * 16;
#pragma unroll
  for (unsigned i = 0; i < kRows / kRowsAtOnce; ++i) {
    const int8_t* plane = header.planes[first_row + i * kRowsAtOnce];
    CopyAsync16(to + i * (kRowsAtOnce * kGroup), plane + group * kGroup + quarter * 16);
  }
  static_assert(kRows <= kThreads);
  if (thread < kRows) {
    CopyAsync4(stage + S::kScalesAt + thread * 4, header.numbers[thread] + group * 4);
  }
}

// The A fragments of 64 inputs: step s, rows 4 gid + 2 h and + 1 of the lane's block.
template <WeightFormat kFormat>
__device__ __forceinline__ void Fragments(uint32_t (&a)[2][4], const uint4 (&words)[4], int h) {
  constexpr uint32_t kLow = 0x0f0f0f0fu;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    if constexpr (Tile<kFormat>::kIsW4) {
      const uint32_t first = h == 0 ? words[s].x : words[s].z;
      const uint32_t second = h == 0 ? words[s].y : words[s].w;
      a[s][0] = first & kLow;
      a[s][1] = second & kLow;
      a[s][2] = first >> 4 & kLow;
      a[s][3] = second >> 4 & kLow;
    } else {
      const uint4 p = words[2 * s], q = words[2 * s + 1];
      a[s][0] = h == 0 ? p.x : p.z;
      a[s][1] = h == 0 ? p.y : p.w;
      a[s][2] = h == 0 ? q.x : q.z;
      a[s][3] = h == 0 ? q.y : q.w;
    }
  }
}

// What a warp sums: [block][h][column tile][c] of the fragments.
template <typename S>
using Sums = float[S::kBlocksOfWarp][2][S::kColumnTiles][4];

// dots[n] = both planes' dots of a plane of weights, less the correction of each column.
template <typename S, bool kAll>
__device__ __forceinline__ void Dots(int (&dots)[S::kColumnTiles][4], const uint32_t (&a)[2][4],
                                     const uint32_t (&b)[S::kColumnTiles][2][4],
                                     const uint8_t* sums, int columns) {
#pragma unroll
  for (int plane = 0; plane < 2; ++plane) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
      if (!kAll && n >= columns) break;
      int2 sum = make_int2(0, 0);
      if (plane == 1) sum = *reinterpret_cast<const int2*>(sums + n * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto less = uint32_t(S::T::kOffset) * uint32_t(i % 2 == 0 ? sum.x : sum.y);
        dots[n][i] = plane == 0 ? 0 : int(256u * uint32_t(dots[n][i]) - less);
      }
    }
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        if (!kAll && n >= columns) break;
        MmaUnsignedSigned(dots[n], a[s], b[n][plane][2 * s], b[n][plane][2 * s + 1]);
      }
    }
  }
}

// Adds a group to the sums of a segment. kAll: all column tiles are multiplied, else `columns`;
// sums of those behind are not used.
template <typename S, bool kAll>
__device__ __forceinline__ void MultiplyStage(Sums<S>& sums, const uint8_t* stage, int warp_m,
                                              int warp_n, int columns) {
  using T = typename S::T;
  constexpr WeightFormat kFormat = S::kFormat;
  const int lane = int(threadIdx.x) % kWarpLanes, gid = lane / 4, tid = lane % 4;
  uint32_t b[S::kColumnTiles][2][4];
  const uint8_t* x_scales = stage + S::kScalesAt + (warp_n * S::kWarpTokens + 2 * tid) * 4;
  const uint8_t* x_sums = x_scales + S::kSumsAt - S::kScalesAt;
#pragma unroll
  for (int n = 0; n < S::kColumnTiles; ++n) {
    if (!kAll && n >= columns) break;
    // Matrix lane / 8 is a quarter of the plane's rows: two that follow each other are B of a
    // product, in registers side by side.
    const int t = warp_n * S::kWarpTokens + n * 8 + lane % 8, matrix = lane / 8;
    const int quarter = T::kIsW4 ? matrix % 2 * 2 + matrix / 2 : matrix;
    const uint8_t* row = stage + S::kPlanesAt + t * kGroup + SwappedQuarter(t, quarter) * 16;
    LoadMatrices(b[n][0], row);
    LoadMatrices(b[n][1], row + S::kTokens * kGroup);
  }
#pragma unroll
  for (int block = 0; block < S::kBlocksOfWarp; ++block) {
    const uint8_t* tile = stage + ((warp_m * S::kBlocksOfWarp + block) * 2 + gid / 4) * T::kBytes;
    const uint8_t* at = tile + tid * T::kVectorBytes + (gid % 4 ^ (tid & 2)) * 16;
    float w_scale[4];
    T::Scales(tile + T::kScaleOffset, gid % 4, w_scale);
    uint4 words[T::kPlanes][4];
#pragma unroll
    for (int p = 0; p < T::kPlanes; ++p) {
#pragma unroll
      for (int s = 0; s < T::kPlaneVectors / 4; ++s) {
        words[p][s] =
            *reinterpret_cast<const uint4*>(at + (p * T::kPlaneVectors + 4 * s) * T::kVectorBytes);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t a[2][4];
      int high[S::kColumnTiles][4], low[S::kColumnTiles][4] = {};
      Fragments<kFormat>(a, words[0], h);
      Dots<S, kAll>(high, a, b, x_sums, columns);
      if constexpr (T::kIsW15) {
        Fragments<kFormat>(a, words[T::kPlanes - 1], h);
        Dots<S, kAll>(low, a, b, x_sums, columns);
      }
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
        if (!kAll && n >= columns) break;
        // The compiler (nvcc 13.0) mixes no instructions across a branch: with this one large tiles
        // of W8 need fewer registers and take 2 % less time.
        if (S::kIsLarge && kFormat == WeightFormat::kW8 && n == 1 && n >= columns) break;
        const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + n * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float d = GroupDot<kFormat>(high[n][i], low[n][i]);
          const float scale = __fmul_rn(w_scale[2 * h + i / 2], i % 2 == 0 ? x_scale.x : x_scale.y);
          sums[block][h][n][i] = __fmaf_rn(d, scale, sums[block][h][n][i]);
        }
      }
    }
  }
}

// Writes a warp's sums, a row block at a time through `staging` of its own: f32 [kWarpTokens]
// [kStagingRow].
template <typename S>
__device__ __forceinline__ void WriteSums(const TileOfWork& tile, const Sums<S>& sums, int warp_m,
                                          int warp_n, float* staging) {
  const MatrixWork& m = tile.m;
  const int lane = int(threadIdx.x) % kWarpLanes, gid = lane / 4, tid = lane % 4;
  const int64_t first_token = tile.first_token + warp_n * S::kWarpTokens;
  const int tokens = min(m.num_tokens - int(first_token), S::kWarpTokens);
#pragma unroll
  for (int block = 0; block < S::kBlocksOfWarp; ++block) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto& s = sums[block];
        *reinterpret_cast<float4*>(staging + (n * 8 + 2 * tid + j) * kStagingRow + gid * 4) =
            make_float4(s[0][n][j], s[0][n][2 + j], s[1][n][j], s[1][n][2 + j]);
      }
    }
    __syncwarp();
    // A lane a row; of two matrices half a warp a token.
    const int rows = m.up ? kPanelRows : kBlockRows;
    const int64_t b = tile.first_block + warp_m * S::kBlocksOfWarp + block;
    const int64_t row = b * rows + lane % rows;
    if (row >= m.rows) continue;
#pragma unroll 1
    for (int t = lane / rows; t < tokens; t += kWarpLanes / rows) {
      float v = staging[t * kStagingRow + lane % rows];
      if (m.up) v = __fmul_rn(Silu(v), staging[t * kStagingRow + kPanelRows + lane % rows]);
      m.y[(first_token + t) * m.y_stride + row] = v;
    }
  }
}

// Adds a segment's sums, and begins another.
template <typename S>
__device__ __forceinline__ void EndSegment(Sums<S>& total, Sums<S>& segment) {
#pragma unroll
  for (int i = 0; i < S::kBlocksOfWarp * 2 * S::kColumnTiles * 4; ++i) {
    float& t = (&total[0][0][0][0])[i];
    float& s = (&segment[0][0][0][0])[i];
    t = __fadd_rn(t, s);
    s = 0;
  }
}

// A thread of the copying warps: where its 16 bytes of the next group are, and where they go.
template <typename S>
class Copier {
 public:
  __device__ Copier(const Header<S>& header, int thread) {
    const int quarter = thread % 4;
    x_to_ = S::kPlanesAt + thread / 4 * kGroup + SwappedQuarter(thread / 4, quarter) * 16;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      x_from_[i] = header.planes[thread / 4 + i * kRowsAtOnce] + quarter * 16;
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const int at = thread + i * kCopyingThreads, p = at / kChunks, chunk = at % kChunks;
      w_from_[i] = header.panels[min(p, S::kPanels - 1)] + chunk * 16;
      const int swapped = chunk * 16 < S::T::kScaleOffset ? SwappedChunk(chunk) : chunk;
      w_to_[i] = p < S::kPanels ? p * S::T::kBytes + swapped * 16 : -1;
    }
    scale_to_ = thread < 2 * S::kTokens ? S::kScalesAt + thread * 4 : -1;
    scale_from_ = header.numbers[thread % (2 * S::kTokens)];
  }
  // Copies the next group.
  __device__ __forceinline__ void Copy(uint8_t* stage) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      CopyAsync16(stage + x_to_ + i * kRowsAtOnce * kGroup, x_from_[i]);
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      if (w_to_[i] >= 0) CopyAsync16(stage + w_to_[i], w_from_[i]);
    }
    if (scale_to_ >= 0) CopyAsync4(stage + scale_to_, scale_from_);
#pragma unroll
    for (int i = 0; i < kInputs; ++i) x_from_[i] += kGroup;
#pragma unroll
    for (int i = 0; i < kWeights; ++i) w_from_[i] += S::T::kBytes;
    scale_from_ += 4;
  }

 private:
  static constexpr int kCopyingThreads = S::kCopyingWarps * kWarpLanes;
  static constexpr int kRowsAtOnce = kCopyingThreads / 4;  // of planes
  static constexpr int kInputs = 2 * S::kTokens / kRowsAtOnce;
  static constexpr int kChunks = S::T::kBytes / 16;
  static constexpr int kWeights = (S::kPanels * kChunks + kCopyingThreads - 1) / kCopyingThreads;
  static_assert(2 * S::kTokens <= kCopyingThreads && kRowsAtOnce % 8 == 0);

  const int8_t* x_from_[kInputs];
  const uint8_t* w_from_[kWeights];
  const uint8_t* scale_from_;
  int x_to_, w_to_[kWeights], scale_to_;
};

// The sums of a small tile, by a warp that multiplies; or nothing, by one that copies.
template <typename S>
__device__ __forceinline__ void SumSmallTile(Sums<S>& total, Header<S>& header, uint8_t* ring,
                                             int depth, int warp_m, int warp_n, int columns) {
  const int warp = int(threadIdx.x) / kWarpLanes, groups = header.tile().m.groups;
  int slot = 0;
  uint32_t parity = 0;
  const auto next = [&] {
    if (++slot == depth) {
      slot = 0;
      parity ^= 1;
    }
  };
  if (warp >= kWarps) {
    Copier<S> copier(header, int(threadIdx.x) - kThreads);
#pragma unroll 1
    for (int g = 0; g < groups; ++g, next()) {
      WaitForBarrier(header.free + slot, parity ^ 1);
      copier.Copy(ring + slot * S::kStageBytes);
      ArriveAfterCopies(header.full + slot);
    }
    return;
  }
  Sums<S> segment = {};
  for (int g = 0; g < groups; ++g, next()) {
    WaitForBarrier(header.full + slot, parity);
    const uint8_t* stage = ring + slot * S::kStageBytes;
    if (columns == S::kColumnTiles) {
      MultiplyStage<S, true>(segment, stage, warp_m, warp_n, columns);
    } else if (columns > 0) {
      MultiplyStage<S, false>(segment, stage, warp_m, warp_n, columns);
    }
    Arrive(header.free + slot);
    if (g % kSegmentGroups == kSegmentGroups - 1 || g + 1 == groups) EndSegment<S>(total, segment);
  }
}

// Likewise of a large tile, where all warps copy.
template <typename S>
__device__ __forceinline__ void SumLargeTile(Sums<S>& total, Header<S>& header, uint8_t* ring,
                                             int depth, int warp_m, int warp_n, int columns) {
  const int warp = int(threadIdx.x) / kWarpLanes, groups = header.tile().m.groups;
  for (int g = 0; g < depth - 1; ++g) {
    if (g < groups) CopyStage<S>(header, ring + g * S::kStageBytes, g);
    CommitCopies();
  }
  Sums<S> segment = {};
  int slot = 0;
  for (int g = 0; g < groups; ++g) {
    if (depth == 4) {
      WaitForCopies<2>();
    } else if (depth == 3) {
      WaitForCopies<1>();
    } else {
      WaitForCopies<0>();
    }
    __syncthreads();
    // Of the two warps of a scheduler one copies while the other multiplies.
    const int ahead = g + depth - 1, free_slot = slot == 0 ? depth - 1 : slot - 1;
    uint8_t* to = ring + free_slot * S::kStageBytes;
    const bool copies_first = warp < kWarps / 2;
    if (ahead < groups && copies_first) CopyStage<S>(header, to, ahead);
    const uint8_t* stage = ring + slot * S::kStageBytes;
    slot = slot + 1 == depth ? 0 : slot + 1;
    if (columns > 0) MultiplyStage<S, true>(segment, stage, warp_m, warp_n, columns);
    if (ahead < groups && !copies_first) CopyStage<S>(header, to, ahead);
    CommitCopies();
    if (g % kSegmentGroups == kSegmentGroups - 1 || g + 1 == groups) EndSegment<S>(total, segment);
  }
  WaitForCopies<0>();
}

// A tile of work, by a block.
template <typename S>
__device__ __forceinline__ void RunTile(const TileOfWork& given, int depth) {
  auto& header = *reinterpret_cast<Header<S>*>(DynamicShared());
  uint8_t* ring = DynamicShared() + kRingAt<S>;
  header.Fill(given);
  if (threadIdx.x == 0) {
    for (int i = 0; S::kCopyingWarps > 0 && i < depth; ++i) {
      InitBarrier(header.full + i, S::kCopyingWarps * kWarpLanes);
      InitBarrier(header.free + i, kThreads);
    }
    FenceBarriers();
  }
  __syncthreads();
  const TileOfWork& tile = header.tile();
  const int warp = Uniform(int(threadIdx.x) / kWarpLanes);
  const int warp_m = warp % S::kWarpsM, warp_n = warp / S::kWarpsM;
  // Column tiles that have tokens, if this warp has rows.
  const int tokens = tile.m.num_tokens - tile.first_token - warp_n * S::kWarpTokens;
  const bool has_rows = tile.first_block + warp_m * S::kBlocksOfWarp < tile.m.blocks();
  const int columns = Uniform(!has_rows || tokens <= 0 ? 0 : (min(tokens, S::kWarpTokens) + 7) / 8);
  Sums<S> total = {};
  if constexpr (S::kCopyingWarps > 0) {
    SumSmallTile<S>(total, header, ring, depth, warp_m, warp_n, columns);
  } else {
    SumLargeTile<S>(total, header, ring, depth, warp_m, warp_n, columns);
  }
  __syncthreads();
  if (warp >= kWarps) return;
  float* staging = reinterpret_cast<float*>(ring) + warp * S::kWarpTokens * kStagingRow;
  WriteSums<S>(tile, total, warp_m, warp_n, staging);
}

template <typename S>
__global__ void __launch_bounds__(S::kAllThreads, 1)
    PrefillLinearKernel(const __grid_constant__ WorkList list, int depth) {
  WaitForPrevious();
  LetNextBegin();
  int at = int(blockIdx.x), i = 0, token_tiles = 1, tiles = 1;
  for (;; ++i) {
    token_tiles = TokenTiles(list.work[i], S::kTokens);
    tiles = RowTiles(list.work[i], S::kBlocks) * token_tiles;
    if (at < tiles * list.work[i].num_heads) break;
    at -= tiles * list.work[i].num_heads;
  }
  const int in_head = at % tiles;
  const TileOfWork tile{list.work[i].Head(at / tiles), in_head / token_tiles * S::kBlocks,
                        in_head % token_tiles * S::kTokens};
  RunTile<S>(tile, depth);
}

template <typename S>
__global__ void __launch_bounds__(S::kAllThreads, 1)
    PrefillExpertsKernel(const __grid_constant__ ExpertWork work,
                         const __grid_constant__ MatrixWork beside, int most_entries, int depth) {
  __shared__ ExpertEntry entry;
  __shared__ int counts[kMostListWarps];
  WaitForPrevious();
  LetNextBegin();
  const int token_tiles = TokenTiles(beside, S::kTokens);
  const int beside_tiles = RowTiles(beside, S::kBlocks) * token_tiles;
  const int at = int(blockIdx.x);
  TileOfWork tile{beside, 0, 0};
  if (at < beside_tiles) {
    tile.first_block = at / token_tiles * S::kBlocks;
    tile.first_token = at % token_tiles * S::kTokens;
  } else {
    const int wanted = (at - beside_tiles) % most_entries;
    const int found = ListEntries(work, S::kTokens, counts, [&](int i, ExpertEntry e) {
      if (i == wanted) entry = e;
    });
    if (wanted >= found) return;
    tile.m = work.Expert(entry);
    tile.first_block = (at - beside_tiles) / most_entries * S::kBlocks;
  }
  RunTile<S>(tile, depth);
}

constexpr int kStaticBytes = 256;  // of shared memory that the kernels declare, at most

template <typename S>
size_t SharedBytes(int depth) {
  return size_t(kRingAt<S> + std::max(depth * S::kStageBytes, S::kStagingBytes));
}

// Slots of the ring that fit.
template <typename S>
int Depth(const KernelContext& context) {
  for (int depth : {kMostDepth, 6, 4, 3, 2}) {
    if (depth > 4 && S::kCopyingWarps == 0) continue;
    if (SharedBytes<S>(depth) + kStaticBytes <= size_t(context.shared_bytes)) return depth;
  }
  CHECK(!"a stage of the prefill kernel does not fit into shared memory");
  return 0;
}

template <typename S>
void LaunchLinear(const KernelContext& context, const WorkList& list) {
  int tiles = 0;
  for (int i = 0; i < list.count; ++i) {
    const MatrixWork& m = list.work[i];
    tiles += RowTiles(m, S::kBlocks) * TokenTiles(m, S::kTokens) * m.num_heads;
  }
  const int depth = Depth<S>(context);
  LaunchShape launch{dim3(unsigned(tiles)), dim3(S::kAllThreads), SharedBytes<S>(depth)};
  AddWork<S::kFormat>(list, &launch);
  Launch("linear of many tokens", PrefillLinearKernel<S>, launch, context.stream, list, depth);
}

template <typename S>
void LaunchExperts(const KernelContext& context, const ExpertWork& work, const MatrixWork& shared) {
  const int entries = std::min(work.num_slots, work.num_experts + work.num_slots / S::kTokens);
  const int tiles = RowTiles(work.matrix, S::kBlocks) * entries +
                    RowTiles(shared, S::kBlocks) * TokenTiles(shared, S::kTokens);
  const int depth = Depth<S>(context);
  LaunchShape launch{dim3(unsigned(tiles)), dim3(S::kAllThreads), SharedBytes<S>(depth)};
  AddWork<S::kFormat>(work, shared, &launch);
  Launch("experts of many tokens", PrefillExpertsKernel<S>, launch, context.stream, work, shared,
         entries, depth);
}

// Tokens an expert has on average from which wider tiles pay: a tile of so many is rarely half
// empty.
constexpr int kTokensForWideTiles = 96;
constexpr int kTokensOfSmallTiles = 128;

// Tiles of 8 tokens that a warp of large tiles has registers for.
template <WeightFormat kFormat>
constexpr int kWideColumns = kFormat == WeightFormat::kW15 ? 2 : 4;

}  // namespace

template <WeightFormat kFormat>
void PrefillLinear(const KernelContext& context, const WorkList& list) {
  int tokens = 0;
  for (int i = 0; i < list.count; ++i) tokens = std::max(tokens, list.work[i].num_tokens);
  // Few tokens have small tiles, so that all multiprocessors have some: 64 x 32, or 64 x 64.
  if (tokens <= 32) {
    LaunchLinear<Shape<kFormat, 2, 1, 1>>(context, list);
  } else if (tokens <= kTokensOfSmallTiles) {
    LaunchLinear<Shape<kFormat, 2, 1, 2>>(context, list);
  } else {
    LaunchLinear<Shape<kFormat, 2, 2, kWideColumns<kFormat>>>(context, list);
  }
}

template <WeightFormat kFormat>
void PrefillExperts(const KernelContext& context, const ExpertWork& work,
                    const MatrixWork& shared) {
  constexpr int kColumns = kWideColumns<kFormat>;
  if constexpr (kFormat == WeightFormat::kW15) {
    LaunchExperts<Shape<kFormat, 4, 2, kColumns>>(context, work, shared);
  } else if (work.num_slots >= kTokensForWideTiles * work.num_experts) {
    LaunchExperts<Shape<kFormat, 4, 2, kColumns>>(context, work, shared);
  } else {
    LaunchExperts<Shape<kFormat, 8, 2, kColumns>>(context, work, shared);
  }
}

template void PrefillLinear<WeightFormat::kW4>(const KernelContext&, const WorkList&);
template void PrefillLinear<WeightFormat::kW8>(const KernelContext&, const WorkList&);
template void PrefillLinear<WeightFormat::kW15>(const KernelContext&, const WorkList&);
template void PrefillExperts<WeightFormat::kW4>(const KernelContext&, const ExpertWork&,
                                                const MatrixWork&);
template void PrefillExperts<WeightFormat::kW8>(const KernelContext&, const ExpertWork&,
                                                const MatrixWork&);
template void PrefillExperts<WeightFormat::kW15>(const KernelContext&, const ExpertWork&,
                                                 const MatrixWork&);

}  // namespace hillstar::cuda
