// Attention of few tokens, or of long contexts, inside kernels: what is to be done for a split is
// cut into pieces that a whole GPU shares. Blocks of one kernel find the scores of chunks with some
// heads; those of another, with the weights that follow, the values of 128 latents of some heads.
//   Few splits: what counts is how long a block takes. 16 heads a block; who finds values finds the
//   weights too, although blocks of other latents find the same; the last block of a token's to end
//   merges its splits.
//   More: 32 heads a block, then 64, and weights found once, by who finds scores or a kernel of
//   their own; a kernel merges.
//   A split for every multiprocessor, and more: attention_long_cuda.cuh.
// On an H200, GLM-5.2's shape, one token, in us (q15, q8): 300 keys 11.6, 10.9; 2,048 keys 14.8,
// 13.4; 262,144 keys 349, 256; 64 tokens of 2,048 keys with q8 147 (bench/attend_speed.cc).
#pragma once

#include "ops/attention/attention_weights_cuda.cuh"
#include "ops/quantise/quantise_cuda.cuh"

namespace hillstar::cuda {

// Scores of chunks with a group of heads, each block those of some chunks in a row. Nobody waits
// for a ticket when this begins, so it sets them to 0.
template <int kTiles, bool kLow, bool kCodes>
__global__ void __launch_bounds__(kAttendThreads, 2)
    AttendScoresKernel(const __grid_constant__ AttendArguments arguments) {
  WaitForPrevious();
  LetNextBegin();
  const AttendTask& task = arguments.task;
  const SplitScratch& scratch = arguments.scratch;
  SplitList list;
  list.Make(task, scratch.capacity);
  for (int i = int(blockIdx.x) * kAttendThreads + int(threadIdx.x);
       i < list.num_splits * scratch.tickets_each; i += int(gridDim.x) * kAttendThreads) {
    scratch.tickets[i] = 0;
  }
  using Block = AttendBlock<kTiles, kLow, kCodes>;
  Block block(task, arguments.layout);
  const int groups = arguments.num_head_groups;
  const int first_head = int(blockIdx.x) % groups * Block::kHeads;
  const int num_heads = int(task.num_heads) - first_head;
  const unsigned unit = arguments.weighs ? kSplitChunks : 1;
  const unsigned units = unsigned(list.num_splits) * kSplitChunks / unit;
  const unsigned share = blockIdx.x / unsigned(groups), shares = gridDim.x / unsigned(groups);
  const int end = int(units * (share + 1) / shares * unit);
  const auto find_rows = [&](int chunk) {
    if (threadIdx.x >= kChunk) return;
    typename Block::RowFinder finder;
    block.FindPosition(chunk, &finder);
    block.FindPage(&finder);
    block.FindRow(chunk, finder);
  };
  int before = -1;
  for (int c = int(units * share / shares * unit); c < end; ++c) {
    const int split = c / kSplitChunks, token = list.TokenOf(split);
    const int chunk = c - list.Begin(token) * kSplitChunks;  // of the token
    const TokenKeys keys = list.KeysOfToken(token);
    const int left = keys.num - chunk * kChunk;
    if (left <= 0) continue;
    const int n = left < kChunk ? left : kChunk;
    __syncthreads();  // nobody reads what was there before
    if (token != before) {
      block.LoadQueries(token, keys, first_head);
      find_rows(chunk);
      __syncthreads();
    }
    before = token;
    block.LoadChunk(chunk, n);
    if (c + 1 < end) find_rows(chunk + 1);  // of this token, while the rows are on their way
    WaitForCopies<0>();
    __syncthreads();
    if (kCodes && arguments.layout.stages_codes) {
      block.ExpandChunk(chunk, n);
      __syncthreads();
    }
    const int64_t row = int64_t(split) * task.num_heads + first_head;
    const int first_key = c % kSplitChunks * kChunk;
    block.Scores(chunk, n, scratch.scores + row * kSplit + first_key, kSplit, num_heads);
    // Every block stores the same: those that weigh read their own.
    if ((first_head == 0 || arguments.weighs) && int(threadIdx.x) < n) {
      const uint8_t* scale = block.row(chunk, int(threadIdx.x)) + arguments.layout.scale_at;
      scratch.key_scales[int64_t(split) * kSplit + first_key + int(threadIdx.x)] =
          *reinterpret_cast<const float*>(scale);
    }
    if (!arguments.weighs || (left > kChunk && first_key + kChunk < kSplit)) continue;
    __syncthreads();
    for (int h = block.warp; h < Block::kHeads && h < num_heads; h += kAttendWarps) {
      WeighInPlace(scratch, split, row + h, first_key + n);
    }
  }
}

// The weights of all splits in their scores' place, each warp one head's.
__global__ void __launch_bounds__(kAttendThreads)
    AttendWeightsKernel(const __grid_constant__ AttendArguments arguments) {
  WaitForPrevious();
  LetNextBegin();
  const AttendTask& task = arguments.task;
  const SplitScratch& scratch = arguments.scratch;
  SplitList list;
  list.Make(task, scratch.capacity);
  const unsigned num_heads = unsigned(task.num_heads);
  const unsigned num_items = unsigned(list.num_splits) * num_heads;
  for (unsigned item = blockIdx.x * kAttendWarps + threadIdx.x / kWarpLanes; item < num_items;
       item += gridDim.x * kAttendWarps) {
    const int split = int(item / num_heads), token = list.TokenOf(split);
    const int left = list.KeysOfToken(token).num - (split - list.Begin(token)) * kSplit;
    WeighInPlace(scratch, split, item, left < kSplit ? left : kSplit);
  }
}

// A row of the result: kValueLatents of one head, fewer behind the last.
struct ResultRow {
  int token, head;
  int first_latent, width;
};
// A warp has four latents a lane: divides them by the sum and quantises them, a group of 64 in each
// half.
__device__ __forceinline__ void Finish(const AttendArguments& arguments, const ResultRow& row,
                                       float4 z, float sum) {
  const int lane = int(threadIdx.x) % kWarpLanes;
  const bool exists = 4 * lane < row.width;
  const int column = row.first_latent + 4 * lane, left = arguments.layout.latent - column;
  const float x[4] = {exists && left > 0 ? __fdiv_rn(z.x, sum) : 0.0f,
                      exists && left > 1 ? __fdiv_rn(z.y, sum) : 0.0f,
                      exists && left > 2 ? __fdiv_rn(z.z, sum) : 0.0f,
                      exists && left > 3 ? __fdiv_rn(z.w, sum) : 0.0f};
  float amax = 0.0f;
  bool finite = true;
  for (int i = 0; i < 4; ++i) {
    finite = finite && IsFinite(x[i]);
    const float m = Magnitude(x[i]);
    amax = m > amax ? m : amax;
  }
  finite = (__ballot_sync(kAllLanes, finite) >> (lane & 16) & 0xffff) == 0xffff;
  const RowScale scale = ScaleOf(HalfMax(finite ? amax : 0.0f));
  PlaneWords words[4];
  int sum_of_planes = 0;
  for (int i = 0; i < 4; ++i) {
    words[i] = ToPlaneWords(finite ? x[i] : 0.0f, scale.inverse);
    sum_of_planes += 256 * int8_t(words[i].hi) + int8_t(words[i].lo);
  }
  for (int bits = 1; bits < 16; bits *= 2) {
    sum_of_planes += __shfl_xor_sync(kAllLanes, sum_of_planes, bits);
  }
  if (!exists) return;
  const ActivationPlanes& planes = arguments.task.out;
  const PlaneGroup out =
      GroupOf(planes, row.token * arguments.task.num_heads + row.head, column / kGroup);
  reinterpret_cast<uint32_t*>(out.hi)[lane % 16] =
      LowBytes(words[0].hi, words[1].hi, words[2].hi, words[3].hi);
  reinterpret_cast<uint32_t*>(out.lo)[lane % 16] =
      LowBytes(words[0].lo, words[1].lo, words[2].lo, words[3].lo);
  if (lane % 16 != 0) return;
  *out.scale = __fmul_rn(scale.scale, 1.0f / 256);
  *out.sum = sum_of_planes;
  if (!finite) NoteBad(arguments.bad, arguments.code, row.token);
}

// Merges a row of a token's splits, at most kMaxJoinedSplits from first_split on, and finishes it.
// A warp; other blocks may have stored them.
__device__ __forceinline__ void JoinSplits(const AttendArguments& arguments, const ResultRow& row,
                                           int first_split, int num_splits) {
  const int lane = int(threadIdx.x) % kWarpLanes;
  const int64_t heads = arguments.task.num_heads, padded = arguments.layout.padded_latent;
  const int64_t first = first_split * heads + row.head;
  const float none = -__uint_as_float(0x7f800000u);
  // Lane s has split s.
  const float2 own = lane < num_splits ? __ldcg(arguments.scratch.numbers + first + lane * heads)
                                       : make_float2(none, 0.0f);
  const int latent = 4 * lane < row.width ? 4 * lane : 0;
  const float* from = arguments.scratch.values + first * padded + row.first_latent + latent;
  constexpr int kAtOnce = 4;
  float4 v[kAtOnce];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = begin + i < num_splits ? begin + i : begin;
      v[i] = __ldcg(reinterpret_cast<const float4*>(from + at * (heads * padded)));
    }
  };
  load(0);
  float next = own.x;
  for (int delta = 1; delta < kMaxJoinedSplits; delta *= 2) {
    const float other = __shfl_up_sync(kAllLanes, next, delta);
    if (lane >= delta && other > next) next = other;
  }
  const float largest_before = __shfl_up_sync(kAllLanes, next, 1);
  // The first split starts from zeros.
  const float before = lane == 0 ? 0.0f : Exp(__fsub_rn(largest_before, next));
  const float joins = Exp(__fsub_rn(own.x, next));
  float sum = 0;
  float4 z = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (int begin = 0; begin < num_splits; begin += kAtOnce) {
    if (begin > 0) load(begin);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i >= num_splits) break;
      const float a = __shfl_sync(kAllLanes, before, begin + i);
      const float b = __shfl_sync(kAllLanes, joins, begin + i);
      sum = __fmaf_rn(__shfl_sync(kAllLanes, own.y, begin + i), b, __fmul_rn(sum, a));
      z.x = __fmaf_rn(v[i].x, b, __fmul_rn(z.x, a));
      z.y = __fmaf_rn(v[i].y, b, __fmul_rn(z.y, a));
      z.z = __fmaf_rn(v[i].z, b, __fmul_rn(z.z, a));
      z.w = __fmaf_rn(v[i].w, b, __fmul_rn(z.w, a));
    }
  }
  Finish(arguments, row, z, sum);
}

// The rows of all tokens that are cut and have more than one split.
__global__ void __launch_bounds__(kAttendThreads, 4)
    AttendJoinKernel(const __grid_constant__ AttendArguments arguments) {
  WaitForPrevious();
  LetNextBegin();
  SplitList list;
  list.Make(arguments.task, arguments.scratch.capacity);
  const int padded = arguments.layout.padded_latent;
  const unsigned ranges = unsigned(padded + kValueLatents - 1) / kValueLatents;
  const unsigned heads = unsigned(arguments.task.num_heads);
  const unsigned num_rows = unsigned(list.num_tokens) * heads * ranges;
  for (unsigned i = blockIdx.x * kAttendWarps + threadIdx.x / kWarpLanes; i < num_rows;
       i += gridDim.x * kAttendWarps) {
    const int token = int(i / (heads * ranges)), head = int(i / ranges % heads);
    const int num_splits = (list.KeysOfToken(token).num + kSplit - 1) / kSplit;
    if (num_splits == 1 && !arguments.merges_all) continue;
    const int first_latent = int(i % ranges) * kValueLatents;
    const int width = padded - first_latent;
    JoinSplits(arguments,
               {token, head, first_latent, width < kValueLatents ? width : kValueLatents},
               list.Begin(token), num_splits);
  }
}

// What a block finds the values of. It lies in shared memory: threads have no registers for it.
struct ValuesItem {
  int split;
  int token;
  int first_split, num_splits;  // of the token
  int n;                        // keys
  int first_head, num_heads;    // num_heads: from the first on
  int first_latent, width;
};

// kTiles: of 16 heads; kLow: latents have two planes; kCodes: rows are e4m3 codes; kWeighs: finds
// the weights, else these were found by AttendWeightsKernel.
template <int kTiles, bool kLow, bool kCodes, bool kWeighs>
struct ValuesBlock {
  static constexpr int kHeads = kTileHeads * kTiles;
  static constexpr int kPlanes = kLow ? 2 : 1;
  // Where weights are to be found, two sets of warps: the second has chunks 2 and 3.
  static constexpr int kThreads = kWeighs ? 2 * kAttendThreads : kAttendThreads;
  static constexpr int kWarps = kThreads / kWarpLanes;
  static constexpr int kRowPitch = kPlanes * kValueLatents + 16;
  // Every second row that ldmatrix reads is 16 keys further: with such a gap in other banks.
  static constexpr int kRowGap = 64;
  static constexpr int kRowsBytes = kSplit * kRowPitch + kSplit / 16 * kRowGap;
  static constexpr int kPlanesPitch = kWeightBytes + 16;
  static constexpr int kPlaces = kWeighs ? 1 : 2;
  static constexpr int kSumsBytes = kWeighs ? kAttendThreads * 16 * 4 : 0;
  static constexpr int kSharedBytes =
      kRowsBytes + kSumsBytes +
      kHeads * (kPlanesPitch + int(sizeof(ChunkFactors)) * kSplitChunks + int(sizeof(float2))) +
      kPlaces * kSplit * 8 + kWarps * int(sizeof(ValuesItem));
  static constexpr int kOutPitch = kValueLatents + 8;
  static_assert(kHeads * kOutPitch * 4 <= kRowsBytes);

  const AttendArguments& arguments;
  const AttendTask& task;
  uint8_t* rows;           // [kSplit][kRowPitch], with gaps; at last other things
  uint8_t* weights;        // [kHeads][kPlanesPitch]
  ChunkFactors* factors;   // [kHeads][kSplitChunks]
  float2* numbers;         // [kHeads]
  const uint8_t** places;  // [kPlaces][kSplit]
  int* sums;               // [16][kAttendThreads]: of chunks 2 and 3
  int thread, warp, lane, g, t;
  ValuesItem* items;  // [kWarps]: every warp has a copy

  __device__ __forceinline__ explicit ValuesBlock(const AttendArguments& a)
      : arguments(a), task(a.task) {
    rows = DynamicShared();
    weights = rows + kRowsBytes;
    factors = reinterpret_cast<ChunkFactors*>(weights + kHeads * kPlanesPitch);
    numbers = reinterpret_cast<float2*>(factors + kHeads * kSplitChunks);
    places = reinterpret_cast<const uint8_t**>(numbers + kHeads);
    sums = reinterpret_cast<int*>(places + kPlaces * kSplit);
    items = reinterpret_cast<ValuesItem*>(sums + kSumsBytes / 4);
    ForgetThread();
  }
  // What follows from a thread's number is found again where it is needed, and keeps no registers.
  __device__ __forceinline__ void ForgetThread() {
    thread = int(threadIdx.x);
    Forget(thread);
    warp = thread / kWarpLanes;
    lane = thread % kWarpLanes;
    g = lane / 4;
    t = lane % 4;
  }
  __device__ __forceinline__ ValuesItem& item() const { return items[warp]; }
  static __device__ __forceinline__ int RowAt(int key) {
    return key * kRowPitch + key / 16 * kRowGap;
  }

  // Where the rows of an item lie, in steps of one load each. The block has room for two items',
  // this one and the next.
  struct RowFinder {
    const PageId* ids = nullptr;
    int position = -1;  // none
    PageId page = 0;
  };
  __device__ __forceinline__ RowFinder FindPosition(const SplitList& list, int index,
                                                    int in_split) const {
    const int of_split = index / in_split, of_token = list.TokenOf(of_split);
    const TokenKeys keys = list.KeysOfToken(of_token);
    const int key = (of_split - list.Begin(of_token)) * kSplit + thread;
    RowFinder finder;
    if (thread >= kSplit || key >= keys.num) return finder;
    finder.ids = task.pages.ids[of_token];
    finder.position =
        keys.is_dense ? key : task.selection.lists[of_token * task.selection.max_keys + key];
    return finder;
  }
  __device__ __forceinline__ void FindPage(RowFinder* finder) const {
    if (finder->position >= 0) finder->page = finder->ids[finder->position / int(kPageTokens)];
  }
  __device__ __forceinline__ void FindRow(const RowFinder& finder, int at) const {
    if (finder.position < 0) return;
    places[at * kSplit + thread] =
        task.pages.memory[finder.page] + task.pages.offset +
        finder.position % int(kPageTokens) * arguments.layout.global_row_bytes;
  }
  __device__ __forceinline__ void FindRows(const SplitList& list, int index, int in_split) const {
    RowFinder finder = FindPosition(list, index, in_split);
    FindPage(&finder);
    FindRow(finder, 0);
  }
  // Takes up item `index` whose rows are found and begins to fetch them.
  __device__ __forceinline__ void Begin(const SplitList& list, int index, int ranges,
                                        int places_at) {
    const int in_split = index % (ranges * arguments.num_head_groups);
    const int padded = arguments.layout.padded_latent;
    ValuesItem next;
    next.split = index / (ranges * arguments.num_head_groups);
    next.token = list.TokenOf(next.split);
    next.first_split = list.Begin(next.token);
    const TokenKeys keys = list.KeysOfToken(next.token);
    next.num_splits = (keys.num + kSplit - 1) / kSplit;
    const int first_key = (next.split - next.first_split) * kSplit;
    const int n = keys.num - first_key < kSplit ? keys.num - first_key : kSplit;
    next.n = n;
    next.first_head = in_split / ranges * kHeads;
    next.num_heads = int(task.num_heads) - next.first_head;
    const int first_latent = in_split % ranges * kValueLatents;
    const int width = padded - first_latent < kValueLatents ? padded - first_latent : kValueLatents;
    next.first_latent = first_latent;
    next.width = width;
    if (lane == 0) item() = next;
    __syncwarp();
    constexpr int kPieces = kValueLatents / 16, kOfRow = (kCodes ? 1 : kPlanes) * kPieces;
    const int plane = thread % kOfRow / kPieces, at = thread % kPieces * 16;
    if (at < width) {
#pragma unroll 4
      for (int key = thread / kOfRow; key < n; key += kThreads / kOfRow) {
        const uint8_t* from = places[places_at * kSplit + key] + first_latent + plane * padded + at;
        uint8_t* to = rows + RowAt(key) + plane * kValueLatents + at;
        if constexpr (kCodes) {
          const uint4 v = *reinterpret_cast<const uint4*>(from);
          uint4 hi, lo;
          ExpandCodes(v.x, &hi.x, &lo.x);
          ExpandCodes(v.y, &hi.y, &lo.y);
          ExpandCodes(v.z, &hi.z, &lo.z);
          ExpandCodes(v.w, &hi.w, &lo.w);
          *reinterpret_cast<uint4*>(to) = hi;
          *reinterpret_cast<uint4*>(to + kValueLatents) = lo;
        } else {
          CopyAsync16(to, from);
        }
      }
    }
    CommitCopies();
  }

  // The weights in shared memory.
  __device__ __forceinline__ void FindWeights() {
    const SplitScratch& scratch = arguments.scratch;
    const int num_heads = item().num_heads;
    const int64_t split = item().split, first = split * task.num_heads + item().first_head;
    if constexpr (kWeighs) {
      static_assert(kHeads == kWarps);
      const int64_t row = first + (warp < num_heads ? warp : 0);
      const HeadWeights head =
          WeighHead(scratch.scores + row * kSplit, scratch.key_scales + split * kSplit, item().n);
      StoreWeights(head, weights + warp * kPlanesPitch, factors + warp * kSplitChunks);
      if (lane == 0) numbers[warp] = make_float2(head.largest, head.sum);
    } else {
      static_assert(kWeightBytes == 16 * kWarpLanes);
      const auto* from = reinterpret_cast<const uint8_t*>(scratch.scores + first * kSplit);
#pragma unroll 4
      for (int h = warp; h < kHeads; h += kWarps) {
        const uint8_t* head = from + (h < num_heads ? h : 0) * (kSplit * 4);
        CopyAsync16(weights + h * kPlanesPitch + 16 * lane, head + 16 * lane);
      }
      if (thread < 2 * kHeads) {  // the factors
        const int h = thread / 2, at = thread % 2 * 16;
        CopyAsync16(reinterpret_cast<uint8_t*>(factors + h * kSplitChunks) + at,
                    from + (h < num_heads ? h : 0) * (kSplit * 4) + kWeightBytes + at);
      }
      CommitCopies();
      if (thread < kHeads) {
        numbers[thread] = scratch.numbers[first + (thread < num_heads ? thread : 0)];
      }
    }
  }

  // A warp's 16 latents from 16 * warp on. [tile][parity of the latent][c]: c as MmaSignedSigned
  // says, whose column j is latent 2 j, or 2 j + 1.
  using Values = float[kTiles][2][4];

  // 32 keys' bytes of the warp's latents, as b of two products. `from`: the lane's row.
  static __device__ __forceinline__ void LoadValues(const uint8_t* from, uint32_t (&b)[2][2]) {
    uint32_t m[4];
    LoadMatricesTransposed(m, from);
    for (int i = 0; i < 2; ++i) {
      b[0][i] = __byte_perm(m[2 * i], m[2 * i + 1], 0x6420);
      b[1][i] = __byte_perm(m[2 * i], m[2 * i + 1], 0x7531);
    }
  }
  // Products of a chunk's weights of a tile with the warp's latents.
  using Sums = int[2][4];
  struct Products {
    int high[2][4] = {}, cross[2][4] = {};
  };
  using HalfBytes = uint32_t[kPlanes][2][2];  // of 32 keys: [plane], then as LoadValues
  __device__ __forceinline__ void LoadHalf(int group, int chunk, int half, HalfBytes& b) const {
    // Row r of matrix 2 i + m is that of key 32 m + 16 (r % 2) + 4 i + r / 2: the order in which
    // lanes of WeighHead have their keys.
    const int matrix = lane / 8, r = lane % 8;
    const int key = 32 * (matrix % 2) + 16 * (r % 2) + 4 * (matrix / 2) + r / 2;
    const uint8_t* from = rows + RowAt(key) + RowAt(chunk * kChunk) + 16 * group;
    for (int p = 0; p < kPlanes; ++p) {
      LoadValues(from + 8 * half * kRowPitch + p * kValueLatents, b[p]);
    }
  }
  __device__ __forceinline__ void MultiplyHalf(int tile, int chunk, int half, const HalfBytes& b,
                                               Products& products) const {
    const uint8_t* planes = weights + (tile * kTileHeads + lane % 16) * kPlanesPitch +
                            chunk * kChunk + lane / 16 * 16 + 32 * half;
    uint32_t a[2][4];
    for (int p = 0; p < 2; ++p) LoadMatrices(a[p], planes + p * kSplit);
    for (int i = 0; i < 2; ++i) {
      MmaSignedSigned(products.high[i], a[0], b[0][i][0], b[0][i][1]);
      MmaSignedSigned(products.cross[i], a[1], b[0][i][0], b[0][i][1]);
    }
    if constexpr (kLow) {
      for (int i = 0; i < 2; ++i) {
        MmaSignedSigned(products.cross[i], a[0], b[1][i][0], b[1][i][1]);
      }
    }
  }
  static __device__ __forceinline__ void Combine(const Products& products, Sums& sum) {
    for (int i = 0; i < 8; ++i) {
      sum[i / 4][i % 4] = int(uint32_t(products.high[i / 4][i % 4]) * 256u +
                              uint32_t(products.cross[i / 4][i % 4]));
    }
  }
  // values = fma(weights x latents, weight scale, values * decay).
  __device__ __forceinline__ void Accumulate(int tile, int chunk, const Sums& sum,
                                             Values& values) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const ChunkFactors f = factors[(tile * kTileHeads + 8 * r + g) * kSplitChunks + chunk];
      for (int i = 0; i < 4; ++i) {
        float& v = values[tile][i / 2][2 * r + i % 2];
        // The first chunk has no values before: fma(x, y, 0) is x * y.
        v = __fmaf_rn(float(sum[i / 2][2 * r + i % 2]), f.scale,
                      chunk == 0 ? 0.0f : __fmul_rn(v, f.decay));
      }
    }
  }
  __device__ __forceinline__ void AddChunks(Values& values) const {
    if constexpr (kWeighs) {
      AddChunksByTwo(values);
    } else {
      if (16 * warp >= item().width) return;
      const int n = item().n, num_heads = item().num_heads;
#pragma unroll 1
      for (int c = 0; c * kChunk < n; ++c) {
        HalfBytes b[2];
        for (int half = 0; half < 2; ++half) LoadHalf(warp, c, half, b[half]);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          if (tile * kTileHeads >= num_heads) break;
          Products products;
          for (int half = 0; half < 2; ++half) MultiplyHalf(tile, c, half, b[half], products);
          Sums sum;
          Combine(products, sum);
          Accumulate(tile, c, sum, values);
        }
      }
    }
  }
  // Half of the warps multiply chunks 0 and 1, the others 2 and 3, which the first half adds.
  __device__ __forceinline__ void AddChunksByTwo(Values& values) const {
    const int group = warp % kAttendWarps, part = warp / kAttendWarps;
    const int index = thread % kAttendThreads;
    const bool works = 16 * group < item().width;
    const int n = item().n;
    Sums sum[2] = {};
    if (works && 2 * part * kChunk < n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if ((2 * part + c) * kChunk >= n) break;
        Products products;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          HalfBytes b;
          LoadHalf(group, 2 * part + c, half, b);
          MultiplyHalf(0, 2 * part + c, half, b, products);
        }
        Combine(products, sum[c]);
      }
      if (part == 1) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          sums[i * kAttendThreads + index] = sum[i / 8][i / 4 % 2][i % 4];
      }
    }
    __syncthreads();
    if (!works || part == 1) return;
#pragma unroll
    for (int c = 0; c < kSplitChunks; ++c) {
      if (c * kChunk >= n) break;
      if (c == 2) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          sum[i / 8][i / 4 % 2][i % 4] = sums[i * kAttendThreads + index];
      }
      Accumulate(0, c, sum[c % 2], values);
    }
  }

  // Calls store(head of the block, latent of the block, four values).
  template <typename Store>
  __device__ __forceinline__ void ForEach(const Values& values, Store store) const {
    if (16 * warp >= item().width) return;  // the second set of warps too
    const int num_heads = item().num_heads;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int h = tile * kTileHeads + 8 * r + g;
        const auto& v = values[tile];
        if (h < num_heads) {
          store(h, 16 * warp + 4 * t,
                make_float4(v[0][2 * r], v[1][2 * r], v[0][2 * r + 1], v[1][2 * r + 1]));
        }
      }
    }
  }
  __device__ __forceinline__ ResultRow RowOf(int h) const {
    const ValuesItem& own = item();
    return {own.token, own.first_head + h, own.first_latent, own.width};
  }
  // The token has one split.
  __device__ __forceinline__ void FinishSplit(const Values& values) const {
    auto* out = reinterpret_cast<float*>(rows);
    __syncthreads();  // nobody reads rows
    ForEach(values, [&](int h, int latent, float4 v) {
      *reinterpret_cast<float4*>(out + h * kOutPitch + latent) = v;
    });
    __syncthreads();
    const int heads = item().num_heads < kHeads ? item().num_heads : kHeads;
    for (int h = warp; h < heads; h += kWarps) {
      const float4 z = *reinterpret_cast<const float4*>(out + h * kOutPitch + 4 * lane);
      Finish(arguments, RowOf(h), z, numbers[h].y);
    }
  }

  __device__ __forceinline__ void StorePartial(const Values& values) const {
    const int padded = arguments.layout.padded_latent;
    const int64_t first = int64_t(item().split) * task.num_heads + item().first_head;
    float* to = arguments.scratch.values + first * padded + item().first_latent;
    ForEach(values, [&](int h, int latent, float4 v) {
      *reinterpret_cast<float4*>(to + int64_t(h) * padded + latent) = v;
    });
    // Blocks of other latents store the same.
    if (kWeighs && thread < kHeads && thread < item().num_heads) {
      arguments.scratch.numbers[first + thread] = numbers[thread];
    }
  }
  // Whether the other splits of these heads and latents are stored.
  __device__ __forceinline__ bool IsLast(int in_token) const {
    __syncthreads();
    int is_last = 0;
    if (thread == 0) {
      __threadfence();
      int32_t* ticket = arguments.scratch.tickets +
                        int64_t(item().first_split) * arguments.scratch.tickets_each + in_token;
      is_last = atomicAdd(ticket, 1) == item().num_splits - 1;
    }
    return __syncthreads_or(is_last) != 0;
  }
  __device__ __forceinline__ void Join() const {
    __threadfence();
    const int heads = item().num_heads < kHeads ? item().num_heads : kHeads;
    for (int h = warp; h < heads; h += kWarps) {
      JoinSplits(arguments, RowOf(h), item().first_split, item().num_splits);
    }
  }
};

template <bool kLow, bool kCodes>
using FewValues = ValuesBlock<1, kLow, kCodes, true>;
// The values of an item each block, or of several in turn. What is read before the scores are there
// was there before they were begun.
template <bool kLow, bool kCodes>
__global__ void __launch_bounds__(FewValues<kLow, kCodes>::kThreads, 2)
    AttendValuesKernel(const __grid_constant__ AttendArguments arguments) {
  FewValues<kLow, kCodes> block(arguments);
  const int ranges = (arguments.layout.padded_latent + kValueLatents - 1) / kValueLatents;
  const int in_split = ranges * arguments.num_head_groups;
  // There are at least as many items as blocks, so that every block waits.
  for (int index = int(blockIdx.x); index < arguments.num_items; index += int(gridDim.x)) {
    block.ForgetThread();
    SplitList list;  // made again for each item: there are no registers to keep it
    list.Make(arguments.task, arguments.scratch.capacity);
    const bool exists = index < list.num_splits * in_split;
    if (exists) {
      block.FindRows(list, index, in_split);
      __syncthreads();
      block.Begin(list, index, ranges, 0);
    }
    WaitForPrevious();
    LetNextBegin();
    if (!exists) return;
    block.FindWeights();
    WaitForCopies<0>();
    __syncthreads();
    typename FewValues<kLow, kCodes>::Values values = {};
    block.AddChunks(values);
    if (block.item().num_splits == 1) {
      block.FinishSplit(values);
    } else {
      block.StorePartial(values);
      if (arguments.joins && block.IsLast(index % in_split)) block.Join();
    }
    __syncthreads();  // nobody reads what was there before
  }
}

template <bool kLow, bool kCodes>
using ManyValues = ValuesBlock<kManyTiles, kLow, kCodes, false>;
// Likewise where there is much to do and the weights are there: the next item's rows are found
// meanwhile.
template <bool kLow, bool kCodes>
__global__ void __launch_bounds__(ManyValues<kLow, kCodes>::kThreads, 2)
    AttendManyValuesKernel(const __grid_constant__ AttendArguments arguments) {
  using Block = ManyValues<kLow, kCodes>;
  Block block(arguments);
  const int ranges = (arguments.layout.padded_latent + kValueLatents - 1) / kValueLatents;
  const int in_split = ranges * arguments.num_head_groups;
  SplitList list;
  list.Make(arguments.task, arguments.scratch.capacity);
  const int num_items = list.num_splits * in_split;
  int index = int(blockIdx.x), at = 0;
  if (index < num_items) {
    block.FindRows(list, index, in_split);
    __syncthreads();
    block.Begin(list, index, ranges, 0);
  }
  WaitForPrevious();
  LetNextBegin();
  while (index < num_items) {
    const int next = index + int(gridDim.x);
    block.FindWeights();
    typename Block::RowFinder finder;
    if (next < num_items) finder = block.FindPosition(list, next, in_split);
    WaitForCopies<0>();
    __syncthreads();
    block.FindPage(&finder);
    typename Block::Values values = {};
    block.AddChunks(values);
    block.FindRow(finder, 1 - at);
    if (block.item().num_splits == 1) {
      block.FinishSplit(values);
    } else {
      block.StorePartial(values);
    }
    if (next >= num_items) break;
    index = next;
    at = 1 - at;
    __syncthreads();  // nobody reads what was there before
    block.Begin(list, index, ranges, at);
  }
}

}  // namespace hillstar::cuda
