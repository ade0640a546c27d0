// Attention of many splits inside kernels: a block goes through splits one after another with 64
// heads of a token, so that a row is fetched once for all of them, and keeps nothing but partial
// results. Four warps find the weights of 16 heads, of a quarter of a chunk's keys each; every warp
// has 32 latents of all heads. Where there is room for three chunks' rows, a chunk's values and the
// next one's weights are found between the same two barriers.
//   A chunk of 64 keys of q8: 2,240 products of 16 x 8 x 32, 3,300 clocks of a Hopper
//   multiprocessor's tensor cores, and 5,600 clocks of its shared memory; it takes 13,000.
#pragma once

#include <algorithm>

#include "ops/attention/attention_weights_cuda.cuh"

namespace hillstar::cuda {

inline constexpr int kLongTiles = 4;
inline constexpr int kLongHeads = kTileHeads * kLongTiles;
inline constexpr int kParts = 4;  // warps of a tile of heads
inline constexpr int kLongWarps = kLongTiles * kParts;
inline constexpr int kLongThreads = kLongWarps * kWarpLanes;
inline constexpr int kWarpLatents = 32;
inline constexpr int kLongBuffers = 3;  // chunks whose rows there may be at once

// Rows lie in a ring of strips. A warp reads rows of two strips at once: with the gap they are
// in different banks.
inline constexpr int kStripRows = 16;
inline constexpr int kStripGap = 64;
inline constexpr int kChunkStrips = kChunk / kStripRows;
constexpr int StripBytes(const AttendLayout& layout) {
  return kStripRows * layout.row_pitch + kStripGap;
}

// What lies in front of all else in shared memory, at places that are known.
template <int kWeightChunks>  // whose weights there are at once
struct LongShared {
  static constexpr int kWeightPitch = 2 * kChunk + 16;  // of a head: two planes
  static constexpr int kSumsPitch = 16 + 4;
  uint8_t weights[kWeightChunks][kLongHeads][kWeightPitch];
  ChunkFactors factors[kWeightChunks][kLongHeads];
  // What the warps of a tile tell each other.
  float largest_of[kParts][kLongHeads];
  float amax_of[kParts][kLongHeads];
  float sums_of[kLongHeads][kSumsPitch];  // of keys j, 16 + j, 32 + j and 48 + j
  // Of the split so far.
  float largest[kLongHeads];
  float sum[kLongHeads];
  uint64_t arrived[kLongBuffers];  // bulk copies of every third chunk's rows
  uint64_t padding;                // to a multiple of 16 bytes
  PageId page_of[kChunk];
  uint8_t in_page[4][kChunk];  // of every fourth chunk
};
static_assert(sizeof(LongShared<1>) % 16 == 0 && sizeof(LongShared<2>) % 16 == 0);

// How it lies in shared memory.
struct LongShape {
  AttendLayout layout;
  bool overlaps;   // there is room for three chunks' rows
  int num_strips;  // 0: there is no room for a chunk's
  int shared_bytes;
};
inline LongShape LongShapeOf(const KvRowLayout& layout, int shared_bytes) {
  const bool codes = layout.format == KvFormat::kFp8;
  LongShape s;
  s.layout = AttendLayoutOf(layout, codes);
  s.layout.keeps_scores = false;
  s.layout.num_head_numbers = kNumQueryNumbers;
  s.layout.num_buffers = 0;  // there is the ring
  const auto fit = [&](int chunks) {
    s.shared_bytes = AttendSharedBytes(s.layout, kLongTiles) +
                     int(chunks == 2 ? sizeof(LongShared<2>) : sizeof(LongShared<1>));
    return s.shared_bytes > shared_bytes ? 0
                                         : (shared_bytes - s.shared_bytes) / StripBytes(s.layout);
  };
  s.num_strips = kLongBuffers * kChunkStrips;
  s.overlaps = layout.format == KvFormat::kQ8 && fit(2) >= s.num_strips;
  if (!s.overlaps) {
    s.num_strips = std::min(fit(1), (codes ? 1 : 2) * kChunkStrips);
    if (s.num_strips < kChunkStrips) s.num_strips = 0;
  }
  s.shared_bytes += s.num_strips * StripBytes(s.layout);
  return s;
}

// kLow: latents have two planes; kCodes: rows are e4m3 codes; kOverlaps: LongShape.
template <bool kLow, bool kCodes, bool kOverlaps>
struct LongBlock {
  using Base = AttendBlock<kLongTiles, kLow, kCodes, kLongWarps>;
  static constexpr int kPlanes = kLow ? 2 : 1;
  static constexpr int kWeightChunks = kOverlaps ? 2 : 1;
  using Shared = LongShared<kWeightChunks>;

  const AttendArguments& arguments;
  Base base;
  Shared& shared;
  uint8_t* rows;          // [num_strips][kStripRows][row_pitch], with gaps
  uint32_t parities = 0;  // of the next phases of `arrived`
  int tile, part;         // of this warp
  int first_split = 0;    // of the token

  __device__ __forceinline__ explicit LongBlock(const AttendArguments& a)
      : arguments(a),
        base(a.task, a.layout, DynamicShared() + sizeof(Shared)),
        shared(*reinterpret_cast<Shared*>(DynamicShared())) {
    rows = base.queries + AttendSharedBytes(a.layout, kLongTiles);
    base.warp = Uniform(base.warp);
    tile = base.warp / kParts;
    part = base.warp % kParts;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kLongBuffers; ++i) InitBarrier(shared.arrived + i, kChunkStrips);
      FenceBarriers();
    }
  }
  // What follows from a thread's number is found again where it is needed, and keeps no registers.
  __device__ __forceinline__ void ForgetThread() {
    Forget(base.lane);
    base.g = base.lane / 4;
    base.t = base.lane % 4;
    tile = base.warp / kParts;
    part = base.warp % kParts;
  }
  // The tile's warps have come here.
  __device__ __forceinline__ void Meet() const { SyncWarps(1 + tile, kParts * kWarpLanes); }

  // The rows of keys 16 i .. 16 i + 15 of a chunk.
  __device__ __forceinline__ uint8_t* Strip(int chunk, int i) const {
    constexpr int kKnown = kOverlaps ? kLongBuffers : 1;  // chunks, but for two planes
    const int at = !kOverlaps && !kCodes ? (chunk * kChunkStrips + i) % arguments.num_strips
                                         : chunk % kKnown * kChunkStrips + i;
    return rows + at * StripBytes(base.layout);
  }
  __device__ __forceinline__ uint8_t* Row(int chunk, int key) const {
    return Strip(chunk, key / kStripRows) + key % kStripRows * base.layout.row_pitch;
  }
  static __device__ __forceinline__ int KeysOf(int chunk, int end_key) {
    const int left = end_key - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
  static __device__ __forceinline__ bool EndsSplit(int chunk, int end_key) {
    return chunk % kSplitChunks == kSplitChunks - 1 || KeysOf(chunk + 1, end_key) <= 0;
  }

  // Where the rows of a chunk lie, in two steps, each of which is there after WaitForRows, by
  // threads 0 .. 63. Those of a dense chunk are a page, which thread 0 finds.
  static_assert(kChunk == kPageTokens);
  __device__ __forceinline__ bool Finds(int chunk, int end_key) const {
    const int at = int(threadIdx.x);
    return at < (base.keys.is_dense ? 1 : kChunk) && chunk * kChunk + at < end_key;
  }
  __device__ __forceinline__ void FindPages(int chunk, int end_key) const {
    if (!Finds(chunk, end_key)) return;
    const int at = int(threadIdx.x), key = chunk * kChunk + at;
    const Selection& selection = base.task.selection;
    const int position =
        base.keys.is_dense ? key : selection.lists[base.token * selection.max_keys + key];
    shared.in_page[chunk % 4][at] = uint8_t(position % kChunk);
    const PageId* page_ids = base.task.pages.ids[base.token];
    CopyAsync4(shared.page_of + at, page_ids + position / kChunk);
  }
  __device__ __forceinline__ void FindRows(int chunk, int end_key) const {
    if (!Finds(chunk, end_key)) return;
    const int at = int(threadIdx.x);
    auto* to = reinterpret_cast<uint32_t*>(base.places + chunk % 2 * kChunk + at);
    auto* from = reinterpret_cast<const uint32_t*>(base.task.pages.memory + shared.page_of[at]);
    CopyAsync4(to, from);
    CopyAsync4(to + 1, from + 1);
  }
  // Of n; those of a dense chunk follow each other.
  __device__ __forceinline__ const uint8_t* FoundRow(int chunk, int n, int key) const {
    const int of = key < n ? key : n - 1, at = base.keys.is_dense ? 0 : of;
    return base.places[chunk % 2 * kChunk + at] + base.task.pages.offset +
           (base.keys.is_dense ? key : shared.in_page[chunk % 4][of]) *
               base.layout.global_row_bytes;
  }
  // Where a chunk's key is fetched to.
  __device__ __forceinline__ uint8_t* Fetched(int chunk, int key) const {
    return kCodes ? base.codes + key * base.layout.global_row_bytes : Row(chunk, key);
  }
  // Fetches strips [begin, end) of a chunk of n keys. Behind the last key come other rows.
  __device__ __forceinline__ void Load(int chunk, int n, int begin, int end) const {
    if (HasBulkCopies()) {
      LoadInBulk(chunk, n, begin, end);
    } else {
      LoadPieces(chunk, n, begin, end);
    }
  }
  // Four warps have a strip, which is one copy where rows lie in memory as they will here.
  __device__ __forceinline__ void LoadInBulk(int chunk, int n, int begin, int end) const {
    const int bytes = base.layout.global_row_bytes;
    const bool at_once = base.keys.is_dense && (kCodes || bytes == base.layout.row_pitch);
    const int strip = base.warp / kParts, in_strip = base.warp % kParts * 4 + base.lane;
    if (strip < begin || strip >= end || base.lane >= 4) return;
    const int key = strip * kStripRows + in_strip;
    uint64_t* barrier = shared.arrived + chunk % kLongBuffers;
    if (in_strip == 0) ArriveExpecting(barrier, kStripRows * bytes);
    if (at_once && in_strip > 0) return;
    BulkCopy(Fetched(chunk, key), FoundRow(chunk, n, key), at_once ? kStripRows * bytes : bytes,
             barrier);
  }
  __device__ __forceinline__ void LoadPieces(int chunk, int n, int begin, int end) const {
#pragma unroll 1
    for (int key = begin * kStripRows + base.warp; key < end * kStripRows; key += kLongWarps) {
      const uint8_t* row = FoundRow(chunk, n, key);
      uint8_t* to = Fetched(chunk, key);
#pragma unroll 1
      for (int i = 16 * base.lane; i < base.layout.global_row_bytes; i += 16 * kWarpLanes) {
        CopyAsync16(to + i, row + i);
      }
    }
  }
  // Until a chunk's rows and what else is being fetched are there; then a barrier of the block.
  // Once for every chunk.
  __device__ __forceinline__ void WaitForRows(int chunk) {
    CommitCopies();
    WaitForCopies<0>();
    if (!HasBulkCopies()) return;
    const int at = chunk % kLongBuffers;
    WaitForBarrier(shared.arrived + at, parities >> at & 1);
    parities ^= 1u << at;
  }
  // Makes planes of a chunk's codes.
  __device__ __forceinline__ void Expand(int chunk) const {
    const int bytes = base.layout.global_row_bytes;
#pragma unroll 1
    for (int i = 16 * base.lane; i < bytes; i += 16 * kWarpLanes) {
#pragma unroll 1
      for (int key = base.warp; key < kChunk; key += kLongWarps) {
        base.ExpandPiece(base.codes + key * bytes, i, Row(chunk, key));
      }
    }
  }

  // Lane 4 g + t has keys j, 16 + j, 32 + j and 48 + j of a chunk, j = 4 part + t, of heads g and
  // g + 8 of the tile.
  using Dots = int[kChunkStrips][2];
  // PlaneProducts over `padded` dimensions.
  template <bool kTwoPlanes>
  __device__ __forceinline__ void FindDots(int chunk, int query_at, int row_at, int padded,
                                           Dots& dots) const {
    const int lane = base.lane;
    const uint8_t* query = base.queries + query_at + lane / 16 * 16 +
                           (tile * kTileHeads + lane % 16) * base.layout.query_pitch;
    const int low_query = kLongHeads * base.layout.query_pitch;
    // Column 2 t + e of product m is key 16 (2 m + e) + j.
    const uint8_t* keys[2];
    for (int m = 0; m < 2; ++m) {
      keys[m] = Strip(chunk, 2 * m + lane % 2) + (4 * part + lane % 8 / 2) * base.layout.row_pitch +
                row_at + lane / 8 * 16;
    }
    int high[2][4] = {}, cross[2][4] = {};
#pragma unroll 1
    for (int d = 0; d < padded; d += 64) {
      uint32_t b[2][4];  // [m]
      const auto multiply = [&](int plane, int(&sums)[2][4]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[4];
          LoadMatrices(a, query + plane * low_query + d + 32 * half);
          for (int m = 0; m < 2; ++m) {
            MmaSignedSigned(sums[m], a, b[m][2 * half], b[m][2 * half + 1]);
          }
        }
      };
      if constexpr (kTwoPlanes) {
        for (int m = 0; m < 2; ++m) LoadMatrices(b[m], keys[m] + padded + d);
        multiply(0, cross);
      }
      for (int m = 0; m < 2; ++m) LoadMatrices(b[m], keys[m] + d);
      multiply(0, high);
      multiply(1, cross);
    }
    for (int i = 0; i < kChunkStrips; ++i) {
      for (int r = 0; r < 2; ++r) {
        const int c = 2 * r + i % 2;
        dots[i][r] = int(uint32_t(high[i / 2][c]) * 256u + uint32_t(cross[i / 2][c]));
      }
    }
  }

  using Scores = float[kChunkStrips][2];
  // And the scales of the keys' latents.
  __device__ __forceinline__ void FindScores(int chunk, Scores& scores,
                                             float (&key_scales)[kChunkStrips]) const {
    const AttendLayout& layout = base.layout;
    Dots latents, ropes;
    FindDots<kLow>(chunk, 0, 0, layout.padded_latent, latents);
    FindDots<true>(chunk, layout.padded_latent, layout.rope_at, layout.padded_rope, ropes);
    const float* by_latent = base.head(kLatentScale) + tile * kTileHeads + base.g;
    const float* by_rope = base.head(kRopeScale) + tile * kTileHeads + base.g;
#pragma unroll
    for (int i = 0; i < kChunkStrips; ++i) {
      const uint8_t* row = Strip(chunk, i) + (4 * part + base.t) * layout.row_pitch;
      const float2 scale = *reinterpret_cast<const float2*>(row + layout.scale_at);
      key_scales[i] = scale.x;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float rope = __fmul_rn(float(ropes[i][r]), __fmul_rn(by_rope[8 * r], scale.y));
        scores[i][r] = __fmaf_rn(float(latents[i][r]), __fmul_rn(by_latent[8 * r], scale.x), rope);
      }
    }
  }

  // The weights of a chunk of n keys; is_last: of its split.
  __device__ __forceinline__ void Weigh(int chunk, int n, bool is_last) {
    ForgetThread();
    const float none = -__uint_as_float(0x7f800000u);
    const bool is_first = chunk % kSplitChunks == 0;
    const int h = tile * kTileHeads + base.g, j = 4 * part + base.t;
    Scores p;
    float key_scales[kChunkStrips];
    FindScores(chunk, p, key_scales);
    const auto for_missing = [&](auto set) {
      if (n == kChunk) return;
#pragma unroll
      for (int i = 0; i < kChunkStrips; ++i) {
        if (kStripRows * i + j >= n) set(i);
      }
    };
    for_missing([&](int i) { p[i][0] = p[i][1] = key_scales[i] = 0.0f; });
    float bad[2] = {};  // NaN where a score is not finite, else a zero
    for (int i = 0; i < 2 * kChunkStrips; ++i) {
      bad[i % 2] = __fmaf_rn(p[i / 2][i % 2], 0.0f, bad[i % 2]);
    }
    for_missing([&](int i) { p[i][0] = p[i][1] = none; });
    float largest[2], amax[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float own = none;
      for (int i = 0; i < kChunkStrips; ++i) own = fmaxf(own, p[i][r]);
      for (int bits = 1; bits < 4; bits *= 2) {
        own = fmaxf(own, __shfl_xor_sync(kAllLanes, own, bits));
      }
      if (base.t == 0) shared.largest_of[part][h + 8 * r] = own;
    }
    Meet();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = is_first ? none : shared.largest[h + 8 * r];
      for (int i = 0; i < kParts; ++i) {
        largest[r] = fmaxf(largest[r], shared.largest_of[i][h + 8 * r]);
      }
      largest[r] = __fadd_rn(largest[r], 0.0f);
      amax[r] = 0.0f;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kChunkStrips; ++i) {
        const float x = ExpOfSmall(__fsub_rn(p[i][r], largest[r]));
        sum = i == 0 ? x : __fadd_rn(sum, x);
        p[i][r] = __fmul_rn(x, key_scales[i]);
        amax[r] = fmaxf(amax[r], Magnitude(p[i][r]));
      }
      shared.sums_of[h + 8 * r][j] = __fadd_rn(sum, bad[r]);
      for (int bits = 1; bits < 4; bits *= 2) {
        amax[r] = fmaxf(amax[r], __shfl_xor_sync(kAllLanes, amax[r], bits));
      }
      if (base.t == 0) shared.amax_of[part][h + 8 * r] = amax[r];
    }
    Meet();
    // Lanes t = 0 and 1 find what there is one of for a head, g and g + 8.
    const int own = base.t % 2, head = h + 8 * own;
    float largest_weight = 0.0f;
    for (int i = 0; i < kParts; ++i) {
      largest_weight = fmaxf(largest_weight, shared.amax_of[i][head]);
    }
    const RowScale scale = ScaleOf(largest_weight);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      StoreWeights(chunk, r, p, __shfl_sync(kAllLanes, scale.inverse, base.lane / 4 * 4 + r));
    }
    if (part > 0) return;
    const float sums[2] = {SumOfChunk(h), SumOfChunk(h + 8)};
    if (base.t > 1) return;
    const float now = own == 0 ? largest[0] : largest[1];
    float sum = own == 0 ? sums[0] : sums[1], decay = 0.0f;
    if (!is_first) {
      decay = ExpOfSmall(__fsub_rn(shared.largest[head], now));
      sum = __fmaf_rn(shared.sum[head], decay, sum);
    }
    shared.largest[head] = now;
    shared.sum[head] = sum;
    shared.factors[chunk % kWeightChunks][head] = {decay, __fmul_rn(scale.scale, 0x1p-8f)};
    const int64_t num_heads = base.task.num_heads;
    if (is_last && base.first_head + head < int(num_heads)) {
      const int64_t split = first_split + chunk / kSplitChunks;
      arguments.scratch.numbers[split * num_heads + base.first_head + head] = make_float2(now, sum);
    }
  }
  // The tree over 16 lanes.
  __device__ __forceinline__ float SumOfChunk(int h) const {
    const float* lanes = shared.sums_of[h] + base.t;
    float sum = __fadd_rn(__fadd_rn(lanes[0], lanes[8]), __fadd_rn(lanes[4], lanes[12]));
    for (int bits = 2; bits > 0; bits /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, bits));
    }
    return sum;
  }
  // Planes of the weights of head g + 8 r, a lane's in a word each.
  __device__ __forceinline__ void StoreWeights(int chunk, int r, const Scores& w,
                                               float inverse) const {
    PlaneWords words[kChunkStrips];
    for (int i = 0; i < kChunkStrips; ++i) words[i] = ToPlaneWords(w[i][r], inverse);
    uint8_t* to = shared.weights[chunk % kWeightChunks][tile * kTileHeads + base.g + 8 * r] +
                  4 * (4 * part + base.t);
    *reinterpret_cast<uint32_t*>(to) = LowBytes(words[0].hi, words[1].hi, words[2].hi, words[3].hi);
    *reinterpret_cast<uint32_t*>(to + kChunk) =
        LowBytes(words[0].lo, words[1].lo, words[2].lo, words[3].lo);
  }

  // A warp's latents of all heads. Of lane 4 g + t, [tile][q][n][2 r + e] is that of head g + 8 r
  // and latent 16 q + 4 t + 2 e + n.
  static constexpr int kQ = kWarpLatents / 16;
  using Values = float[kLongTiles][kQ][2][4];
  // Bytes of 16 latents of a chunk's keys in the order of weights: [32 keys][n][register].
  using ValueBytes = uint32_t[2][2][2];
  __device__ __forceinline__ void LoadValues(int chunk, int latent, ValueBytes& b) const {
    // Row r of matrix 2 i + m: key 32 m + 16 (r % 2) + 8 h + 4 i + r / 2.
    const int matrix = base.lane / 8, r = base.lane % 8;
    const uint8_t* from = Strip(chunk, 2 * (matrix % 2) + r % 2) + latent +
                          (4 * (matrix / 2) + r / 2) * base.layout.row_pitch;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t m[4];
      LoadMatricesTransposed(m, from + 8 * h * base.layout.row_pitch);
      for (int i = 0; i < 2; ++i) {
        b[h][0][i] = __byte_perm(m[2 * i], m[2 * i + 1], 0x6420);
        b[h][1][i] = __byte_perm(m[2 * i], m[2 * i + 1], 0x7531);
      }
    }
  }
  // values = fma(weights x latents, weight scale, values * decay).
  __device__ __forceinline__ void AddValues(int chunk, Values& values) {
    ForgetThread();
    const int first = kWarpLatents * base.warp;
    if (first >= base.layout.padded_latent) return;
    const int num_heads = int(base.task.num_heads) - base.first_head;
    constexpr int kAtOnce = kLow ? 1 : kQ;
#pragma unroll
    for (int q = 0; q < kQ; q += kAtOnce) {
      ValueBytes b[kPlanes][kAtOnce];
      for (int i = 0; i < kPlanes * kAtOnce; ++i) {
        const int plane = i / kAtOnce, at = i % kAtOnce;
        LoadValues(chunk, first + 16 * (q + at) + plane * base.layout.padded_latent, b[plane][at]);
      }
      const uint8_t* planes =
          shared.weights[chunk % kWeightChunks][base.lane % 16] + base.lane / 16 * 16;
      const ChunkFactors* own = shared.factors[chunk % kWeightChunks] + base.g;
#pragma unroll
      for (int of = 0; of < kLongTiles; ++of) {
        if (of * kTileHeads >= num_heads) break;
        const ChunkFactors f[2] = {own[of * kTileHeads], own[of * kTileHeads + 8]};
        int sums[kAtOnce][2][4] = {};
        const auto multiply = [&](int of_weights, int plane) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint32_t a[4];  // 32 keys' weights
            LoadMatrices(a, planes + of * kTileHeads * Shared::kWeightPitch + of_weights * kChunk +
                                32 * half);
            for (int i = 0; i < 2 * kAtOnce; ++i) {
              const auto& bytes = b[plane][i / 2][half][i % 2];
              MmaSignedSigned(sums[i / 2][i % 2], a, bytes[0], bytes[1]);
            }
          }
        };
        multiply(0, 0);
        for (int i = 0; i < 8 * kAtOnce; ++i) {
          int& x = sums[i / 8][i / 4 % 2][i % 4];
          x = int(uint32_t(x) * 256u);
        }
        if constexpr (kLow) multiply(0, 1);
        multiply(1, 0);
#pragma unroll
        for (int i = 0; i < 8 * kAtOnce; ++i) {
          float& v = values[of][q + i / 8][i / 4 % 2][i % 4];
          // Of what was there before the first chunk nothing is left: its decay is 0.
          v = __fmaf_rn(float(sums[i / 8][i / 4 % 2][i % 4]), f[i % 4 / 2].scale,
                        __fmul_rn(v, f[i % 4 / 2].decay));
        }
      }
    }
  }
  __device__ __forceinline__ void StorePartial(int chunk, const Values& values) const {
    const int64_t split = first_split + chunk / kSplitChunks;
    const int num_heads = int(base.task.num_heads) - base.first_head;
    const int padded = base.layout.padded_latent, first = kWarpLatents * base.warp;
    if (first >= padded) return;
    float* to = arguments.scratch.values + first + 4 * base.t +
                (split * base.task.num_heads + base.first_head + base.g) * padded;
#pragma unroll
    for (int i = 0; i < 2 * kLongTiles; ++i) {
      const int r = i % 2;
      if (8 * i + base.g >= num_heads) continue;
#pragma unroll
      for (int q = 0; q < kQ; ++q) {
        const auto& v = values[i / 2][q];
        *reinterpret_cast<float4*>(to + 8 * i * padded + 16 * q) =
            make_float4(v[0][2 * r], v[1][2 * r], v[0][2 * r + 1], v[1][2 * r + 1]);
      }
    }
  }

  // Splits [split, end) of a token's whose queries are being loaded.
  __device__ __forceinline__ void RunSplits(int split, int end) {
    const int keys = base.keys.num;
    const int end_key = end * kSplit < keys ? end * kSplit : keys;
    const int first = split * kSplitChunks;
    const int last = (end_key + kChunk - 1) / kChunk;
    FindPages(first, end_key);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      CommitCopies();
      WaitForCopies<0>();
      FindRows(first + i, end_key);
      FindPages(first + i + 1, end_key);
    }
    CommitCopies();
    WaitForCopies<0>();  // the queries too
    __syncthreads();
    Load(first, KeysOf(first, end_key), 0, kChunkStrips);
    Values values = {};
    if constexpr (kOverlaps) {
      RunOverlapping(first, last, end_key, values);
    } else {
      RunInTurns(first, last, end_key, values);
    }
  }
  __device__ __forceinline__ void RunOverlapping(int first, int last, int end_key, Values& values) {
    if (first + 1 < last) Load(first + 1, KeysOf(first + 1, end_key), 0, kChunkStrips);
    WaitForRows(first);
    __syncthreads();
    FindRows(first + 2, end_key);
    FindPages(first + 3, end_key);
    Weigh(first, KeysOf(first, end_key), EndsSplit(first, end_key));
#pragma unroll 1
    for (int chunk = first; chunk < last; ++chunk) {
      if (chunk + 1 < last) WaitForRows(chunk + 1);
      __syncthreads();  // rows of the next chunk, weights of this one
      if (chunk + 2 < last) Load(chunk + 2, KeysOf(chunk + 2, end_key), 0, kChunkStrips);
      FindRows(chunk + 3, end_key);
      FindPages(chunk + 4, end_key);
      AddValues(chunk, values);
      if (EndsSplit(chunk, end_key)) StorePartial(chunk, values);
      if (chunk + 1 < last) {
        Weigh(chunk + 1, KeysOf(chunk + 1, end_key), EndsSplit(chunk + 1, end_key));
      }
    }
  }
  __device__ __forceinline__ void RunInTurns(int first, int last, int end_key, Values& values) {
    const int ahead = kCodes ? kChunkStrips : arguments.num_strips - kChunkStrips;
#pragma unroll 1
    for (int chunk = first; chunk < last; ++chunk) {
      const bool continues = chunk + 1 < last;
      const int next = KeysOf(chunk + 1, end_key);
      WaitForRows(chunk);
      __syncthreads();
      if constexpr (kCodes) {
        Expand(chunk);
        __syncthreads();
      }
      if (continues) Load(chunk + 1, next, 0, ahead);
      FindRows(chunk + 2, end_key);
      FindPages(chunk + 3, end_key);
      Weigh(chunk, KeysOf(chunk, end_key), EndsSplit(chunk, end_key));
      __syncthreads();
      AddValues(chunk, values);
      if (EndsSplit(chunk, end_key)) StorePartial(chunk, values);
      if (ahead == kChunkStrips) continue;
      __syncthreads();  // nobody reads this chunk's rows
      if (continues) Load(chunk + 1, next, ahead, kChunkStrips);
    }
  }
};

template <bool kLow, bool kCodes, bool kOverlaps>
__global__ void __launch_bounds__(kLongThreads, 1)
    AttendLongKernel(const __grid_constant__ AttendArguments arguments) {
  WaitForPrevious();
  LetNextBegin();
  const unsigned groups = unsigned(arguments.num_head_groups);
  LongBlock<kLow, kCodes, kOverlaps> block(arguments);
  // Threads have no registers left for what all of a block know alike: it is kept for the warp, or
  // found again, the list of splits for each token. Without this a chunk takes 5 % longer.
  for (int split = -1;;) {
    SplitList list;
    list.Make(arguments.task, arguments.scratch.capacity);
    const int64_t all = Uniform(list.num_splits);
    const unsigned share = blockIdx.x / groups, shares = gridDim.x / groups;
    if (split < 0) split = int(all * share / shares);
    const int end = int(all * (share + 1) / shares);
    if (split >= end) break;
    const int token = Uniform(list.TokenOf(split));
    const TokenKeys keys = list.KeysOfToken(token);
    const int first = Uniform(list.Begin(token));
    const int num_keys = Uniform(keys.num);
    const int num_splits = (num_keys + kSplit - 1) / kSplit;
    const int last = first + num_splits < end ? first + num_splits : end;
    __syncthreads();  // nobody reads what was there before
    block.first_split = first;
    block.base.LoadQueries(token, {num_keys, Uniform(keys.is_dense) != 0},
                           int(blockIdx.x % groups) * kLongHeads);
    block.RunSplits(split - first, last - first);
    split = last;
  }
}

}  // namespace hillstar::cuda
