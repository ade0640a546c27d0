// The indexer on a GPU: scores of a token's queries against every key up to its own. A warp takes
// 32 keys, two panels, as the rows of two products, and eight heads a product as their columns.
// While it multiplies, its next keys come from their pages. Integers are exact; floats follow
// indexer_ref.cc.
#include "ops/indexer/select_cuda.cuh"

#include <algorithm>

#include "core/integers.h"
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/indexer/select_bins_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kScoreWarps = 4;
constexpr int kScoreThreads = kScoreWarps * kWarpLanes;
constexpr int kUnitKeys = 32;  // of a warp at once
constexpr int kUnitsPerWarp = 4;
constexpr int kKeysPerBlock = kScoreWarps * kUnitsPerWarp * kUnitKeys;  // of neighbours
constexpr int kMostUnitsPerWarp = 28;
constexpr int ScoreBlocks(int planes) { return planes == 2 ? 2 : 4; }  // of a multiprocessor
constexpr int kStepDims = 64;  // that a warp holds of its keys
constexpr int kShortDims = 128;

struct ScoreArguments {
  SelectTask task;
  ScoreRows rows;
  int32_t* bins;  // counts of the scores, or null
  int64_t first_token;
  int dim, padded_dim;  // to 64
  int padded_heads;     // to whole groups
  int64_t num_tokens;   // from first_token on
  bool together;        // those that see the same keys are scored by IndexScoresTogetherKernel
};

// In shared memory: queries [plane][padded heads][pitch], then scales and weights [padded heads].
// Row r of a group of 8 * kColumns heads is the head that column r % 8 of product r / 8 stands for.
constexpr int QueryPitch(int padded_dim) { return padded_dim + 16; }
constexpr int ScoreSharedBytes(int padded_dim, int padded_heads, int planes) {
  return padded_heads * (planes * QueryPitch(padded_dim) + 2 * int(sizeof(float)));
}

// Lane t of a quad has columns 2 t and 2 t + 1 of kColumns products: these are its heads 2 kColumns
// t and up, so that the sum over ascending heads goes from lane to lane.
template <int kColumns>
__device__ __forceinline__ int HeadOfRow(int r) {
  const int group = r / (8 * kColumns), product = r / 8 % kColumns, column = r % 8;
  return group * 8 * kColumns + column / 2 * 2 * kColumns + 2 * product + column % 2;
}

// Planes are on their way afterwards, in one group of copies.
template <int kColumns, int kPlanes>
__device__ __forceinline__ void LoadIndexQueries(const ScoreArguments& a, int64_t token,
                                                 uint8_t* queries, float* scales, float* weights) {
  const int pitch = QueryPitch(a.padded_dim), num_heads = int(a.task.num_heads);
  const int64_t first = token * num_heads;
  const int pieces = a.padded_dim / 16;
  for (int i = int(threadIdx.x); i < a.padded_heads * pieces; i += kScoreThreads) {
    const int row = i / pieces, at = i % pieces * 16, head = HeadOfRow<kColumns>(row);
    const bool valid = head < num_heads && at < a.dim;
    const int64_t from = valid ? (first + head) * a.task.queries.planes.stride + at : 0;
    CopyAsync16(queries + row * pitch + at, a.task.queries.planes.hi + from, valid);
    if constexpr (kPlanes == 2) {
      CopyAsync16(queries + (a.padded_heads + row) * pitch + at, a.task.queries.planes.lo + from,
                  valid);
    }
  }
  CommitCopies();
  for (int head = int(threadIdx.x); head < a.padded_heads; head += kScoreThreads) {
    scales[head] = head < num_heads ? a.task.queries.scale[first + head] : 0.0f;
    weights[head] = head < num_heads ? a.task.queries.weight[first + head] : 0.0f;
  }
}

// Keys as rows of two products: row g (g + 8) of product m is key 4 (g % 4) + 2 m (+ 1) of panel g
// / 4. Registers of a plane: [32 dims][product][4].
struct KeyPlane {
  uint32_t a[kStepDims / 32][2][4];
};
// Dimensions [d, d + 64) of a lane's keys; those behind the last are zero. `panel`: of the lane's
// keys, at their place in a quad.
template <bool kFetched>
__device__ __forceinline__ void LoadKeys(const uint8_t* panel, int quad_bytes, int dim, int d,
                                         int t, KeyPlane* keys) {
  constexpr uint32_t kOffset = 0x80808080u;
#pragma unroll
  for (int step = 0; step < kStepDims / 32; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int quad = d / 4 + 8 * step + 4 * half + t;
      uint4 v = make_uint4(kOffset, kOffset, kOffset, kOffset);
      if (4 * quad < dim) {
        const uint8_t* from = panel + quad * quad_bytes;
        v = kFetched ? *reinterpret_cast<const uint4*>(from) : LoadStreaming(from);
      }
      keys->a[step][0][2 * half] = v.x ^ kOffset;
      keys->a[step][0][2 * half + 1] = v.y ^ kOffset;
      keys->a[step][1][2 * half] = v.z ^ kOffset;
      keys->a[step][1][2 * half + 1] = v.w ^ kOffset;
    }
  }
}

// Of keys that are fetched, 16 bytes change places with others of their quads so that the lanes of
// a load find them in different banks: piece i of a panel lies at piece i ^ SwapOf<kPlanes>(i / 8).
template <int kPlanes>
__device__ __forceinline__ constexpr int SwapOf(int eight) {
  return (kPlanes == 2 ? eight & 3 : eight & 1) << 1;
}
// Where a lane's 16 bytes of plane p lie in a quad.
template <int kPlanes, bool kFetched>
__device__ __forceinline__ int PlaceInQuad(int p, int g, int t) {
  const int piece = 4 * p + g % 4;
  return (kFetched ? piece ^ SwapOf<kPlanes>(kPlanes == 2 ? t : t / 2) : piece) * 16;
}

// A warp's units: of its block's, every gridDim.x * kScoreWarps-th from the first on. Stages in
// shared memory hold those that are on their way; pages' addresses are loaded ahead, a lane each.
template <int kPlanes>
struct UnitRing {
  static constexpr int kStages = 2;

  PageTable pages;
  uint8_t* stages;  // of the warp
  const uint8_t* ahead = nullptr;

  __device__ __forceinline__ void LookAhead(const IndexKeyLayout& layout, int64_t first_key,
                                            int64_t stride, int64_t num_keys) {
    static_assert(kMostUnitsPerWarp + kStages <= kWarpLanes);
    const int64_t key = first_key + int(threadIdx.x) % kWarpLanes * stride;
    ahead = key < num_keys ? pages.panel(layout, key) : nullptr;
  }
  __device__ __forceinline__ uint8_t* stage(const IndexKeyLayout& layout, int i) const {
    return stages + i % kStages * 2 * int(layout.panel_bytes());
  }
  // Begins to fetch the warp's unit i, which begins at `key`. A group of copies, perhaps empty.
  __device__ __forceinline__ void Fetch(const IndexKeyLayout& layout, int i, int64_t key,
                                        int64_t num_keys) {
    const auto address = reinterpret_cast<unsigned long long>(ahead);
    const auto* from = reinterpret_cast<const uint8_t*>(__shfl_sync(kAllLanes, address, i));
    if (key < num_keys) {
      const int lane = int(threadIdx.x) % kWarpLanes, bytes = int(layout.panel_bytes());
      uint8_t* to = stage(layout, i) + 16 * (lane ^ SwapOf<kPlanes>(lane / 8));
      from += 16 * lane;
      for (int panel = 0; panel < 2; ++panel, from += bytes, to += bytes) {
#pragma unroll 1
        for (int at = 0; at < bytes - 16 * lane; at += 16 * kWarpLanes) {
          CopyAsync16(to + at, from + at);
        }
      }
    }
    CommitCopies();
  }
};

// Integers of 32 keys and 8 * kColumns columns: [column / 8][product][4]. kShort: of up to
// kShortDims dimensions, whose sums are below 2^22. They begin at the bits of floats whose last
// places are worth 256 and 1, and so end as these floats plus the sums, exactly.
template <int kColumns, int kPlanes, bool kShort>
struct KeyDots {
  static constexpr float kHighBegin = 0x1.8p31f, kCrossBegin = 0x1.8p23f;
  int high[kColumns][2][4];
  int cross[kColumns][2][4];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < 8 * kColumns; ++i) {
      high[i / 8][i / 4 % 2][i % 4] = kShort ? __float_as_int(kHighBegin) : 0;
      cross[i / 8][i / 4 % 2][i % 4] = kShort ? __float_as_int(kCrossBegin) : 0;
    }
  }
  // `query`: the lane's row of LoadMatrices, at the keys' dimensions; low planes are low_at behind.
  __device__ __forceinline__ void Add(const KeyPlane (&keys)[kPlanes], const uint8_t* query,
                                      int low_at, int pitch) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      uint32_t q[kPlanes][4];
      for (int p = 0; p < kPlanes; ++p) LoadMatrices(q[p], query + p * low_at + 8 * i * pitch);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        for (int m = 0; m < 2; ++m) {
          const uint32_t(&key)[4] = keys[0].a[step][m];
          MmaSignedSigned(high[i][m], key, q[0][2 * step], q[0][2 * step + 1]);
          if constexpr (kPlanes == 2) {
            MmaSignedSigned(cross[i][m], key, q[1][2 * step], q[1][2 * step + 1]);
            MmaSignedSigned(cross[i][m], keys[1].a[step][m], q[0][2 * step], q[0][2 * step + 1]);
          }
        }
      }
    }
  }
  // float(PlaneProduct) of key 4 (g % 4) + k and the first or second head of a lane in columns i.
  __device__ __forceinline__ float Product(int i, int k, int second) const {
    const int h = high[i][k / 2][k % 2 * 2 + second], c = cross[i][k / 2][k % 2 * 2 + second];
    if constexpr (!kShort) {
      return float(int(uint32_t(h) * 256u + uint32_t(c)));
    } else {
      const float product = __fsub_rn(__int_as_float(h), kHighBegin);
      if constexpr (kPlanes == 1) return product;
      return __fadd_rn(product, __fsub_rn(__int_as_float(c), kCrossBegin));
    }
  }
  // max(value, 0) of them.
  __device__ __forceinline__ float Value(int i, int k, int second, float by_head,
                                         const float (&key_scale)[4]) const {
    return fmaxf(__fmul_rn(Product(i, k, second), __fmul_rn(by_head, key_scale[k])), 0.0f);
  }
};

// Tokens are four neighbours that see the same keys, so that a block may score them together.
constexpr int kTogether = 4;
__device__ __forceinline__ bool SeeSameKeys(const ScoreArguments& a, int64_t first) {
  const int64_t last = first + kTogether - 1;
  if (last >= a.first_token + a.num_tokens || last >= *a.task.live) return false;
  const PageId* const* ids = a.task.pages.ids + first;
  return ids[0] == ids[1] && ids[0] == ids[2] && ids[0] == ids[3];
}

// Scores of a lane's keys 4 (g % 4) .. + 3 of its panel. `panel`: as it lies in the page, or
// fetched; `query`: the lane's row of LoadMatrices.
template <int kColumns, int kPlanes, bool kFetched>
__device__ __forceinline__ void ScoreUnit(const ScoreArguments& a, const uint8_t* panel,
                                          const uint8_t* query, const float* scales,
                                          const float* weights, float (&score)[4]) {
  const int lane = int(threadIdx.x) % kWarpLanes, g = lane / 4, t = lane % 4;
  const int pitch = QueryPitch(a.padded_dim);
  const float4 by_key =
      *reinterpret_cast<const float4*>(panel + a.task.layout.scales_at() + g % 4 * 16);
  const float key_scale[4] = {by_key.x, by_key.y, by_key.z, by_key.w};
  for (int k = 0; k < 4; ++k) score[k] = 0.0f;
  for (int group = 0; group < a.padded_heads; group += 8 * kColumns) {
    KeyDots<kColumns, kPlanes, kFetched> dots;
    dots.Clear();
    for (int d = 0; d < a.padded_dim; d += kStepDims) {
      KeyPlane keys[kPlanes];
      for (int p = 0; p < kPlanes; ++p) {
        LoadKeys<kFetched>(panel + PlaceInQuad<kPlanes, kFetched>(p, g, t), kPlanes * 64, a.dim, d,
                           t, &keys[p]);
      }
      dots.Add(keys, query + group * pitch + d, a.padded_heads * pitch, pitch);
    }
    const float2* scale = reinterpret_cast<const float2*>(scales + group + 2 * kColumns * t);
    const float2* weight = reinterpret_cast<const float2*>(weights + group + 2 * kColumns * t);
    float v[kColumns][2][4];  // of the lane's heads and keys
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float2 by_head = scale[i];
      for (int k = 0; k < 4; ++k) {
        v[i][0][k] = dots.Value(i, k, 0, by_head.x, key_scale);
        v[i][1][k] = dots.Value(i, k, 1, by_head.y, key_scale);
      }
    }
    // Lane after lane adds its heads to what the one before it has; in the end all have the sum.
    for (int turn = 0; turn < 4; ++turn) {
      float sum[4] = {score[0], score[1], score[2], score[3]};
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float2 w = weight[i];
        for (int k = 0; k < 4; ++k) {
          sum[k] = __fmaf_rn(w.x, v[i][0][k], sum[k]);
          sum[k] = __fmaf_rn(w.y, v[i][1][k], sum[k]);
        }
      }
      for (int k = 0; k < 4; ++k) {
        score[k] = __shfl_sync(kAllLanes, sum[k], lane / 4 * 4 + turn);
      }
    }
  }
  for (int k = 0; k < 4; ++k) score[k] = __fadd_rn(score[k], 0.0f);
}

// Blocks (i, token): the units of a row are dealt to its warps. kFetched: through a UnitRing behind
// the queries, as long as there is room.
template <int kColumns, int kPlanes, bool kFetched>
__global__ void __launch_bounds__(kScoreThreads, ScoreBlocks(kPlanes))
    IndexScoresKernel(const __grid_constant__ ScoreArguments a) {
  using Ring = UnitRing<kPlanes>;
  constexpr int kAhead = Ring::kStages - 1;
  __shared__ int counts[kBins + 1];
  const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
  const int g = lane / 4, t = lane % 4;
  const IndexKeyLayout& layout = a.task.layout;
  LetNextBegin();
  // The step's tables are older than the kernel before this one.
  const int64_t token = a.first_token + blockIdx.y;
  const bool is_live = token < *a.task.live;
  const int64_t num_keys = is_live ? a.task.positions[token] + 1 : 0;
  const int64_t stride = int64_t(gridDim.x) * kScoreWarps * kUnitKeys;
  const int64_t first_of_block = int64_t(blockIdx.x) * kScoreWarps * kUnitKeys;
  const int64_t first_key = first_of_block + warp * kUnitKeys;
  const bool has_work = num_keys > a.task.selection.max_keys && first_of_block < num_keys &&
                        !(a.together && SeeSameKeys(a, token - blockIdx.y % kTogether));
  uint8_t* queries = DynamicShared();
  const int pitch = QueryPitch(a.padded_dim);
  float* scales = reinterpret_cast<float*>(queries + kPlanes * a.padded_heads * pitch);
  float* weights = scales + a.padded_heads;
  Ring ring{has_work ? a.task.pages.of(token) : PageTable{},
            reinterpret_cast<uint8_t*>(weights + a.padded_heads) +
                warp * Ring::kStages * 2 * int(layout.panel_bytes())};
  if (kFetched && has_work) ring.LookAhead(layout, first_key, stride, num_keys);
  for (int i = int(threadIdx.x); a.bins && i <= kBins; i += kScoreThreads) counts[i] = 0;
  WaitForPrevious();
  if (!has_work) return;

  LoadIndexQueries<kColumns, kPlanes>(a, token, queries, scales, weights);
  if constexpr (kFetched) {
    for (int i = 0; i < kAhead; ++i) {
      ring.Fetch(layout, i, first_key + i * stride, num_keys);
    }
    WaitForCopies<kAhead>();
  } else {
    WaitForCopies<0>();
  }
  __syncthreads();

  float* out = a.rows.of(int64_t(blockIdx.y));
  const uint8_t* query = queries + lane % 8 * pitch + lane / 8 * 16;
  int i = 0;
  for (int64_t key = first_key; key < num_keys; key += stride, ++i) {
    __syncwarp();          // counting parts lanes; a stage has been read
    const uint8_t* panel;  // a unit lies in one page
    if constexpr (kFetched) {
      ring.Fetch(layout, i + kAhead, key + kAhead * stride, num_keys);
      WaitForCopies<kAhead>();
      __syncwarp();
      panel = ring.stage(layout, i);
    } else {
      panel = ring.pages.panel(layout, key);
    }
    float score[4];
    ScoreUnit<kColumns, kPlanes, kFetched>(a, panel + g / 4 * int(layout.panel_bytes()), query,
                                           scales, weights, score);
    if (t == 0) {
      *reinterpret_cast<float4*>(out + key + g * 4) =
          make_float4(score[0], score[1], score[2], score[3]);
    }
    if (a.bins) {  // lane 4 g + t counts key 4 g + t
      const float own = t < 2 ? (t == 0 ? score[0] : score[1]) : (t == 2 ? score[2] : score[3]);
      const int bin = IsFinite(own) ? int(OrderedBits(own) >> 21) : kNotFiniteBin;
      CountBin(counts, key + lane < num_keys, bin);
    }
  }
  if (!a.bins) return;
  __syncthreads();
  int32_t* bins = a.bins + int64_t(blockIdx.y) * kRowBins;
  for (int b = int(threadIdx.x); b <= kBins; b += kScoreThreads) {
    if (counts[b] > 0) atomicAdd(bins + b, counts[b]);
  }
}

// In the order in which IndexScoresTogetherKernel multiplies: row r of its queries.
struct TokenHead {
  int token, head;
};
template <int kColumns>
__device__ __forceinline__ TokenHead TokenHeadOfRow(int r) {
  const int group = r / (kTogether * 8 * kColumns), turn = r / (8 * kColumns) % kTogether;
  const int product = r / 8 % kColumns, column = r % 8;
  return {(column / 2 - turn) & (kTogether - 1),
          group * 8 * kColumns + turn * 2 * kColumns + 2 * product + column % 2};
}

// A block per (512 keys, four tokens that see the same). In turn p lane t of a quad adds the p-th
// part of a group's heads to the score of token t - p (modulo 4), then hands it to lane t + 1: all
// lanes are busy, and each sum goes over ascending heads. REQUIRES dim <= kShortDims.
template <int kColumns, int kPlanes>
__global__ void __launch_bounds__(kScoreThreads, 2)
    IndexScoresTogetherKernel(const __grid_constant__ ScoreArguments a) {
  constexpr int kSteps = kShortDims / kStepDims, kPart = 2 * kColumns;  // heads of a turn
  const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
  const int g = lane / 4, t = lane % 4;
  const int64_t first_token = a.first_token + blockIdx.y * kTogether;
  WaitForPrevious();
  if (!SeeSameKeys(a, first_token)) return;
  const int64_t own_keys = a.task.positions[first_token + t] + 1;
  int64_t num_keys = 0;  // of the token that sees most
  for (int i = 0; i < kTogether; ++i) {
    const int64_t keys = a.task.positions[first_token + i] + 1;
    num_keys = keys > num_keys ? keys : num_keys;
  }
  const int64_t first_key = int64_t(blockIdx.x) * kKeysPerBlock;
  if (num_keys <= a.task.selection.max_keys || first_key >= num_keys) return;

  const int pitch = QueryPitch(a.padded_dim), num_rows = kTogether * a.padded_heads;
  uint8_t* queries = DynamicShared();
  float* scales = reinterpret_cast<float*>(queries + kPlanes * num_rows * pitch);
  float* weights = scales + num_rows;
  const int pieces = a.padded_dim / 16, num_heads = int(a.task.num_heads);
  for (int i = int(threadIdx.x); i < num_rows * pieces; i += kScoreThreads) {
    const int row = i / pieces, at = i % pieces * 16;
    const TokenHead of = TokenHeadOfRow<kColumns>(row);
    const bool valid = of.head < num_heads && at < a.dim;
    const int64_t from_row = (first_token + of.token) * num_heads + (valid ? of.head : 0);
    const int64_t from = from_row * a.task.queries.planes.stride + (valid ? at : 0);
    CopyAsync16(queries + row * pitch + at, a.task.queries.planes.hi + from, valid);
    if constexpr (kPlanes == 2) {
      CopyAsync16(queries + (num_rows + row) * pitch + at, a.task.queries.planes.lo + from, valid);
    }
  }
  CommitCopies();
  for (int i = int(threadIdx.x); i < num_rows; i += kScoreThreads) {
    const int token = i / a.padded_heads, head = i % a.padded_heads;
    const int64_t from = (first_token + token) * num_heads + head;
    scales[i] = head < num_heads ? a.task.queries.scale[from] : 0.0f;
    weights[i] = head < num_heads ? a.task.queries.weight[from] : 0.0f;
  }
  WaitForCopies<0>();
  __syncthreads();
  LetNextBegin();

  const PageTable pages = a.task.pages.of(first_token);
  float* out = a.rows.of(int64_t(blockIdx.y) * kTogether + t);
  const uint8_t* query = queries + lane % 8 * pitch + lane / 8 * 16;
  for (int unit = warp; unit < kKeysPerBlock / kUnitKeys; unit += kScoreWarps) {
    const int64_t key = first_key + unit * kUnitKeys;
    if (key >= num_keys) break;
    __syncwarp();
    const uint8_t* panel = pages.panel(a.task.layout, key) + g / 4 * a.task.layout.panel_bytes();
    const float4 by_key =
        *reinterpret_cast<const float4*>(panel + a.task.layout.scales_at() + g % 4 * 16);
    const float key_scale[4] = {by_key.x, by_key.y, by_key.z, by_key.w};
    KeyPlane keys[kSteps][kPlanes];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      for (int p = 0; p < kPlanes; ++p) {
        LoadKeys<false>(panel + PlaceInQuad<kPlanes, false>(p, g, t), kPlanes * 64, a.dim,
                        step * kStepDims, t, &keys[step][p]);
      }
    }
    float score[4] = {};  // of the four keys with the token whose turn it is
#pragma unroll 1
    for (int part = 0; part < kTogether * a.padded_heads / (8 * kColumns); ++part) {
      KeyDots<kColumns, kPlanes, true> dots;
      dots.Clear();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step * kStepDims >= a.padded_dim) break;
        dots.Add(keys[step], query + part * 8 * kColumns * pitch + step * kStepDims,
                 num_rows * pitch, pitch);
      }
      const int token = (t - part) & (kTogether - 1), at = token * a.padded_heads + part * kPart;
      const float2* scale = reinterpret_cast<const float2*>(scales + at);
      const float2* weight = reinterpret_cast<const float2*>(weights + at);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float2 by_head = scale[i], w = weight[i];
        for (int k = 0; k < 4; ++k) {
          score[k] = __fmaf_rn(w.x, dots.Value(i, k, 0, by_head.x, key_scale), score[k]);
          score[k] = __fmaf_rn(w.y, dots.Value(i, k, 1, by_head.y, key_scale), score[k]);
        }
      }
      for (int k = 0; k < 4; ++k) {
        score[k] = __shfl_sync(kAllLanes, score[k], lane / 4 * 4 + (t + 3) % 4);
      }
    }
    if (own_keys > a.task.selection.max_keys && key < own_keys) {
      *reinterpret_cast<float4*>(out + key + g * 4) =
          make_float4(__fadd_rn(score[0], 0.0f), __fadd_rn(score[1], 0.0f),
                      __fadd_rn(score[2], 0.0f), __fadd_rn(score[3], 0.0f));
    }
  }
}

// Prompts have many tokens of one sequence.
constexpr int64_t kManyTokens = 16;
static_assert(kManyTokens <= kFewRows + 1);

template <int kColumns, int kPlanes>
void LaunchScores(const KernelContext& context, ScoreArguments& a) {
  a.padded_heads = int(RoundUp(a.task.num_heads, 8 * kColumns));
  const int together_bytes = ScoreSharedBytes(a.padded_dim, kTogether * a.padded_heads, kPlanes);
  a.together = !a.bins && a.num_tokens >= kManyTokens && a.padded_dim <= kShortDims &&
               together_bytes <= context.shared_bytes;
  if (a.together) {
    const unsigned blocks = unsigned(CeilDiv(a.task.max_positions, kKeysPerBlock));
    Launch("index scores of neighbours", IndexScoresTogetherKernel<kColumns, kPlanes>,
           {dim3(blocks, unsigned(CeilDiv(a.num_tokens, kTogether))), dim3(kScoreThreads),
            size_t(together_bytes)},
           context.stream, a);
  }
  const int query_bytes = ScoreSharedBytes(a.padded_dim, a.padded_heads, kPlanes);
  const int ring_bytes =
      kScoreWarps * UnitRing<kPlanes>::kStages * 2 * int(a.task.layout.panel_bytes());
  constexpr int kCountBytes = (kBins + 1) * int(sizeof(int));
  const bool is_fetched =
      a.padded_dim <= kShortDims && query_bytes + ring_bytes + kCountBytes <= context.shared_bytes;
  // As many blocks as there is room for at once, if that leaves a warp few units; else more.
  const int64_t units = CeilDiv(a.task.max_positions, kUnitKeys);
  const int64_t room = CeilDiv(context.num_multiprocessors * ScoreBlocks(kPlanes), a.num_tokens);
  const int64_t blocks = std::max(std::min(CeilDiv(units, kScoreWarps), room),
                                  CeilDiv(units, kScoreWarps * kMostUnitsPerWarp));
  Launch("index scores",
         is_fetched ? IndexScoresKernel<kColumns, kPlanes, true>
                    : IndexScoresKernel<kColumns, kPlanes, false>,
         {dim3(unsigned(blocks), unsigned(a.num_tokens)), dim3(kScoreThreads),
          size_t(query_bytes + (is_fetched ? ring_bytes : 0))},
         context.stream, a);
}

template <int kColumns>
void LaunchScores(const KernelContext& context, ScoreArguments& a) {
  if (a.task.layout.num_planes == 2) {
    LaunchScores<kColumns, 2>(context, a);
  } else {
    LaunchScores<kColumns, 1>(context, a);
  }
}

}  // namespace

size_t SelectScratchBytes(int64_t max_tokens, int64_t max_positions) {
  const int64_t row = ScoreRows::Pitch(max_positions) * int64_t(sizeof(float));
  const int64_t shared = SharedRows::BytesOfRow(ScoreRows::Pitch(max_positions));
  return size_t(std::min(max_tokens * row, std::max(row, kMaxScoreBytes)) +
                std::min(max_tokens, kFewRows) * shared);
}

size_t SelectBinBytes(int64_t max_tokens) {
  return size_t(std::min(max_tokens, kFewRows) * kRowBins) * sizeof(int32_t);
}

void Select(const KernelContext& context, const SelectTask& task) {
  if (task.max_positions <= task.selection.max_keys) {  // nobody can see more keys
    ClearCounts(context, task);
    return;
  }
  ScoreArguments a{};
  a.task = task;
  a.rows = {reinterpret_cast<float*>(task.scratch), ScoreRows::Pitch(task.max_positions)};
  a.dim = int(task.layout.dim);
  a.padded_dim = int(RoundUp(task.layout.dim, kStepDims));
  const int64_t row_bytes = a.rows.pitch * int64_t(sizeof(float));
  const int64_t all_rows = task.num_tokens * row_bytes, bytes = int64_t(task.scratch_bytes);
  const bool are_shared =
      task.bins && task.num_tokens <= kFewRows && task.max_positions >= kLongRow &&
      bytes >= all_rows + task.num_tokens * SharedRows::BytesOfRow(a.rows.pitch);
  // Neighbours' scores are not counted as they are made.
  a.bins = are_shared || task.num_tokens < kManyTokens ? task.bins : nullptr;
  const int64_t at_once = std::max<int64_t>(1, bytes / row_bytes);
  for (int64_t first = 0; first < task.num_tokens; first += at_once) {
    const int64_t count = std::min(at_once, task.num_tokens - first);
    a.first_token = first;
    a.num_tokens = count;
    if (task.num_heads <= 8) {
      LaunchScores<1>(context, a);
    } else if (task.num_heads <= 16) {
      LaunchScores<2>(context, a);
    } else {
      LaunchScores<4>(context, a);
    }
    if (!are_shared) SelectTopKeys(context, task, a.rows, first, count, a.bins);
  }
  if (are_shared) {
    SelectFromSharedRows(
        context, task, a.rows,
        SharedRows::In(task.scratch + all_rows, a.rows.pitch, task.num_tokens, task.bins));
  }
}

}  // namespace hillstar::cuda
