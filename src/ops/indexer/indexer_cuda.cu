// The indexer on a GPU: scores of a token's queries against every key up to its own. A warp takes
// 32 keys, two panels, as the rows of two products, and eight heads a product as their columns.
// While it multiplies, its next keys come from their pages. Integers are exact; floats follow
// indexer_ref.cc.
#include "ops/indexer/select_cuda.cuh"

#include <algorithm>

#include "core/integers.h"
#include "device/cuda/contract.cuh"
#include "device/cuda/launch.cuh"
#include "ops/indexer/indexer.h"
#include "ops/indexer/select_bins_cuda.cuh"

namespace hillstar::cuda {
namespace {

constexpr int kUnitKeys = 32;  // of a warp at once
constexpr int kMostUnitsPerWarp = 28;
// A multiprocessor has one block, so that few blocks add their counts of scores to the row's.
constexpr int MostScoreWarps(int planes) { return planes == 2 ? 8 : 16; }
// Of a block that scores neighbours, four units a warp.
constexpr int kTogetherWarps = 4;
constexpr int kKeysPerBlock = kTogetherWarps * 4 * kUnitKeys;
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

// In shared memory: queries [plane][padded heads of all tokens][pitch], then weights [padded heads
// of all tokens]. Heads lie in groups of 8 * kColumns, which kColumns products have as columns.
constexpr int QueryPitch(int padded_dim) { return padded_dim + 16; }
constexpr int ScoreSharedBytes(int padded_dim, int rows, int planes) {
  return rows * (planes * QueryPitch(padded_dim) + int(sizeof(float)));
}

// Lane t of a quad has columns 2 t and 2 t + 1 of each product: these are the heads of sum t,
// ascending. Row r of the queries is the head that column r % 8 of product r / 8 stands for.
static_assert(kIndexSums == 4);
template <int kColumns>
__device__ __forceinline__ int HeadOfRow(int r) {
  const int group = r / (8 * kColumns), product = r / 8 % kColumns, column = r % 8;
  return group * 8 * kColumns + kIndexSums * (2 * product + column % 2) + column / 2;
}
// Weights lie as lanes read them: those of a group's heads of sum 0, of sum 1 ...
template <int kColumns>
__device__ __forceinline__ int HeadOfWeight(int i) {
  const int group = i / (8 * kColumns), sum = i / (2 * kColumns) % kIndexSums;
  return group * 8 * kColumns + kIndexSums * (i % (2 * kColumns)) + sum;
}

// Queries of a block's tokens. Their planes are on their way afterwards, in one group of copies.
template <int kColumns, int kPlanes>
struct BlockQueries {
  uint8_t* planes;
  float* weights;
  int pitch, rows, rows_of_token;

  __device__ __forceinline__ BlockQueries(const ScoreArguments& a, int num_tokens)
      : planes(DynamicShared()),
        pitch(QueryPitch(a.padded_dim)),
        rows(num_tokens * a.padded_heads),
        rows_of_token(a.padded_heads) {
    weights = reinterpret_cast<float*>(planes + kPlanes * rows * pitch);
  }
  __device__ __forceinline__ uint8_t* end() const {
    return reinterpret_cast<uint8_t*>(weights + rows);
  }
  __device__ __forceinline__ void Load(const ScoreArguments& a, int64_t first_token) const {
    const int pieces = a.padded_dim / 16, num_heads = int(a.task.num_heads);
    for (int i = int(threadIdx.x); i < rows * pieces; i += int(blockDim.x)) {
      const int row = i / pieces, at = i % pieces * 16;
      const int head = HeadOfRow<kColumns>(row % rows_of_token);
      const bool valid = head < num_heads && at < a.dim;
      const int64_t token = first_token + row / rows_of_token;
      const int64_t from =
          valid ? (token * num_heads + head) * a.task.queries.planes.stride + at : 0;
      CopyAsync16(planes + row * pitch + at, a.task.queries.planes.hi + from, valid);
      if constexpr (kPlanes == 2) {
        CopyAsync16(planes + (rows + row) * pitch + at, a.task.queries.planes.lo + from, valid);
      }
    }
    CommitCopies();
    for (int i = int(threadIdx.x); i < rows; i += int(blockDim.x)) {
      const int head = HeadOfWeight<kColumns>(i % rows_of_token);
      const int64_t token = first_token + i / rows_of_token;
      weights[i] = head < num_heads ? a.task.queries.weight[token * num_heads + head] : 0.0f;
    }
  }
};

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

// A warp's units: every n-th of its row's, n being the warps of all blocks of the row. Stages in
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
// places are worth 256 and 1 times kIndexUnit, and so end as these floats plus the sums, exactly.
template <int kColumns, int kPlanes, bool kShort>
struct KeyDots {
  static constexpr float kHighBegin = 1.5f * 0x1p31f * kIndexUnit;
  static constexpr float kCrossBegin = 1.5f * 0x1p23f * kIndexUnit;
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
  // max(float(PlaneProduct), 0) * kIndexUnit of key 4 (g % 4) + k and the first or second head of a
  // lane in columns i. Those of few dimensions are below 1.
  __device__ __forceinline__ float Value(int i, int k, int second) const {
    const int h = high[i][k / 2][k % 2 * 2 + second], c = cross[i][k / 2][k % 2 * 2 + second];
    if constexpr (!kShort) {
      return __fmul_rn(fmaxf(float(int(uint32_t(h) * 256u + uint32_t(c))), 0.0f), kIndexUnit);
    } else if constexpr (kPlanes == 1) {
      return AddSaturated(__int_as_float(h), -kHighBegin);
    } else {
      return AddSaturated(__fsub_rn(__int_as_float(h), kHighBegin),
                          __fsub_rn(__int_as_float(c), kCrossBegin));
    }
  }
  // Adds a group's heads to the lane's sums of its keys. `weights`: of the group.
  __device__ __forceinline__ void AddTo(float (&sum)[4], const float* weights) const {
    const int t = int(threadIdx.x) % 4;
    const float2* weight = reinterpret_cast<const float2*>(weights + 2 * kColumns * t);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float2 w = weight[i];
      for (int k = 0; k < 4; ++k) {
        sum[k] = __fmaf_rn(w.x, Value(i, k, 0), sum[k]);
        sum[k] = __fmaf_rn(w.y, Value(i, k, 1), sum[k]);
      }
    }
  }
};

// The score that a lane ends with is of its unit's key OwnKey().
__device__ __forceinline__ int OwnKey() {
  const int lane = int(threadIdx.x) % kWarpLanes, g = lane / 4, t = lane % 4;
  return 4 * g + t % 2 * 2 + t / 2;
}
// From the lanes' sums of a quad's four keys. key_scale: of its own key.
__device__ __forceinline__ float ScoreOf(const float (&sum)[4], float key_scale) {
  const int t = int(threadIdx.x) % 4;
  // Lanes t and t ^ 1 share out the keys by twos, then those with t ^ 2 one by one.
  const bool odd = t % 2 == 1, upper = t / 2 == 1;
  float own[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float other = __shfl_xor_sync(kAllLanes, odd ? sum[k] : sum[2 + k], 1);
    own[k] = __fadd_rn(odd ? sum[2 + k] : sum[k], other);
  }
  const float other = __shfl_xor_sync(kAllLanes, upper ? own[0] : own[1], 2);
  const float all = __fadd_rn(upper ? own[1] : own[0], other);
  return __fadd_rn(__fmul_rn(all, key_scale), 0.0f);
}
// Of a unit's own key; `panel`: the first of its two.
__device__ __forceinline__ float OwnKeyScale(const IndexKeyLayout& layout, const uint8_t* panel) {
  const int own = OwnKey();
  panel += own / int(kIndexPanelTokens) * int(layout.panel_bytes()) + layout.scales_at();
  return reinterpret_cast<const float*>(panel)[own % int(kIndexPanelTokens)];
}

// Tokens are four neighbours that see the same keys, so that a block may score them together.
constexpr int kTogether = 4;
__device__ __forceinline__ bool SeeSameKeys(const ScoreArguments& a, int64_t first) {
  const int64_t last = first + kTogether - 1;
  if (last >= a.first_token + a.num_tokens || last >= *a.task.live) return false;
  const PageId* const* ids = a.task.pages.ids + first;
  return ids[0] == ids[1] && ids[0] == ids[2] && ids[0] == ids[3];
}

// The score of the lane's own key. `unit`: its panels, as they lie in the page, or fetched.
template <int kColumns, int kPlanes, bool kFetched>
__device__ __forceinline__ float ScoreUnit(const ScoreArguments& a, const uint8_t* unit,
                                           const BlockQueries<kColumns, kPlanes>& queries) {
  const int lane = int(threadIdx.x) % kWarpLanes, g = lane / 4, t = lane % 4;
  const uint8_t* panel = unit + g / 4 * int(a.task.layout.panel_bytes());
  const uint8_t* query = queries.planes + lane % 8 * queries.pitch + lane / 8 * 16;
  float sum[4] = {};
  for (int group = 0; group < a.padded_heads; group += 8 * kColumns) {
    KeyDots<kColumns, kPlanes, kFetched> dots;  // only keys of few dimensions are fetched
    dots.Clear();
    for (int d = 0; d < a.padded_dim; d += kStepDims) {
      KeyPlane keys[kPlanes];
      for (int p = 0; p < kPlanes; ++p) {
        LoadKeys<kFetched>(panel + PlaceInQuad<kPlanes, kFetched>(p, g, t), kPlanes * 64, a.dim, d,
                           t, &keys[p]);
      }
      dots.Add(keys, query + group * queries.pitch + d, queries.rows * queries.pitch,
               queries.pitch);
    }
    dots.AddTo(sum, queries.weights + group);
  }
  return ScoreOf(sum, OwnKeyScale(a.task.layout, unit));
}

// Blocks (i, token): the units of a row are dealt to its warps. kFetched: through a UnitRing behind
// the queries, as long as there is room.
template <int kColumns, int kPlanes, bool kFetched>
__global__ void __launch_bounds__(MostScoreWarps(kPlanes) * kWarpLanes, 1)
    IndexScoresKernel(const __grid_constant__ ScoreArguments a) {
  using Ring = UnitRing<kPlanes>;
  __shared__ int counts[kBins + 1];
  const int warp = int(threadIdx.x) / kWarpLanes;
  const IndexKeyLayout& layout = a.task.layout;
  LetNextBegin();
  // The step's tables and the keys are older than the kernel before this one.
  const int64_t token = a.first_token + blockIdx.y;
  const bool is_live = token < *a.task.live;
  const int64_t num_keys = is_live ? a.task.positions[token] + 1 : 0;
  const int keys_of_block = int(blockDim.x) / kWarpLanes * kUnitKeys;
  const int64_t stride = int64_t(gridDim.x) * keys_of_block;
  const int64_t first_of_block = int64_t(blockIdx.x) * keys_of_block;
  const int64_t first_key = first_of_block + warp * kUnitKeys;
  const bool has_work = num_keys > a.task.selection.max_keys && first_of_block < num_keys &&
                        !(a.together && SeeSameKeys(a, token - blockIdx.y % kTogether));
  const BlockQueries<kColumns, kPlanes> queries(a, 1);
  Ring ring{has_work ? a.task.pages.of(token) : PageTable{},
            queries.end() + warp * Ring::kStages * 2 * int(layout.panel_bytes())};
  const auto fetch = [&](int i) { ring.Fetch(layout, i, first_key + i * stride, num_keys); };
  if (kFetched && has_work) {
    ring.LookAhead(layout, first_key, stride, num_keys);
    fetch(0);
  }
  for (int i = int(threadIdx.x); a.bins && i <= kBins; i += int(blockDim.x)) counts[i] = 0;
  WaitForPrevious();
  if (!has_work) return;

  queries.Load(a, token);
  for (int i = 1; kFetched && i < Ring::kStages; ++i) fetch(i);
  WaitForCopies<kFetched ? Ring::kStages - 1 : 0>();
  __syncthreads();

  float* out = a.rows.of(int64_t(blockIdx.y));
  const int own_key = OwnKey();
  int i = 0;
  for (int64_t key = first_key; key < num_keys; key += stride, ++i) {
    if (kFetched) WaitForCopies<Ring::kStages - 1>();
    __syncwarp();  // the stage is there; counting parts lanes
    // A unit lies in one page.
    const uint8_t* unit = kFetched ? ring.stage(layout, i) : ring.pages.panel(layout, key);
    const float score = ScoreUnit<kColumns, kPlanes, kFetched>(a, unit, queries);
    __syncwarp();  // the stage has been read
    if (kFetched) fetch(i + Ring::kStages);
    out[key + own_key] = score;
    if (a.bins) {
      const int bin = IsFinite(score) ? int(OrderedBits(score) >> 21) : kNotFiniteBin;
      CountBin(counts, key + own_key < num_keys, bin);
    }
  }
  if (!a.bins) return;
  __syncthreads();
  int32_t* bins = a.bins + int64_t(blockIdx.y) * kRowBins;
  for (int b = int(threadIdx.x); b <= kBins; b += int(blockDim.x)) {
    if (counts[b] > 0) atomicAdd(bins + b, counts[b]);
  }
}

// A block per (512 keys, four tokens that see the same): a unit's keys stay in registers while the
// tokens' heads go by. REQUIRES dim <= kShortDims.
template <int kColumns, int kPlanes>
__global__ void __launch_bounds__(kTogetherWarps* kWarpLanes, kPlanes == 2 ? 2 : 4)
    IndexScoresTogetherKernel(const __grid_constant__ ScoreArguments a) {
  constexpr int kSteps = kShortDims / kStepDims;
  __shared__ int64_t keys_of[kTogether];
  const int warp = int(threadIdx.x) / kWarpLanes, lane = int(threadIdx.x) % kWarpLanes;
  const int g = lane / 4, t = lane % 4;
  const int64_t first_token = a.first_token + blockIdx.y * kTogether;
  WaitForPrevious();
  if (!SeeSameKeys(a, first_token)) return;
  int64_t num_keys = 0;  // of the token that sees most
  for (int i = 0; i < kTogether; ++i) {
    const int64_t keys = a.task.positions[first_token + i] + 1;
    if (threadIdx.x == 0) keys_of[i] = keys > a.task.selection.max_keys ? keys : 0;
    num_keys = keys > num_keys ? keys : num_keys;
  }
  const int64_t first_key = int64_t(blockIdx.x) * kKeysPerBlock;
  if (num_keys <= a.task.selection.max_keys || first_key >= num_keys) return;
  const BlockQueries<kColumns, kPlanes> queries(a, kTogether);
  queries.Load(a, first_token);
  WaitForCopies<0>();
  __syncthreads();
  LetNextBegin();

  const PageTable pages = a.task.pages.of(first_token);
  const int own_key = OwnKey();
  for (int i = warp; i < kKeysPerBlock / kUnitKeys; i += kTogetherWarps) {
    const int64_t key = first_key + i * kUnitKeys;
    if (key >= num_keys) break;
    __syncwarp();
    const uint8_t* unit = pages.panel(a.task.layout, key);
    const uint8_t* panel = unit + g / 4 * a.task.layout.panel_bytes();
    const float key_scale = OwnKeyScale(a.task.layout, unit);
    KeyPlane keys[kSteps][kPlanes];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      for (int p = 0; p < kPlanes; ++p) {
        LoadKeys<false>(panel + PlaceInQuad<kPlanes, false>(p, g, t), kPlanes * 64, a.dim,
                        step * kStepDims, t, &keys[step][p]);
      }
    }
    const uint8_t* query = queries.planes + lane % 8 * queries.pitch + lane / 8 * 16;
    const float* weights = queries.weights;
#pragma unroll 1
    for (int token = 0; token < kTogether; ++token) {
      float sum[4] = {};
#pragma unroll 1
      for (int group = 0; group < a.padded_heads; group += 8 * kColumns) {
        KeyDots<kColumns, kPlanes, true> dots;
        dots.Clear();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if (step * kStepDims >= a.padded_dim) break;
          dots.Add(keys[step], query + step * kStepDims, queries.rows * queries.pitch,
                   queries.pitch);
        }
        dots.AddTo(sum, weights);
        query += 8 * kColumns * queries.pitch;
        weights += 8 * kColumns;
      }
      const float score = ScoreOf(sum, key_scale);
      if (key < keys_of[token]) {
        a.rows.of(int64_t(blockIdx.y) * kTogether + token)[key + own_key] = score;
      }
    }
  }
}

// Prompts have many tokens of one sequence.
constexpr int64_t kManyTokens = 16;
static_assert(kManyTokens <= kFewRows + 1);

// Keys are read and scores written.
void AddWork(const KernelContext& context, const SelectTask& task, LaunchShape* shape) {
  const IndexKeyLayout& key = task.layout;
  const int64_t each = key.panel_bytes() / kIndexPanelTokens + int64_t{sizeof(float)};
  const int64_t products = key.num_planes == 2 ? 3 : 1;
  shape->bytes += double(context.seen_keys * each);
  shape->products += double(context.seen_keys * task.num_heads * key.dim * products);
}

template <int kColumns, int kPlanes>
void LaunchScores(const KernelContext& context, ScoreArguments& a) {
  a.padded_heads = int(RoundUp(a.task.num_heads, 8 * kColumns));
  const int together_bytes = ScoreSharedBytes(a.padded_dim, kTogether * a.padded_heads, kPlanes);
  constexpr int kNumbersBytes = 128;  // keys_of, likewise
  a.together = !a.bins && a.num_tokens >= kManyTokens && a.padded_dim <= kShortDims &&
               together_bytes + kNumbersBytes <= context.shared_bytes;
  if (a.together) {
    const unsigned blocks = unsigned(CeilDiv(a.task.max_positions, kKeysPerBlock));
    LaunchShape shape{dim3(blocks, unsigned(CeilDiv(a.num_tokens, kTogether))),
                      dim3(kTogetherWarps * kWarpLanes), size_t(together_bytes)};
    AddWork(context, a.task, &shape);
    Launch("index scores of neighbours", IndexScoresTogetherKernel<kColumns, kPlanes>, shape,
           context.stream, a);
  }
  const int query_bytes = ScoreSharedBytes(a.padded_dim, a.padded_heads, kPlanes);
  const int warp_bytes = UnitRing<kPlanes>::kStages * 2 * int(a.task.layout.panel_bytes());
  // The kernel's own counts; what the launch gives begins at a multiple of 128 bytes.
  constexpr int kCountBytes = int(RoundUp((kBins + 1) * int64_t{sizeof(int)}, 128));
  const int room = (context.shared_bytes - query_bytes - kCountBytes) / warp_bytes;  // for warps
  const bool is_fetched = a.padded_dim <= kShortDims && room > 0;
  // A block a multiprocessor, if that leaves a warp few units; else more.
  const int64_t units = CeilDiv(a.task.max_positions, kUnitKeys);
  const int64_t at_once = CeilDiv(context.num_multiprocessors, a.num_tokens);
  constexpr int kMost = MostScoreWarps(kPlanes);
  const int most = is_fetched ? std::min(kMost, room) : kMost;
  const int warps = int(std::clamp<int64_t>(CeilDiv(units, at_once), std::min(4, most), most));
  const int64_t blocks =
      std::max(std::min(CeilDiv(units, warps), at_once), CeilDiv(units, warps * kMostUnitsPerWarp));
  LaunchShape shape{dim3(unsigned(blocks), unsigned(a.num_tokens)),
                    dim3(unsigned(warps * kWarpLanes)),
                    size_t(query_bytes + (is_fetched ? warps * warp_bytes : 0))};
  if (!a.together) AddWork(context, a.task, &shape);
  Launch("index scores",
         is_fetched ? IndexScoresKernel<kColumns, kPlanes, true>
                    : IndexScoresKernel<kColumns, kPlanes, false>,
         shape, context.stream, a);
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
