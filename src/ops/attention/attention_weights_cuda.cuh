// Splits of attention inside kernels: what is kept of them in scratch memory, which tokens they are
// of, and the weights that follow from a head's scores.
#pragma once

#include "ops/attention/attention_block_cuda.cuh"

namespace hillstar::cuda {

// More tokens than these keep a GPU busy without a cut.
inline constexpr int kMaxSplitTokens = 64;
inline constexpr int kSplitChunks = kSplit / kChunk;
// Latents of a block: what 8 warps have, 16 each.
inline constexpr int kValueLatents = 128;
// Tiles of heads of a block that finds values where there is much to do, so that rows are read
// once.
inline constexpr int kManyTiles = 4;
// Splits that the last block of a token to end merges itself.
inline constexpr int kMaxJoinedSplits = 16;

// What the kernels leave for each other. Splits of all tokens are counted through.
struct SplitScratch {
  float* values = nullptr;      // [splits][heads][padded latent]: partial results
  float* scores = nullptr;      // [splits][heads][kSplit]; then, in a head's place, its weights
  float* key_scales = nullptr;  // [splits][kSplit]
  float2* numbers = nullptr;    // [splits][heads]: largest, sum
  int32_t* tickets = nullptr;   // [splits][tickets_each]: a token's are those of its first split
  int32_t tickets_each = 0;
  int64_t capacity = 0;  // splits
};
struct AttendArguments {
  AttendTask task;
  AttendLayout layout;
  SplitScratch scratch;
  int num_head_groups;
  bool weighs;      // whoever finds scores finds weights: a block has whole splits
  bool joins;       // whoever ends last merges
  bool merges_all;  // tokens of one split too, which nobody has finished
  int num_strips;   // LongShape
  int num_items;    // there are at most: a launch's shape does not know how many splits there are
  int32_t* bad;
  int32_t code;
};
// A head's weights in scratch memory: planes, then the chunks' factors.
inline constexpr int kWeightBytes = 2 * kSplit;
struct ChunkFactors {
  float decay;  // of the values before
  float scale;  // of the weights
};

// Where the splits of tokens are. Every warp finds out for itself, its lane l for tokens l and l +
// 32: splits of tokens up to this one end at ends. Tokens are cut as long as there is room.
struct SplitList {
  int ends[2];
  int keys[2];     // < 0: -1 - keys of a dense token
  int num_tokens;  // that are cut
  int num_splits;  // of these

  __device__ __forceinline__ void Make(const AttendTask& task, int64_t capacity) {
    const int lane = int(threadIdx.x) % kWarpLanes;
    const int live = *task.live;
    int before = 0;
    num_tokens = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ends[r] = before;
      keys[r] = 0;
      if (r * kWarpLanes >= task.num_tokens) continue;
      const int t = lane + kWarpLanes * r;
      const bool exists = t < task.num_tokens;
      const TokenKeys own = KeysOf(task, exists ? t : 0);
      keys[r] = own.is_dense ? -1 - own.num : own.num;
      int64_t splits = (own.num + kSplit - 1) / kSplit;
      if (splits > capacity) splits = capacity + 1;  // so that sums stay within int32
      const bool is_live = exists && t < live;
      const int end = SumUpToLane(is_live ? int(splits) : 0);
      ends[r] = before + end;
      before = __shfl_sync(kAllLanes, ends[r], kWarpLanes - 1);
      num_tokens += __popc(__ballot_sync(kAllLanes, is_live && ends[r] <= capacity));
    }
    num_splits = num_tokens == 0 ? 0 : Of(ends, num_tokens - 1);
  }
  static __device__ __forceinline__ int Of(const int (&numbers)[2], int token) {
    return __shfl_sync(kAllLanes, token < kWarpLanes ? numbers[0] : numbers[1], token % kWarpLanes);
  }
  __device__ __forceinline__ int TokenOf(int split) const {
    return __popc(__ballot_sync(kAllLanes, ends[0] <= split)) +
           __popc(__ballot_sync(kAllLanes, ends[1] <= split));
  }
  __device__ __forceinline__ int Begin(int token) const {
    const int before = Of(ends, token == 0 ? 0 : token - 1);
    return token == 0 ? 0 : before;
  }
  __device__ __forceinline__ TokenKeys KeysOfToken(int token) const {
    const int n = Of(keys, token);
    return {n < 0 ? -1 - n : n, n < 0};
  }
};

// A head's weights of a split: each half of a warp has two of the four chunks, its lane j keys j,
// 16 + j, 32 + j and 48 + j of a chunk, in the bytes of a word of each plane.
struct HeadWeights {
  uint32_t hi[2], lo[2];
  ChunkFactors factors[2];
  float largest, sum;  // of the split, in the first half
};
// Of all lanes of a half, with the neighbours' help.
__device__ __forceinline__ float HalfMax(float x) {
  for (int bits = 1; bits < 16; bits *= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, bits);
    x = other > x ? other : x;
  }
  return x;
}
// All lanes of a warp together, for n keys.
__device__ __forceinline__ HeadWeights WeighHead(const float* scores, const float* key_scales,
                                                 int n) {
  const float none = -__uint_as_float(0x7f800000u);
  const int lane = int(threadIdx.x) % kWarpLanes, half = lane / 16;
  const int first = half * 2 * kChunk + lane % 16;
  float p[2][4], w[2][4], largest[2];
  bool finite[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = first + 16 * i;
    p[i / 4][i % 4] = key < n ? scores[key] : none;
    w[i / 4][i % 4] = key < n ? key_scales[key] : 0.0f;
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    bool is_finite = true;
    largest[c] = none;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool valid = first + c * kChunk + 16 * i < n;
      is_finite &= !valid | IsFinite(p[c][i]);
      largest[c] = p[c][i] > largest[c] ? p[c][i] : largest[c];
    }
    const unsigned all = __ballot_sync(kAllLanes, is_finite);
    finite[c] = (all >> (16 * half) & 0xffff) == 0xffff;
    largest[c] = HalfMax(largest[c]);
  }
  // The first half's largest is where the second begins.
  float before = none;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float other = __shfl_xor_sync(kAllLanes, largest[c], 16);
    const float next = __fadd_rn(other > before ? other : before, 0.0f);
    before = half == 1 ? next : before;
  }
  HeadWeights out;
  float sum[2], amax[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float next = __fadd_rn(largest[c] > before ? largest[c] : before, 0.0f);
    out.factors[c].decay = ExpOfSmall(__fsub_rn(before, next));
    before = next;
    amax[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[c][i] = ExpOfSmall(__fsub_rn(p[c][i], next));
      w[c][i] = __fmul_rn(p[c][i], w[c][i]);
      w[c][i] = finite[c] ? w[c][i] : 0.0f;
      const float m = Magnitude(w[c][i]);
      amax[c] = m > amax[c] ? m : amax[c];
    }
    sum[c] = __fadd_rn(__fadd_rn(__fadd_rn(p[c][0], p[c][1]), p[c][2]), p[c][3]);
  }
#pragma unroll
  for (int bits = 8; bits > 0; bits /= 2) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sum[c] = __fadd_rn(sum[c], __shfl_xor_sync(kAllLanes, sum[c], bits));
      const float other = __shfl_xor_sync(kAllLanes, amax[c], bits);
      amax[c] = other > amax[c] ? other : amax[c];
    }
  }
  // A lane each finds the scale of a chunk.
  const RowScale own_scale = ScaleOf(lane % 2 == 0 ? amax[0] : amax[1]);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int source = 16 * half + c;
    const float inverse = __shfl_sync(kAllLanes, own_scale.inverse, source);
    out.factors[c].scale = __fmul_rn(__shfl_sync(kAllLanes, own_scale.scale, source), 0x1p-8f);
    PlaneWords words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = ToPlaneWords(w[c][i], inverse);
    out.hi[c] = LowBytes(words[0].hi, words[1].hi, words[2].hi, words[3].hi);
    out.lo[c] = LowBytes(words[0].lo, words[1].lo, words[2].lo, words[3].lo);
    if (!finite[c]) sum[c] = __uint_as_float(0x7fc00000u);
  }
  out.largest = __shfl_sync(kAllLanes, before, 16);
  out.sum = sum[0];
  if (kChunk < n) out.sum = __fmaf_rn(out.sum, out.factors[1].decay, sum[1]);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float decay = __shfl_sync(kAllLanes, out.factors[c].decay, 16);
    const float joins = __shfl_sync(kAllLanes, sum[c], 16);
    if ((2 + c) * kChunk < n) out.sum = __fmaf_rn(out.sum, decay, joins);
  }
  return out;
}
// To [plane][kSplit] bytes and [kSplitChunks] factors.
__device__ __forceinline__ void StoreWeights(const HeadWeights& head, uint8_t* weights,
                                             ChunkFactors* factors) {
  const int lane = int(threadIdx.x) % kWarpLanes, half = lane / 16;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    auto* to = reinterpret_cast<uint32_t*>(weights + (2 * half + c) * kChunk) + lane % 16;
    to[0] = head.hi[c];
    to[kSplit / 4] = head.lo[c];
    if (lane % 16 == 0) factors[2 * half + c] = head.factors[c];
  }
}

// A head's weights of n keys in its scores' place. `row`: of the split and head.
__device__ __forceinline__ void WeighInPlace(const SplitScratch& scratch, int split, int64_t row,
                                             int n) {
  float* scores = scratch.scores + row * kSplit;
  const HeadWeights head = WeighHead(scores, scratch.key_scales + int64_t(split) * kSplit, n);
  __syncwarp();  // all have read
  auto* weights = reinterpret_cast<uint8_t*>(scores);
  StoreWeights(head, weights, reinterpret_cast<ChunkFactors*>(weights + kWeightBytes));
  if (threadIdx.x % kWarpLanes == 0) scratch.numbers[row] = make_float2(head.largest, head.sum);
}

}  // namespace hillstar::cuda
