// Sixteen lanes of floats, integers and byte quads, the same operations at three levels: AVX-512
// VNNI, AVX2 with FMA, and plain C++. Every operation is one IEEE operation (or an exact integer
// one) a lane, so a kernel written with them gives the same bits at every level.
//
// Included only by kernel files, which are compiled once a level. Everything lives in the level's
// own namespace, so that no function compiled for one level is ever linked into another.
#pragma once

#include <cstdint>
#include <cstring>

#define SIMD_INLINE static inline __attribute__((always_inline))

// HILLSTAR_SIMD comes from the build: 0 plain C++, 1 AVX2, 2 AVX-512 VNNI.
#if !defined(HILLSTAR_SIMD)
#error "a kernel file is compiled through hillstar_kernels() of src/ops/CMakeLists.txt"
#elif HILLSTAR_SIMD == 2
#define HILLSTAR_LEVEL avx512
#elif HILLSTAR_SIMD == 1
#define HILLSTAR_LEVEL avx2
#else
#define HILLSTAR_LEVEL generic
#endif

namespace hillstar::HILLSTAR_LEVEL {
inline constexpr int kLanes = 16;
}

#if HILLSTAR_SIMD == 2
#include "ops/simd_avx512.h"
#elif HILLSTAR_SIMD == 1
#include "ops/simd_avx2.h"
#else
#include "ops/simd_generic.h"
#endif

namespace hillstar::HILLSTAR_LEVEL {

// Lanes 0..n-1 from memory, the others 0. 0 <= n <= 16.
SIMD_INLINE F32 LoadSome(const float* p, int64_t n) {
  if (n >= kLanes) return Load(p);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Load(lanes);
}
SIMD_INLINE void StoreSome(float* p, F32 a, int64_t n) {
  if (n >= kLanes) return Store(p, a);
  float lanes[kLanes];
  Store(lanes, a);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// Sum of n signed bytes.
SIMD_INLINE int32_t SumBytes(const int8_t* p, int64_t n) {
  I32 sums = SetInt(0);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    sums = AddQuads(sums, LoadBytes(reinterpret_cast<const uint8_t*>(p + i)));
  }
  int32_t sum = SumLanes(sums);
  for (; i < n; ++i) sum += p[i];
  return sum;
}

}  // namespace hillstar::HILLSTAR_LEVEL
