// The lanes of ops/simd.h in plain C++. Included by it alone.
#pragma once

#include <cstring>

namespace hillstar::HILLSTAR_LEVEL {

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
SIMD_INLINE F32 LoadE4m3(const uint8_t* p) {
  SIMD_EACH(F32, HalfValue(static_cast<uint32_t>(((p[i] & 128) << 8) | ((p[i] & 127) << 7))));
}
SIMD_INLINE I32 SetInt(int32_t x) { SIMD_EACH(I32, x); }
SIMD_INLINE I32 AddInt(I32 a, I32 b) { SIMD_EACH(I32, Wrap(Bits(a.v[i]) + Bits(b.v[i]))); }
SIMD_INLINE I32 SubInt(I32 a, I32 b) { SIMD_EACH(I32, Wrap(Bits(a.v[i]) - Bits(b.v[i]))); }
template <int kBits>
SIMD_INLINE I32 ShiftLeft(I32 a) {
  SIMD_EACH(I32, Wrap(Bits(a.v[i]) << kBits));
}
template <int kBits>
SIMD_INLINE I32 ShiftRight(I32 a) {
  SIMD_EACH(I32, a.v[i] >> kBits);
}
SIMD_INLINE I32 AndInt(I32 a, I32 b) { SIMD_EACH(I32, a.v[i] & b.v[i]); }
SIMD_INLINE I32 AsInt(F32 a) {
  I32 r;
  std::memcpy(r.v, a.v, sizeof r.v);
  return r;
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
SIMD_INLINE I32 Dot4(I32 acc, Bytes u, const int8_t* p) { return Dot4(acc, u, Broadcast(p)); }
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
SIMD_INLINE uint32_t GreaterMask(F32 a, F32 b) {
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  return mask;
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
SIMD_INLINE I32 MinInt(I32 a, I32 b) { SIMD_EACH(I32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
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
SIMD_INLINE float TreeSum(F32 a) {
  for (int stride = kLanes / 2; stride > 0; stride /= 2) {
    for (int j = 0; j < stride; ++j) a.v[j] += a.v[j + stride];
  }
  return a.v[0];
}

}  // namespace hillstar::HILLSTAR_LEVEL
