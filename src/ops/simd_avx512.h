// The lanes of ops/simd.h in AVX-512 with VNNI. The comments hold for every level. Included by it
// alone.
#pragma once

#include <immintrin.h>

#include <cstring>

namespace hillstar::HILLSTAR_LEVEL {

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Bytes {
  __m512i v;
};  // 64 bytes: lane r holds bytes 4r..4r+3
struct Quad {
  __m512i v;
};  // four int8 for every lane

SIMD_INLINE F32 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
SIMD_INLINE void Store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
SIMD_INLINE F32 Set(float x) { return {_mm512_set1_ps(x)}; }
SIMD_INLINE F32 Add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
SIMD_INLINE F32 Sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
SIMD_INLINE F32 Mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
SIMD_INLINE F32 Div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
SIMD_INLINE F32 Fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so Max(-0, +0) = +0; Min is a < b ? a : b.
SIMD_INLINE F32 Max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
SIMD_INLINE F32 Min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
SIMD_INLINE F32 Rint(F32 a) { return {_mm512_roundscale_ps(a.v, 0)}; }
SIMD_INLINE F32 ToFloat(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
SIMD_INLINE I32 ToInt(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
SIMD_INLINE F32 ZeroWhereLess(F32 x, float limit, F32 a) {
  const __mmask16 keep = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(keep, a.v)};
}
SIMD_INLINE F32 LoadHalf(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
SIMD_INLINE I32 SetInt(int32_t x) { return {_mm512_set1_epi32(x)}; }
SIMD_INLINE I32 AddInt(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
SIMD_INLINE I32 SubInt(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
template <int kBits>
SIMD_INLINE I32 ShiftLeft(I32 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
// Copies of the sign come in.
template <int kBits>
SIMD_INLINE I32 ShiftRight(I32 a) {
  return {_mm512_srai_epi32(a.v, kBits)};
}
SIMD_INLINE I32 AndInt(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
SIMD_INLINE I32 AsInt(F32 a) { return {_mm512_castps_si512(a.v)}; }
SIMD_INLINE F32 AsFloat(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
// 16 integers to bytes; those beyond a byte become the nearest one.
SIMD_INLINE void StoreBytes(int8_t* p, I32 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}
// 64 integers to bytes, likewise.
SIMD_INLINE Bytes PackBytes(const I32 (&a)[4]) {
  const __m512i ab = _mm512_packs_epi32(a[0].v, a[1].v), cd = _mm512_packs_epi32(a[2].v, a[3].v);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd))};
}
SIMD_INLINE Bytes LoadBytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
SIMD_INLINE void StoreAll(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a.v); }
SIMD_INLINE Bytes LowNibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
SIMD_INLINE Bytes HighNibbles(Bytes a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
SIMD_INLINE Bytes FlipSign(Bytes a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(-128))}; }
SIMD_INLINE Quad Broadcast(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return {_mm512_set1_epi32(word)};
}
// acc[r] += sum of u[4r + j] * x[j], u unsigned, x signed.
// Written as an instruction: g++ 12 copies accumulators around the intrinsic.
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, Quad x) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(acc.v) : "v"(u.v), "v"(x.v));
  return acc;
}
// The same with the four bytes at p: one instruction reads, broadcasts and multiplies.
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, const int8_t* p) {
  struct __attribute__((may_alias, packed)) Word {
    int32_t bytes;
  };
  __asm__("vpdpbusd %2%{1to16%}, %1, %0"
          : "+v"(acc.v)
          : "v"(u.v), "m"(*reinterpret_cast<const Word*>(p)));
  return acc;
}
// acc[r] += sum of the four signed bytes of lane r.
SIMD_INLINE I32 AddQuads(I32 acc, Bytes a) {
  return {_mm512_dpbusd_epi32(acc.v, _mm512_set1_epi8(1), a.v)};
}
// True if every lane is +0 or -0; false if one is NaN.
SIMD_INLINE bool AllZero(F32 a) {
  return _mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
}
// Bit r is set if a > b in lane r; false with a NaN.
SIMD_INLINE uint32_t GreaterMask(F32 a, F32 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
SIMD_INLINE float Largest(F32 a) { return _mm512_reduce_max_ps(a.v); }
SIMD_INLINE I32 AbsBits(F32 a) {
  return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}
SIMD_INLINE I32 MaxInt(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
SIMD_INLINE I32 MinInt(I32 a, I32 b) { return {_mm512_min_epi32(a.v, b.v)}; }
SIMD_INLINE int32_t LargestInt(I32 a) { return _mm512_reduce_max_epi32(a.v); }
SIMD_INLINE int32_t SumLanes(I32 a) { return _mm512_reduce_add_epi32(a.v); }
// The fixed tree over 16 lanes: lane j takes lane j + 8, then + 4, + 2, + 1.
SIMD_INLINE float TreeSum(F32 a) {
  const __m256 upper = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a.v), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace hillstar::HILLSTAR_LEVEL
