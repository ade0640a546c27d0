// Attention inside kernels: a block of 256 threads goes through the chunks of a split for some
// heads of one token. Rows of 64 keys lie in shared memory; scores are products of queries (16
// heads a tile) with rows as they lie, values products of the weights' planes with rows whose bytes
// are transposed on the way. All products are exact integers, so how they are cut does not matter;
// what is rounded follows attention_ref.cc.
#pragma once

#include "device/cuda/contract.cuh"
#include "ops/attention/attention.h"
#include "ops/cuda_kernels.h"

namespace hillstar::cuda {

inline constexpr int kAttendThreads = 256;
inline constexpr int kAttendWarps = kAttendThreads / kWarpLanes;
inline constexpr int kTileHeads = 16;
inline constexpr int kChunk = int(kChunkKeys);
inline constexpr int kSplit = int(kSplitKeys);

// Rows of 16-byte pieces whose number is odd: eight of them lie in different banks.
constexpr int OddPieces(int bytes) { return bytes / 16 % 2 ? bytes : bytes + 16; }

// What is kept of each head, as arrays over the block's heads.
enum HeadNumber {
  kLatentScale,  // of the query
  kRopeScale,
  kNumQueryNumbers,
  kLargest = kNumQueryNumbers,  // of the split so far
  kSum,
  kDecay,        // of what was summed before the chunk
  kWeightScale,  // of the chunk
  kMergedLargest,
  kMergedSum,
  kMergedDecay,  // of the splits before
  kSplitDecay,   // of the split that joins them
  kNumHeadNumbers
};

// How rows lie in shared memory: as in their page, but codes become two planes. In bytes, but for
// the numbers of values.
struct AttendLayout {
  KvRowLayout global;
  int latent, padded_latent, padded_rope;
  int global_rope_at, global_scale_at, global_row_bytes;
  int rope_at, scale_at;  // in shared memory
  int row_pitch;
  int query_pitch;  // of a plane
  int num_buffers;  // of a chunk's rows: the next chunk's are fetched meanwhile where there are two
  bool stages_codes;  // the next chunk's codes are fetched as they are, into a buffer of their own
  bool keeps_scores;  // in shared memory
  int num_head_numbers;
};
// `fetches_ahead`: with room for the next chunk's rows.
inline AttendLayout AttendLayoutOf(const KvRowLayout& layout, bool fetches_ahead) {
  const bool codes = layout.format == KvFormat::kFp8;
  const KvRowLayout shared{layout.latent, layout.rope, codes ? KvFormat::kQ15 : layout.format};
  AttendLayout a;
  a.global = layout;
  a.latent = int(layout.latent);
  a.padded_latent = int(layout.padded_latent());
  a.padded_rope = int(layout.padded_rope());
  a.global_rope_at = int(layout.rope_part().at);
  a.global_scale_at = int(layout.value_bytes());
  a.global_row_bytes = int(layout.row_bytes());
  a.rope_at = int(shared.rope_part().at);
  a.scale_at = int(shared.value_bytes());
  a.row_pitch = OddPieces(int(shared.row_bytes()));
  a.query_pitch = OddPieces(int(layout.padded()));
  a.stages_codes = codes && fetches_ahead;
  a.num_buffers = fetches_ahead && !codes ? 2 : 1;
  a.keeps_scores = true;
  a.num_head_numbers = kNumHeadNumbers;
  return a;
}

// Floats of a head's 64 scores. Its weights, two planes of 64 bytes, take their place. In 16-byte
// pieces an odd number, as everywhere.
inline constexpr int kScorePitch = kChunk + 12;
inline constexpr int kWeightPitch = 4 * kScorePitch;

constexpr int AttendSharedBytes(const AttendLayout& layout, int tiles) {
  const int heads = kTileHeads * tiles;
  const int score_pitch = layout.keeps_scores ? kWeightPitch : 0;
  return heads * (2 * layout.query_pitch + score_pitch + layout.num_head_numbers * 4) +
         kChunk * (layout.num_buffers * layout.row_pitch + 2 * 8 +
                   (layout.stages_codes ? layout.global_row_bytes : 0));
}

// The keys that a token attends to.
struct TokenKeys {
  int num;
  bool is_dense;  // the first ones, not a list
};
__device__ __forceinline__ TokenKeys KeysOf(const AttendTask& task, int64_t token) {
  const int count = task.selection.counts[token];
  const int position = int(task.positions[token]);
  return {count == 0 ? position + 1 : count, count == 0};
}

// Four words of four bytes, transposed.
__device__ __forceinline__ void Transpose4x4(uint32_t (&w)[4]) {
  const uint32_t x0 = __byte_perm(w[0], w[1], 0x5140), x1 = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t y0 = __byte_perm(w[0], w[1], 0x7362), y1 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(x0, x1, 0x5410);
  w[1] = __byte_perm(x0, x1, 0x7632);
  w[2] = __byte_perm(y0, y1, 0x5410);
  w[3] = __byte_perm(y0, y1, 0x7632);
}

// E4m3Planes of four codes. A code's bits moved into a binary16 are its value * 2^-8; added to 1.5
// * 2^23, 64 times the value rounds to an integer, whose two's complement are the sum's low bits.
__device__ __forceinline__ void ExpandCodes(uint32_t codes, uint32_t* hi, uint32_t* lo) {
  uint32_t q[4];
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = codes >> (8 * i);
    const float value = HalfBitsToFloat(uint16_t((code & 0x7f) << 7 | (code & 0x80) << 8));
    q[i] = __float_as_uint(__fmaf_rn(value, 0x1p14f, 0x1.8p23f));
  }
  *lo = __byte_perm(__byte_perm(q[0], q[1], 0x40), __byte_perm(q[2], q[3], 0x40), 0x5410);
  for (int i = 0; i < 4; ++i) q[i] += 128;
  *hi = __byte_perm(__byte_perm(q[0], q[1], 0x51), __byte_perm(q[2], q[3], 0x51), 0x5410);
}

// The latents of a tile of heads that a thread sums: of lane 4 g + t of warp w, rows (heads) g and
// g + 8, latents 64 w + 32 b + 8 t .. + 7.
//   [block b of 32 latents][n][c]: n-th of four products, whose column j is latent 4 j + n of the
//   block, c as MmaSignedSigned says.
struct TileValues {
  float v[2][4][4];
};

// kTiles: of 16 heads; kLow: latents have two planes; kCodes: rows are e4m3 codes; kWarps: of the
// block.
template <int kTiles, bool kLow, bool kCodes, int kWarps = kAttendWarps>
struct AttendBlock {
  static constexpr int kHeads = kTileHeads * kTiles;

  const AttendTask& task;
  const AttendLayout& layout;
  uint8_t* queries;        // [plane][kHeads][query_pitch]
  uint8_t* rows;           // [num_buffers][kChunk][row_pitch]
  float* scores;           // [kHeads][kScorePitch]
  uint8_t* weights;        // [kHeads][kWeightPitch]: [plane][64], keys in the order of WeightAt
  float* heads;            // [HeadNumber][kHeads]
  uint8_t* codes;          // [kChunk][global row], where they are staged
  const uint8_t** places;  // [2][kChunk]: the rows of this chunk's and the next one's keys
  int token = 0;
  TokenKeys keys{};
  const PageId* page_ids = nullptr;  // of the token
  int first_head = 0;
  int warp, lane, g, t;

  // `begin`: of its shared memory.
  __device__ __forceinline__ AttendBlock(const AttendTask& task_, const AttendLayout& layout_,
                                         uint8_t* begin = DynamicShared())
      : task(task_), layout(layout_), queries(begin) {
    rows = queries + 2 * kHeads * layout.query_pitch;
    scores = reinterpret_cast<float*>(rows + layout.num_buffers * kChunk * layout.row_pitch);
    weights = reinterpret_cast<uint8_t*>(scores);
    heads = scores + (layout.keeps_scores ? kHeads * kScorePitch : 0);
    places = reinterpret_cast<const uint8_t**>(heads + layout.num_head_numbers * kHeads);
    codes = reinterpret_cast<uint8_t*>(places + 2 * kChunk);
    warp = int(threadIdx.x) / kWarpLanes;
    lane = int(threadIdx.x) % kWarpLanes;
    g = lane / 4;
    t = lane % 4;
  }
  __device__ __forceinline__ float* head(HeadNumber number) const {
    return heads + number * kHeads;
  }
  __device__ __forceinline__ uint8_t* row(int chunk, int key) const {
    return rows + (chunk % layout.num_buffers * kChunk + key) * layout.row_pitch;
  }

  // The queries of a token's heads; those behind the last are zero. Part of the copies that the
  // first chunk waits for.
  __device__ __forceinline__ void LoadQueries(int of_token, TokenKeys of_keys, int of_head) {
    token = of_token;
    keys = of_keys;
    first_head = of_head;
    page_ids = task.pages.ids[token];
    const RowPlanes& planes = task.queries.planes;
    const int64_t first = int64_t(token) * task.num_heads + first_head;
    const int num_heads = int(task.num_heads) - first_head;
    const int pieces = (layout.padded_latent + layout.padded_rope) / 16;
#pragma unroll 1
    for (int h = warp; h < kHeads; h += kWarps) {
      const bool valid = h < num_heads;
      const int64_t at = (first + (valid ? h : 0)) * planes.stride;
#pragma unroll 1
      for (int i = lane; i < pieces; i += kWarpLanes) {
        uint8_t* to = queries + h * layout.query_pitch + 16 * i;
        CopyAsync16(to, planes.hi + at + 16 * i, valid);
        CopyAsync16(to + kHeads * layout.query_pitch, planes.lo + at + 16 * i, valid);
      }
    }
    if (threadIdx.x < kHeads) {
      const int h = int(threadIdx.x);
      const bool valid = h < num_heads;
      const int64_t at = first + (valid ? h : 0);
      CopyAsync4(head(kLatentScale) + h, task.queries.latent_scale + at, valid);
      CopyAsync4(head(kRopeScale) + h, task.queries.rope_scale + at, valid);
    }
  }

  // Where rows lie, in steps of one load each, so that nobody waits for three of them in a row:
  // threads 0 .. 63 have a key each.
  struct RowFinder {
    int key = 0, position = 0;
    PageId page = 0;
  };
  __device__ __forceinline__ void FindPosition(int chunk, RowFinder* r) const {
    r->key = chunk * kChunk + int(threadIdx.x) % kChunk;
    if (r->key >= keys.num) return;
    r->position =
        keys.is_dense ? r->key : task.selection.lists[token * task.selection.max_keys + r->key];
  }
  __device__ __forceinline__ void FindPage(RowFinder* r) const {
    if (r->key < keys.num) r->page = page_ids[r->position / int(kPageTokens)];
  }
  __device__ __forceinline__ void FindRow(int chunk, const RowFinder& r) const {
    if (r.key >= keys.num) return;
    places[chunk % 2 * kChunk + r.key % kChunk] =
        task.pages.memory[r.page] + task.pages.offset +
        r.position % int(kPageTokens) * layout.global_row_bytes;
  }

  // Fetches the rows of a chunk of n keys; done when this thread's copies are.
  __device__ __forceinline__ void LoadChunk(int chunk, int n) {
    const int pieces = layout.global_row_bytes / 16;
    const uint8_t* const* from = places + chunk % 2 * kChunk;
#pragma unroll 1
    for (int i = lane; i < pieces; i += kWarpLanes) {
#pragma unroll
      for (int k = 0; k < kChunk; k += kWarps) {
        // Behind the last key's row come copies of it, which is cheaper than a branch.
        const int key = warp + k, of = key < n ? key : n - 1;
        if constexpr (kCodes) {
          if (layout.stages_codes) {
            CopyAsync16(codes + key * layout.global_row_bytes + 16 * i, from[of] + 16 * i);
          } else if (key < n) {
            ExpandPiece(from[key], 16 * i, row(chunk, key));
          }
        } else {
          CopyAsync16(row(chunk, key) + 16 * i, from[of] + 16 * i);
        }
      }
    }
    CommitCopies();
  }
  // What this thread has staged of a chunk.
  __device__ __forceinline__ void ExpandChunk(int chunk, int n) {
    const int pieces = layout.global_row_bytes / 16;
#pragma unroll 1
    for (int i = lane; i < pieces; i += kWarpLanes) {
#pragma unroll 2
      for (int key = warp; key < n; key += kWarps) {
        ExpandPiece(codes + key * layout.global_row_bytes, 16 * i, row(chunk, key));
      }
    }
  }
  // 16 bytes of a row of codes.
  __device__ __forceinline__ void ExpandPiece(const uint8_t* from, int at, uint8_t* to) const {
    const uint4 v = *reinterpret_cast<const uint4*>(from + at);
    if (at >= layout.global_scale_at) {  // the two scales
      *reinterpret_cast<uint2*>(to + layout.scale_at) = make_uint2(v.x, v.y);
      return;
    }
    uint4 hi, lo;
    ExpandCodes(v.x, &hi.x, &lo.x);
    ExpandCodes(v.y, &hi.y, &lo.y);
    ExpandCodes(v.z, &hi.z, &lo.z);
    ExpandCodes(v.w, &hi.w, &lo.w);
    const bool is_rope = at >= layout.global_rope_at;
    to += is_rope ? layout.rope_at + at - layout.global_rope_at : at;
    *reinterpret_cast<uint4*>(to) = hi;
    *reinterpret_cast<uint4*>(to + (is_rope ? layout.padded_rope : layout.padded_latent)) = lo;
  }

  // PlaneProduct of a tile's queries with `kNum` times 8 keys, over `padded` dimensions. `query`
  // and `row_part`: where these begin in the first head's and key's row.
  template <int kNum, bool kTwoPlanes>
  __device__ __forceinline__ void Dots(const uint8_t* query, const uint8_t* row_part, int padded,
                                       int (&sum)[kNum][4]) const {
    // Lane l's rows for LoadMatrices: a tile's 16 rows x 32 bytes, and 8 keys x 64 bytes.
    query += (lane % 16) * layout.query_pitch + lane / 16 * 16;
    row_part += (lane % 8) * layout.row_pitch + lane / 8 * 16;
    const int low_query = kHeads * layout.query_pitch;
    // Products of one key tile would wait for each other: two sums each, then.
    constexpr int kSums = kNum == 1 ? 2 : 1;
    int high[kSums][kNum][4] = {}, cross[kSums][kNum][4] = {};
#pragma unroll(kNum == 1 ? 2 : 1)
    for (int d = 0; d < padded; d += 64) {
      uint32_t a[2][2][4];  // [half of 32][plane]
      for (int half = 0; half < 2; ++half) {
        LoadMatrices(a[half][0], query + d + 32 * half);
        LoadMatrices(a[half][1], query + low_query + d + 32 * half);
      }
#pragma unroll
      for (int i = 0; i < kNum; ++i) {
        uint32_t b[4];
        LoadMatrices(b, row_part + i * 8 * layout.row_pitch + d);
        for (int half = 0; half < 2; ++half) {
          const int s = half % kSums;
          MmaSignedSigned(high[s][i], a[half][0], b[2 * half], b[2 * half + 1]);
          MmaSignedSigned(cross[s][i], a[half][1], b[2 * half], b[2 * half + 1]);
        }
        if constexpr (kTwoPlanes) {
          LoadMatrices(b, row_part + i * 8 * layout.row_pitch + padded + d);
          for (int half = 0; half < 2; ++half) {
            MmaSignedSigned(cross[half % kSums][i], a[half][0], b[2 * half], b[2 * half + 1]);
          }
        }
      }
    }
    for (int i = 0; i < kNum; ++i) {
      for (int c = 0; c < 4; ++c) {
        uint32_t all = 0;
        for (int s = 0; s < kSums; ++s) {
          all += uint32_t(high[s][i][c]) * 256u + uint32_t(cross[s][i][c]);
        }
        sum[i][c] = int(all);
      }
    }
  }

  // The scores of a chunk of n keys with the first heads, [head][pitch]: each warp those of 8 *
  // kTiles keys with one tile.
  __device__ __forceinline__ void Scores(int chunk, int n, float* out, int pitch,
                                         int num_heads) const {
    const int tile = warp % kTiles, first_key = warp / kTiles * 8 * kTiles;
    if (first_key >= n) return;
    __syncwarp();  // lanes come from loops of their own
    const uint8_t* query = queries + tile * kTileHeads * layout.query_pitch;
    const uint8_t* first_row = row(chunk, first_key);
    int latents[kTiles][4], ropes[kTiles][4];
    Dots<kTiles, kLow>(query, first_row, layout.padded_latent, latents);
    Dots<kTiles, true>(query + layout.padded_latent, first_row + layout.rope_at, layout.padded_rope,
                       ropes);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      float score[4];
      for (int c = 0; c < 4; ++c) {
        const int h = tile * kTileHeads + g + c / 2 * 8, key = 8 * i + 2 * t + c % 2;
        const float* scales =
            reinterpret_cast<const float*>(first_row + key * layout.row_pitch + layout.scale_at);
        const float by_latent = __fmul_rn(head(kLatentScale)[h], scales[0]);
        const float by_rope = __fmul_rn(head(kRopeScale)[h], scales[1]);
        score[c] =
            __fmaf_rn(float(latents[i][c]), by_latent, __fmul_rn(float(ropes[i][c]), by_rope));
      }
      for (int r = 0; r < 2; ++r) {
        const int h = tile * kTileHeads + g + 8 * r;
        if (h >= num_heads) continue;
        float* to = out + h * pitch + first_key + 8 * i + 2 * t;
        *reinterpret_cast<float2*>(to) = make_float2(score[2 * r], score[2 * r + 1]);
      }
    }
  }

  // Where the weight of a key lies: so that the four rows of a thread that transposes their bytes,
  // two apart from those of the next thread, are in other banks than the other threads' rows.
  static __device__ __forceinline__ int WeightAt(int key) {
    return key / 16 * 16 + key % 8 * 2 + key % 16 / 8;
  }

  // Of its split.
  static __device__ __forceinline__ bool IsFirst(int chunk) {
    return chunk % (kSplit / kChunk) == 0;
  }

  // The weights of a chunk of n keys. A warp takes 2 * kTiles heads at once; each of a head's lanes
  // has the keys that are its number modulo that of the lanes.
  __device__ __forceinline__ void Weights(int chunk, int n) const {
    constexpr int kLanes = kWarpLanes / (2 * kTiles), kKeys = kChunk / kLanes;
    const float none = -__uint_as_float(0x7f800000u);
    const int own = lane % kLanes, h = warp * 2 * kTiles + lane / kLanes;
    const float before = IsFirst(chunk) ? none : head(kLargest)[h];
    const float sum_before = head(kSum)[h];
    const uint8_t* key_scales = row(chunk, own) + layout.scale_at;
    float p[kKeys], key_scale[kKeys];
    bool finite = true;
    float largest = none;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int key = own + kLanes * i;
      const bool valid = key < n;
      p[i] = valid ? scores[h * kScorePitch + key] : none;
      key_scale[i] =
          valid ? *reinterpret_cast<const float*>(key_scales + kLanes * i * layout.row_pitch)
                : 0.0f;
      finite &= !valid | IsFinite(p[i]);
      largest = p[i] > largest ? p[i] : largest;
    }
    int all_finite = finite ? 1 : 0;
#pragma unroll
    for (int bits = 1; bits < kLanes; bits *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, largest, bits);
      largest = other > largest ? other : largest;
      all_finite &= __shfl_xor_sync(kAllLanes, all_finite, bits);
    }
    finite = all_finite != 0;
    largest = __fadd_rn(largest > before ? largest : before, 0.0f);
    const float decay = ExpOfSmall(__fsub_rn(before, largest));
    float w[kKeys], amax = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      p[i] = ExpOfSmall(__fsub_rn(p[i], largest));
      w[i] = __fmul_rn(p[i], key_scale[i]);
      w[i] = finite ? w[i] : 0.0f;
      const float m = Magnitude(w[i]);
      amax = m > amax ? m : amax;
    }
    // Lane j of 16 adds p[j], p[16 + j], p[32 + j], p[48 + j]; then the tree over 16 lanes.
    constexpr int kOfLane = 16 / kLanes;
    float sums[kOfLane];
#pragma unroll
    for (int j = 0; j < kOfLane; ++j) {
      sums[j] = __fadd_rn(__fadd_rn(__fadd_rn(p[j], p[j + kOfLane]), p[j + 2 * kOfLane]),
                          p[j + 3 * kOfLane]);
    }
#pragma unroll
    for (int stride = kOfLane / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int j = 0; j < stride; ++j) sums[j] = __fadd_rn(sums[j], sums[j + stride]);
    }
    float sum = sums[0];
#pragma unroll
    for (int bits = kLanes / 2; bits > 0; bits /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, bits));
    }
#pragma unroll
    for (int bits = 1; bits < kLanes; bits *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, amax, bits);
      amax = other > amax ? other : amax;
    }
    const RowScale scale = ScaleOf(amax);
    __syncwarp();  // the scores, where the weights go, have been read
    uint8_t* to = weights + h * kWeightPitch;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const PlanePair planes = ToPlanes(w[i], scale.inverse);
      to[WeightAt(own + kLanes * i)] = uint8_t(planes.hi);
      to[kChunk + WeightAt(own + kLanes * i)] = uint8_t(planes.lo);
    }
    if (own == 0) {
      if (!IsFirst(chunk)) sum = __fmaf_rn(sum_before, decay, sum);
      head(kSum)[h] = finite ? sum : __uint_as_float(0x7fc00000u);
      head(kLargest)[h] = largest;
      head(kDecay)[h] = decay;
      head(kWeightScale)[h] = __fmul_rn(scale.scale, 0x1p-8f);
    }
  }

  // Bytes of 32 latents from `from` on of 64 keys, as MmaSignedSigned's b: [32 keys][n][2].
  __device__ __forceinline__ void LoadValues(const uint8_t* from, uint32_t (&b)[2][4][2]) const {
    from += 2 * t * layout.row_pitch + 4 * g;
    int pitch = layout.row_pitch;
    Forget(pitch);  // else sixteen multiples of it are kept
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t w[4];
      for (int r = 0; r < 4; ++r) {
        const int key = 16 * i + r / 2 + r % 2 * 8;
        w[r] = *reinterpret_cast<const uint32_t*>(from + key * pitch);
      }
      Transpose4x4(w);
      for (int n = 0; n < 4; ++n) b[i / 2][n][i % 2] = w[n];
    }
  }

  // values = fma(weights x latents, weight scale, values * decay).
  __device__ __forceinline__ void AddValues(int chunk, TileValues (&values)[kTiles]) {
    if (warp * 64 >= layout.padded_latent) return;
    const uint8_t* from = row(chunk, 0) + warp * 64;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      Forget(lane);
      int sums[kTiles][4][4] = {};
      uint32_t b[2][4][2];
      LoadValues(from + 32 * block, b);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        AddProducts(0, tile, b, sums[tile]);
        for (int i = 0; i < 16; ++i) {
          sums[tile][i / 4][i % 4] = int(uint32_t(sums[tile][i / 4][i % 4]) * 256u);
        }
        AddProducts(1, tile, b, sums[tile]);
        if constexpr (!kLow) Accumulate(chunk, sums[tile], tile, values[tile].v[block]);
      }
      if constexpr (kLow) {
        LoadValues(from + 32 * block + layout.padded_latent, b);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          AddProducts(0, tile, b, sums[tile]);
          Accumulate(chunk, sums[tile], tile, values[tile].v[block]);
        }
      }
    }
  }
  // Products of a plane of a tile's weights with 64 keys' bytes of 32 latents.
  __device__ __forceinline__ void AddProducts(int plane, int tile, const uint32_t (&b)[2][4][2],
                                              int (&sums)[4][4]) const {
    const uint8_t* w =
        weights + (tile * kTileHeads + lane % 16) * kWeightPitch + plane * kChunk + lane / 16 * 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t a[4];
      LoadMatrices(a, w + 32 * half);
#pragma unroll
      for (int n = 0; n < 4; ++n) MmaSignedSigned(sums[n], a, b[half][n][0], b[half][n][1]);
    }
  }
  __device__ __forceinline__ void Accumulate(int chunk, const int (&sums)[4][4], int tile,
                                             float (&values)[4][4]) const {
    const int h = tile * kTileHeads + g;
    const float scale[2] = {head(kWeightScale)[h], head(kWeightScale)[h + 8]};
    const float decay[2] = {head(kDecay)[h], head(kDecay)[h + 8]};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        // The first chunk has no values before: fma(x, y, 0) is x * y.
        const float before = IsFirst(chunk) ? 0.0f : __fmul_rn(values[n][c], decay[c / 2]);
        values[n][c] = __fmaf_rn(float(sums[n][c]), scale[c / 2], before);
      }
    }
  }

  // Goes through the chunks of the token's splits [split, end); at each split's end `values` is its
  // partial result, and at_end(split) is called. Begins with a barrier.
  template <typename AtEnd>
  __device__ __forceinline__ void RunSplits(int split, int end, TileValues (&values)[kTiles],
                                            AtEnd at_end) {
    constexpr int kChunks = kSplit / kChunk;
    const int end_key = end * kSplit < keys.num ? end * kSplit : keys.num;
    const auto keys_of = [&](int chunk) {
      const int left = end_key - chunk * kChunk;
      return left < kChunk ? left : kChunk;
    };
    const int first_chunk = split * kChunks;
    __syncthreads();  // nobody reads what was there before
    if (threadIdx.x < 2 * kChunk) {
      const int chunk = first_chunk + int(threadIdx.x) / kChunk;
      RowFinder finder;
      FindPosition(chunk, &finder);
      FindPage(&finder);
      FindRow(chunk, finder);
    }
    __syncthreads();
    LoadChunk(first_chunk, keys_of(first_chunk));
    for (int chunk = first_chunk; chunk * kChunk < end_key; ++chunk) {
      Forget(warp);
      Forget(lane);
      g = lane / 4;
      t = lane % 4;
      WaitForCopies<0>();
      __syncthreads();
      const int n = keys_of(chunk), next = keys_of(chunk + 1);
      if (kCodes && layout.stages_codes) {
        ExpandChunk(chunk, n);
        __syncthreads();
      }
      const bool ahead = layout.num_buffers > 1 || (kCodes && layout.stages_codes);
      if (next > 0 && ahead) LoadChunk(chunk + 1, next);
      const bool finds = warp * kWarpLanes < kChunk && keys_of(chunk + 2) > 0;
      RowFinder finder;
      if (finds) FindPosition(chunk + 2, &finder);
      Scores(chunk, n, scores, kScorePitch, kHeads);
      if (finds) FindPage(&finder);
      __syncthreads();
      Weights(chunk, n);
      if (finds) FindRow(chunk + 2, finder);
      __syncthreads();
      AddValues(chunk, values);
      if (next <= 0 || IsFirst(chunk + 1)) at_end(chunk / kChunks);
      if (next > 0 && !ahead) {
        __syncthreads();
        LoadChunk(chunk + 1, next);
      }
    }
  }

  // values / sum, as planes. `sums`: f32 [kHeads] of shared memory.
  __device__ __forceinline__ void Finish(const TileValues (&values)[kTiles], const float* sums,
                                         int32_t* bad, int32_t code) const {
    if (warp * 64 >= layout.padded_latent) return;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int h = tile * kTileHeads + 8 * r + g;
        const bool exists = first_head + h < int(task.num_heads);
        const int64_t row = int64_t(token) * task.num_heads + first_head + h;
        if (!FinishGroup(values[tile], r, sums[h], exists, row) && exists && t == 0) {
          NoteBad(bad, code, token);
        }
      }
    }
  }
  // A group of 64 latents of one head, which four lanes hold. All lanes of the warp together.
  __device__ __forceinline__ bool FinishGroup(const TileValues& values, int r, float sum,
                                              bool exists, int64_t row) const {
    float x[2][8];
    float amax = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int block = i / 8, j = i % 8;
      const bool padding = warp * 64 + 32 * block + 8 * t + j >= layout.latent;
      float v = padding ? 0.0f : __fdiv_rn(values.v[block][j % 4][2 * r + j / 4], sum);
      finite = finite && IsFinite(v);
      x[block][j] = v;
      v = Magnitude(v);
      amax = v > amax ? v : amax;
    }
    int others = finite ? 1 : 0;
    for (int bits = 1; bits < 4; bits *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, amax, bits);
      amax = other > amax ? other : amax;
      others &= __shfl_xor_sync(kAllLanes, others, bits);
    }
    finite = others != 0;
    const RowScale scale = ScaleOf(finite ? amax : 0.0f);
    int sum_of_planes = 0;
    uint32_t hi[2][2] = {}, lo[2][2] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int block = i / 8, j = i % 8;
      const PlanePair p = ToPlanes(finite ? x[block][j] : 0.0f, scale.inverse);
      sum_of_planes += 256 * p.hi + p.lo;
      hi[block][j / 4] |= uint32_t(uint8_t(p.hi)) << (j % 4 * 8);
      lo[block][j / 4] |= uint32_t(uint8_t(p.lo)) << (j % 4 * 8);
    }
    for (int bits = 1; bits < 4; bits *= 2) {
      sum_of_planes += __shfl_xor_sync(kAllLanes, sum_of_planes, bits);
    }
    if (!exists) return finite;
    const int64_t at = row * task.out.groups() + warp;
    for (int block = 0; block < 2; ++block) {
      const int64_t byte = at * kGroup + 32 * block + 8 * t;
      *reinterpret_cast<uint2*>(task.out.hi + byte) = make_uint2(hi[block][0], hi[block][1]);
      *reinterpret_cast<uint2*>(task.out.lo + byte) = make_uint2(lo[block][0], lo[block][1]);
    }
    if (t == 0) {
      task.out.scale[at] = __fmul_rn(scale.scale, 1.0f / 256);
      task.out.sum[at] = sum_of_planes;
    }
    return finite;
  }
};

}  // namespace hillstar::cuda
