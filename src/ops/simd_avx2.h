// The lanes of ops/simd.h in AVX2 with FMA and F16C, two vectors of eight lanes each. Included by
// it alone.
#pragma once

#include <immintrin.h>

#include <cstring>

namespace hillstar::HILLSTAR_LEVEL {

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
// Of 16 e4m3 codes the values times 2^-8: moved by 7 bits a code is a half, whose exponent has a
// bias of 15 instead of 7. The codes of NaN count as +-480.
SIMD_INLINE F32 LoadE4m3(const uint8_t* p) {
  const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i sign = _mm256_slli_epi16(_mm256_srli_epi16(code, 7), 15);
  const __m256i rest = _mm256_srli_epi16(_mm256_slli_epi16(code, 9), 2);
  const __m256i half = _mm256_or_si256(sign, rest);
  return {{_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
           _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))}};
}
SIMD_INLINE I32 SetInt(int32_t x) { SIMD_BOTH(I32, _mm256_set1_epi32(x)); }
SIMD_INLINE I32 AddInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_add_epi32(a.v[h], b.v[h])); }
SIMD_INLINE I32 SubInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_sub_epi32(a.v[h], b.v[h])); }
template <int kBits>
SIMD_INLINE I32 ShiftLeft(I32 a) {
  SIMD_BOTH(I32, _mm256_slli_epi32(a.v[h], kBits));
}
template <int kBits>
SIMD_INLINE I32 ShiftRight(I32 a) {
  SIMD_BOTH(I32, _mm256_srai_epi32(a.v[h], kBits));
}
SIMD_INLINE I32 AndInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_and_si256(a.v[h], b.v[h])); }
SIMD_INLINE I32 AsInt(F32 a) { SIMD_BOTH(I32, _mm256_castps_si256(a.v[h])); }
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
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, const int8_t* p) { return Dot4(acc, u, Broadcast(p)); }
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
SIMD_INLINE uint32_t GreaterMask(F32 a, F32 b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.v[0], b.v[0], _CMP_GT_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.v[1], b.v[1], _CMP_GT_OQ));
  return static_cast<uint32_t>(low | (high << 8));
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
SIMD_INLINE I32 MinInt(I32 a, I32 b) { SIMD_BOTH(I32, _mm256_min_epi32(a.v[h], b.v[h])); }
// All lanes folded into one by an operation whose order does not matter.
template <typename Op>
SIMD_INLINE int32_t FoldLanes(I32 a, const Op& op) {
  __m256i r = op(a.v[0], a.v[1]);
  r = op(r, _mm256_permute2x128_si256(r, r, 1));
  r = op(r, _mm256_shuffle_epi32(r, 0x4e));
  r = op(r, _mm256_shuffle_epi32(r, 0xb1));
  return _mm256_cvtsi256_si32(r);
}
SIMD_INLINE int32_t LargestInt(I32 a) {
  return FoldLanes(a, [](__m256i x, __m256i y) { return _mm256_max_epi32(x, y); });
}
SIMD_INLINE int32_t SumLanes(I32 a) {
  return FoldLanes(a, [](__m256i x, __m256i y) { return _mm256_add_epi32(x, y); });
}
SIMD_INLINE float TreeSum(F32 a) {
  const __m256 eight = _mm256_add_ps(a.v[0], a.v[1]);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace hillstar::HILLSTAR_LEVEL
