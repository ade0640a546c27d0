// Blocks, threads, barriers and what lanes of a warp do together.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static  // blocks run one after another

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace hillstar::emulated {

inline constexpr int kWarp = 32;

// Runs `thread` for every thread of every block. `dynamic_shared` bytes at DynamicShared().
void RunGrid(const char* kernel, dim3 grid, dim3 block, size_t dynamic_shared,
             const std::function<void()>& thread);
uint8_t* DynamicSharedBytes();

void BlockBarrier();
// Waits for the lanes of `mask`, of which this is one; then `together` runs once with the arguments
// of all of them, null for others; it writes the lanes' results into them.
void WarpTogether(uint32_t mask, void* arguments, void (*together)(void* const* lanes));

// A copy behind the running thread's back: what it overwrites is gone at once, what it brings is
// there only when the thread has waited for it, as late as it may be.
void DeferCopy(void* to, const void* from, size_t num_bytes, bool valid);
void CommitCopyGroup();
void FinishCopies(int pending);

// A barrier in shared memory that copies may belong to. A phase ends when all have arrived and all
// bytes that they expect have been asked for; copies are there when a thread has waited for it.
void InitBarrier(uint64_t* barrier, int arrivals);
void Arrive(uint64_t* barrier, size_t expected_bytes);
void BulkCopy(void* to, const void* from, size_t num_bytes, uint64_t* barrier);
void ArriveAfterCopies(uint64_t* barrier);  // with all that DeferCopy was asked for
void WaitForBarrier(uint64_t* barrier, uint32_t parity);

// A barrier of some of a block's threads, by its number.
void SyncWarps(int number, int threads);

// Grids that have run before this one.
uint64_t NumGrids();

template <typename T>
struct Shuffle {
  T value;
  int source;
  T result;
};
template <typename T>
T ShuffleFrom(uint32_t mask, T value, int source) {
  Shuffle<T> mine{value, source & (kWarp - 1), value};
  WarpTogether(mask, &mine, [](void* const* lanes) {
    for (int i = 0; i < kWarp; ++i) {
      auto* lane = static_cast<Shuffle<T>*>(lanes[i]);
      if (!lane) continue;
      const auto* from = static_cast<const Shuffle<T>*>(lanes[lane->source]);
      if (from) lane->result = from->value;
    }
  });
  return mine.result;
}

}  // namespace hillstar::emulated

inline void __syncthreads() { hillstar::emulated::BlockBarrier(); }
int __syncthreads_or(int predicate);
int __syncthreads_count(int predicate);
inline int LaneOfThread() {
  const unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return int(linear % 32);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  int nothing = 0;
  hillstar::emulated::WarpTogether(mask, &nothing, [](void* const*) {});
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = LaneOfThread();
  return hillstar::emulated::ShuffleFrom(mask, value,
                                         (lane & ~(width - 1)) + (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return hillstar::emulated::ShuffleFrom(mask, value, LaneOfThread() ^ bits);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = LaneOfThread(), to = lane + int(delta);
  return hillstar::emulated::ShuffleFrom(mask, value, to / width == lane / width ? to : lane);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = LaneOfThread();
  return hillstar::emulated::ShuffleFrom(mask, value,
                                         lane % width >= int(delta) ? lane - int(delta) : lane);
}
inline int __reduce_add_sync(unsigned mask, int value) {
  for (int bits = 16; bits > 0; bits /= 2) {
    value = int(unsigned(value) + unsigned(__shfl_xor_sync(mask, value, bits)));
  }
  return value;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  for (int bits = 16; bits > 0; bits /= 2)
    value = std::max(value, __shfl_xor_sync(mask, value, bits));
  return value;
}
inline int __reduce_min_sync(unsigned mask, int value) {
  for (int bits = 16; bits > 0; bits /= 2) {
    value = std::min(value, __shfl_xor_sync(mask, value, bits));
  }
  return value;
}
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// Arithmetic: each rounds once.
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __int2float_rn(int a) { return float(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline int __clzll(long long a) { return std::countl_zero(static_cast<unsigned long long>(a)); }
inline int __ffs(int a) { return a == 0 ? 0 : std::countr_zero(static_cast<unsigned>(a)) + 1; }
inline int __popc(unsigned a) { return std::popcount(a); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = (selector >> (4 * i)) & 15;
    unsigned byte = unsigned(bytes >> (8 * (s & 7))) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}
// Four signed bytes each.
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 4; ++i) sum += int(int8_t(a >> (8 * i))) * int(int8_t(b >> (8 * i)));
  return sum;
}
template <typename T>
T __ldcg(const T* p) {
  return *p;
}
template <typename T, typename U>
T atomicAdd(T* p, U value) {
  const T old = *p;
  *p = T(old + T(value));
  return old;
}
template <typename T, typename U>
T atomicMax(T* p, U value) {
  const T old = *p;
  *p = std::max(old, T(value));
  return old;
}
template <typename T, typename U>
T atomicMin(T* p, U value) {
  const T old = *p;
  *p = std::min(old, T(value));
  return old;
}
template <typename T>
T atomicCAS(T* p, T expected, T value) {
  const T old = *p;
  if (old == expected) *p = value;
  return old;
}
inline void __threadfence() {}
using std::max;
using std::min;
