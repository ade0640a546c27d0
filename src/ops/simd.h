// Sixteen lanes of floats, integers and byte quads, the same operations at three levels: AVX-512
// VNNI, AVX2 with FMA, and plain C++. Every operation is one IEEE operation (or an exact integer
// one) a lane, so a kernel written with them gives the same bits at every level.
//
// Included only by kernel files, which are compiled once a level. Everything lives in the level's
// own namespace, so that no function compiled for one level is ever linked into another.
#pragma once

#include <cstdint>
#include <cstring>

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

#if HILLSTAR_SIMD >= 1
#include <immintrin.h>
#endif

#define SIMD_INLINE static inline __attribute__((always_inline))

namespace hillstar::HILLSTAR_LEVEL {

inline constexpr int kLanes = 16;

#if HILLSTAR_SIMD == 2

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
SIMD_INLINE F32 Abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
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
SIMD_INLINE I32 LoadInt(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
SIMD_INLINE void StoreInt(int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
SIMD_INLINE I32 SetInt(int32_t x) { return {_mm512_set1_epi32(x)}; }
SIMD_INLINE I32 AddInt(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
SIMD_INLINE I32 SubInt(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
template <int kBits>
SIMD_INLINE I32 ShiftLeft(I32 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
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
SIMD_INLINE float Largest(F32 a) { return _mm512_reduce_max_ps(a.v); }
SIMD_INLINE I32 AbsBits(F32 a) {
  return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}
SIMD_INLINE I32 MaxInt(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
SIMD_INLINE int32_t LargestInt(I32 a) { return _mm512_reduce_max_epi32(a.v); }
SIMD_INLINE int32_t SumLanes(I32 a) { return _mm512_reduce_add_epi32(a.v); }

#elif HILLSTAR_SIMD >= 1

struct F32 {
  __m256 v[2];
};
struct I32 {
  __m256i v[2];
};
struct Bytes {
  __m256i v[2];
};
struct Quad {
  __m256i even, odd;
};  // bytes 0 and 2, 1 and 3, as int16

#define SIMD_BOTH(type, expression)                \
  type r;                                          \
  for (int h = 0; h < 2; ++h) r.v[h] = expression; \
  return r

SIMD_INLINE F32 Load(const float* p) { SIMD_BOTH(F32, _mm256_loadu_ps(p + 8 * h)); }
SIMD_INLINE void Store(float* p, F32 a) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
SIMD_INLINE F32 Set(float x) { SIMD_BOTH(F32, _mm256_set1_ps(x)); }
SIMD_INLINE F32 Add(F32 a, F32 b) { SIMD_BOTH(F32, _mm256_add_ps(a.v[h], b.v[h])); }
SIMD_INLINE F32 Sub(F32 a, F32 b) { SIMD_BOTH(F32, _mm256_sub_ps(a.v[h], b.v[h])); }
SIMD_INLINE F32 Mul(F32 a, F32 b) { SIMD_BOTH(F32, _mm256_mul_ps(a.v[h], b.v[h])); }
SIMD_INLINE F32 Div(F32 a, F32 b) { SIMD_BOTH(F32, _mm256_div_ps(a.v[h], b.v[h])); }
SIMD_INLINE F32 Fma(F32 a, F32 b, F32 c) {
  SIMD_BOTH(F32, _mm256_fmadd_ps(a.v[h], b.v[h], c.v[h]));
}
SIMD_INLINE F32 Max(F32 a, F32 b) { SIMD_BOTH(F32, _mm256_max_ps(a.v[h], b.v[h])); }
SIMD_INLINE F32 Min(F32 a, F32 b) { SIMD_BOTH(F32, _mm256_min_ps(a.v[h], b.v[h])); }
SIMD_INLINE F32 Abs(F32 a) { SIMD_BOTH(F32, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v[h])); }
SIMD_INLINE F32 Rint(F32 a) {
  SIMD_BOTH(F32, _mm256_round_ps(a.v[h], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SIMD_INLINE F32 ToFloat(I32 a) { SIMD_BOTH(F32, _mm256_cvtepi32_ps(a.v[h])); }
SIMD_INLINE I32 ToInt(F32 a) { SIMD_BOTH(I32, _mm256_cvtps_epi32(a.v[h])); }
SIMD_INLINE F32 ZeroWhereLess(F32 x, float limit, F32 a) {
  SIMD_BOTH(F32, _mm256_and_ps(_mm256_cmp_ps(x.v[h], _mm256_set1_ps(limit), _CMP_NLT_UQ), a.v[h]));
}
SIMD_INLINE F32 LoadHalf(const uint8_t* p) {
  SIMD_BOTH(F32, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * h))));
}
SIMD_INLINE I32 LoadInt(const int32_t* p) {
  SIMD_BOTH(I32, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8 * h)));
}
SIMD_INLINE void StoreInt(int32_t* p, I32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v[0]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.v[1]);
}
SIMD_INLINE I32 SetInt(int32_t x) { SIMD_BOTH(I32, _mm256_set1_epi32(x)); }
SIMD_INLINE I32 AddInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_add_epi32(a.v[h], b.v[h])); }
SIMD_INLINE I32 SubInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_sub_epi32(a.v[h], b.v[h])); }
template <int kBits>
SIMD_INLINE I32 ShiftLeft(I32 a) {
  SIMD_BOTH(I32, _mm256_slli_epi32(a.v[h], kBits));
}
SIMD_INLINE F32 AsFloat(I32 a) { SIMD_BOTH(F32, _mm256_castsi256_ps(a.v[h])); }
SIMD_INLINE void StoreBytes(int8_t* p, I32 a) {
  const __m256i words = _mm256_packs_epi32(a.v[0], a.v[1]);  // 0-3, 8-11, 4-7, 12-15
  const __m256i order = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(order), _mm256_extracti128_si256(order, 1)));
}
SIMD_INLINE Bytes PackBytes(const I32 (&a)[4]) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  Bytes r;
  for (int h = 0; h < 2; ++h) {
    const __m256i ab = _mm256_packs_epi32(a[2 * h].v[0], a[2 * h].v[1]);
    const __m256i cd = _mm256_packs_epi32(a[2 * h + 1].v[0], a[2 * h + 1].v[1]);
    r.v[h] = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
  }
  return r;
}
SIMD_INLINE Bytes LoadBytes(const uint8_t* p) {
  SIMD_BOTH(Bytes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * h)));
}
SIMD_INLINE void StoreAll(uint8_t* p, Bytes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v[0]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.v[1]);
}
SIMD_INLINE Bytes LowNibbles(Bytes a) {
  SIMD_BOTH(Bytes, _mm256_and_si256(a.v[h], _mm256_set1_epi8(15)));
}
SIMD_INLINE Bytes HighNibbles(Bytes a) {
  SIMD_BOTH(Bytes, _mm256_and_si256(_mm256_srli_epi16(a.v[h], 4), _mm256_set1_epi8(15)));
}
SIMD_INLINE Bytes FlipSign(Bytes a) {
  SIMD_BOTH(Bytes, _mm256_xor_si256(a.v[h], _mm256_set1_epi8(-128)));
}
SIMD_INLINE Quad Broadcast(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  const __m256i x = _mm256_set1_epi32(word);
  return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}
// maddubs would saturate with two products of up to 255 * 127, so the bytes are widened: exact.
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, Quad x) {
  for (int h = 0; h < 2; ++h) {
    const __m256i even = _mm256_and_si256(u.v[h], _mm256_set1_epi16(255));
    const __m256i odd = _mm256_srli_epi16(u.v[h], 8);
    const __m256i sum =
        _mm256_add_epi32(_mm256_madd_epi16(even, x.even), _mm256_madd_epi16(odd, x.odd));
    acc.v[h] = _mm256_add_epi32(acc.v[h], sum);
  }
  return acc;
}
SIMD_INLINE I32 AddQuads(I32 acc, Bytes a) {
  for (int h = 0; h < 2; ++h) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), a.v[h]);
    acc.v[h] = _mm256_add_epi32(acc.v[h], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  return acc;
}
SIMD_INLINE bool AllZero(F32 a) {
  const __m256 zero = _mm256_setzero_ps();
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a.v[0], zero, _CMP_NEQ_UQ),
                                         _mm256_cmp_ps(a.v[1], zero, _CMP_NEQ_UQ))) == 0;
}
SIMD_INLINE float Largest(F32 a) {
  alignas(32) float lanes[kLanes];
  Store(lanes, a);
  float m = lanes[0];
  for (int i = 1; i < kLanes; ++i) m = lanes[i] > m ? lanes[i] : m;
  return m;
}
SIMD_INLINE I32 AbsBits(F32 a) {
  SIMD_BOTH(I32, _mm256_and_si256(_mm256_castps_si256(a.v[h]), _mm256_set1_epi32(0x7fffffff)));
}
SIMD_INLINE I32 MaxInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_max_epi32(a.v[h], b.v[h])); }
SIMD_INLINE int32_t LargestInt(I32 a) {
  __m256i m = _mm256_max_epi32(a.v[0], a.v[1]);
  m = _mm256_max_epi32(m, _mm256_permute2x128_si256(m, m, 1));
  m = _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0x4e));
  m = _mm256_max_epi32(m, _mm256_shuffle_epi32(m, 0xb1));
  return _mm256_cvtsi256_si32(m);
}
SIMD_INLINE int32_t SumLanes(I32 a) {
  __m256i s = _mm256_add_epi32(a.v[0], a.v[1]);
  s = _mm256_add_epi32(s, _mm256_permute2x128_si256(s, s, 1));
  s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4e));
  s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xb1));
  return _mm256_cvtsi256_si32(s);
}

#else

struct F32 {
  float v[kLanes];
};
struct I32 {
  int32_t v[kLanes];
};
struct Bytes {
  uint8_t v[4 * kLanes];
};
struct Quad {
  int8_t v[4];
};

#define SIMD_EACH(type, expression)                     \
  type r;                                               \
  for (int i = 0; i < kLanes; ++i) r.v[i] = expression; \
  return r

SIMD_INLINE int32_t Wrap(uint32_t x) { return static_cast<int32_t>(x); }
SIMD_INLINE uint32_t Bits(int32_t x) { return static_cast<uint32_t>(x); }

SIMD_INLINE F32 Load(const float* p) { SIMD_EACH(F32, p[i]); }
SIMD_INLINE void Store(float* p, F32 a) { std::memcpy(p, a.v, sizeof a.v); }
SIMD_INLINE F32 Set(float x) { SIMD_EACH(F32, x); }
SIMD_INLINE F32 Add(F32 a, F32 b) { SIMD_EACH(F32, a.v[i] + b.v[i]); }
SIMD_INLINE F32 Sub(F32 a, F32 b) { SIMD_EACH(F32, a.v[i] - b.v[i]); }
SIMD_INLINE F32 Mul(F32 a, F32 b) { SIMD_EACH(F32, a.v[i] * b.v[i]); }
SIMD_INLINE F32 Div(F32 a, F32 b) { SIMD_EACH(F32, a.v[i] / b.v[i]); }
SIMD_INLINE F32 Fma(F32 a, F32 b, F32 c) { SIMD_EACH(F32, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
SIMD_INLINE F32 Max(F32 a, F32 b) { SIMD_EACH(F32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
SIMD_INLINE F32 Min(F32 a, F32 b) { SIMD_EACH(F32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
SIMD_INLINE F32 Abs(F32 a) { SIMD_EACH(F32, __builtin_fabsf(a.v[i])); }
SIMD_INLINE F32 Rint(F32 a) { SIMD_EACH(F32, __builtin_rintf(a.v[i])); }
SIMD_INLINE F32 ToFloat(I32 a) { SIMD_EACH(F32, static_cast<float>(a.v[i])); }
SIMD_INLINE I32 ToInt(F32 a) { SIMD_EACH(I32, static_cast<int32_t>(__builtin_rintf(a.v[i]))); }
SIMD_INLINE F32 ZeroWhereLess(F32 x, float limit, F32 a) {
  SIMD_EACH(F32, x.v[i] < limit ? 0.0f : a.v[i]);
}
SIMD_INLINE float HalfValue(uint32_t bits) {
  const uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  float value = 0;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24f;
  } else {
    const uint32_t word = ((exponent == 31 ? 255u : exponent + 112u) << 23) | (mantissa << 13);
    std::memcpy(&value, &word, sizeof value);
  }
  return bits & 0x8000u ? -value : value;
}
SIMD_INLINE F32 LoadHalf(const uint8_t* p) {
  SIMD_EACH(F32, HalfValue(static_cast<uint32_t>(p[2 * i] | (p[2 * i + 1] << 8))));
}
SIMD_INLINE I32 LoadInt(const int32_t* p) { SIMD_EACH(I32, p[i]); }
SIMD_INLINE void StoreInt(int32_t* p, I32 a) { std::memcpy(p, a.v, sizeof a.v); }
SIMD_INLINE I32 SetInt(int32_t x) { SIMD_EACH(I32, x); }
SIMD_INLINE I32 AddInt(I32 a, I32 b) { SIMD_EACH(I32, Wrap(Bits(a.v[i]) + Bits(b.v[i]))); }
SIMD_INLINE I32 SubInt(I32 a, I32 b) { SIMD_EACH(I32, Wrap(Bits(a.v[i]) - Bits(b.v[i]))); }
template <int kBits>
SIMD_INLINE I32 ShiftLeft(I32 a) {
  SIMD_EACH(I32, Wrap(Bits(a.v[i]) << kBits));
}
SIMD_INLINE F32 AsFloat(I32 a) {
  F32 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
}
SIMD_INLINE int8_t NearestByte(int32_t x) {
  return static_cast<int8_t>(x > 127 ? 127 : x < -128 ? -128 : x);
}
SIMD_INLINE void StoreBytes(int8_t* p, I32 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = NearestByte(a.v[i]);
}
SIMD_INLINE Bytes PackBytes(const I32 (&a)[4]) {
  Bytes r;
  for (int i = 0; i < 4 * kLanes; ++i) {
    r.v[i] = static_cast<uint8_t>(NearestByte(a[i / kLanes].v[i % kLanes]));
  }
  return r;
}
SIMD_INLINE Bytes LoadBytes(const uint8_t* p) {
  Bytes r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
SIMD_INLINE void StoreAll(uint8_t* p, Bytes a) { std::memcpy(p, a.v, sizeof a.v); }
#define SIMD_EACH_BYTE(expression)                                                \
  Bytes r;                                                                        \
  for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = static_cast<uint8_t>(expression); \
  return r
SIMD_INLINE Bytes LowNibbles(Bytes a) { SIMD_EACH_BYTE(a.v[i] & 15); }
SIMD_INLINE Bytes HighNibbles(Bytes a) { SIMD_EACH_BYTE(a.v[i] >> 4); }
SIMD_INLINE Bytes FlipSign(Bytes a) { SIMD_EACH_BYTE(a.v[i] ^ 128); }
SIMD_INLINE Quad Broadcast(const int8_t* p) {
  Quad q;
  std::memcpy(q.v, p, sizeof q.v);
  return q;
}
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, Quad x) {
  for (int i = 0; i < kLanes; ++i) {
    int32_t sum = 0;
    for (int j = 0; j < 4; ++j) sum += int32_t{u.v[4 * i + j]} * int32_t{x.v[j]};
    acc.v[i] = Wrap(Bits(acc.v[i]) + Bits(sum));
  }
  return acc;
}
SIMD_INLINE I32 AddQuads(I32 acc, Bytes a) {
  const auto at = [&](int j) { return static_cast<int8_t>(a.v[j]); };
  SIMD_EACH(I32, acc.v[i] + at(4 * i) + at(4 * i + 1) + at(4 * i + 2) + at(4 * i + 3));
}
SIMD_INLINE bool AllZero(F32 a) {
  for (float lane : a.v) {
    if (!(lane == 0.0f)) return false;
  }
  return true;
}
SIMD_INLINE float Largest(F32 a) {
  float m = a.v[0];
  for (int i = 1; i < kLanes; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
SIMD_INLINE I32 AbsBits(F32 a) {
  I32 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  for (int32_t& lane : r.v) lane &= 0x7fffffff;
  return r;
}
SIMD_INLINE I32 MaxInt(I32 a, I32 b) { SIMD_EACH(I32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
SIMD_INLINE int32_t LargestInt(I32 a) {
  int32_t m = a.v[0];
  for (int i = 1; i < kLanes; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
SIMD_INLINE int32_t SumLanes(I32 a) {
  uint32_t sum = 0;
  for (int32_t lane : a.v) sum += Bits(lane);
  return Wrap(sum);
}

#endif

#if HILLSTAR_SIMD != 2
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, const int8_t* p) { return Dot4(acc, u, Broadcast(p)); }
#endif

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

// The fixed tree over 16 lanes: lane j takes lane j + 8, then + 4, + 2, + 1.
SIMD_INLINE float TreeSum(F32 a) {
#if HILLSTAR_SIMD >= 1
#if HILLSTAR_SIMD == 2
  const __m256 upper = _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(a.v), 1));
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper);
#else
  const __m256 eight = _mm256_add_ps(a.v[0], a.v[1]);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  for (int stride = kLanes / 2; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) a.v[j] += a.v[j + stride];
  }
  return a.v[0];
#endif
}

}  // namespace hillstar::HILLSTAR_LEVEL
