#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Tokens that share one pass over a panel: as many as leave the accumulators in registers.
#if defined(__AVX512VNNI__)
constexpr int kMaxTokens = 8;
constexpr int kMaxTokensW15 = 8;
#else
constexpr int kMaxTokens = 2;
constexpr int kMaxTokensW15 = 1;
#endif
// Activations of a token block stay in the first-level cache while the panels go by.
constexpr int64_t kTokenBlockBytes = 24 * 1024;
constexpr int kVectorBytes = 64;
constexpr int kQuads = kGroup / 4;

struct TokenRows {
  const int8_t* hi;
  const int8_t* lo;
  const float* scale;
  const int32_t* sum;
};

// sum of u * x over one plane of a tile, for the high and the low plane of each token. A few
// tokens only: two chains each, else the latency of one chain would be the limit.
template <int kTokens>
SIMD_INLINE void DotPlane(const uint8_t* plane, const TokenRows* x, int64_t at, I32* high,
                          I32* low) {
  if constexpr (kTokens == 1) {
    I32 h = SetInt(0), l = SetInt(0);
    for (int q = 0; q < kQuads; q += 2) {
      const Bytes a = LoadBytes(plane + q * kVectorBytes);
      const Bytes b = LoadBytes(plane + (q + 1) * kVectorBytes);
      high[0] = Dot4(high[0], a, Broadcast(x[0].hi + at + 4 * q));
      low[0] = Dot4(low[0], a, Broadcast(x[0].lo + at + 4 * q));
      h = Dot4(h, b, Broadcast(x[0].hi + at + 4 * q + 4));
      l = Dot4(l, b, Broadcast(x[0].lo + at + 4 * q + 4));
    }
    high[0] = AddInt(high[0], h);
    low[0] = AddInt(low[0], l);
  } else {
    for (int q = 0; q < kQuads; ++q) {
      const Bytes u = LoadBytes(plane + q * kVectorBytes);
      for (int t = 0; t < kTokens; ++t) {
        high[t] = Dot4(high[t], u, Broadcast(x[t].hi + at + 4 * q));
        low[t] = Dot4(low[t], u, Broadcast(x[t].lo + at + 4 * q));
      }
    }
  }
}

template <int kTokens>
SIMD_INLINE void DotNibbles(const uint8_t* plane, const TokenRows* x, int64_t at, I32* high,
                            I32* low) {
  I32 h = SetInt(0), l = SetInt(0);  // second chains of a single token
  for (int q = 0; q < kQuads / 2; ++q) {
    const Bytes packed = LoadBytes(plane + q * kVectorBytes);
    const Bytes first = LowNibbles(packed), second = HighNibbles(packed);
    for (int t = 0; t < kTokens; ++t) {
      const int8_t* hi = x[t].hi + at + 4 * q;
      const int8_t* lo = x[t].lo + at + 4 * q;
      high[t] = Dot4(high[t], first, Broadcast(hi));
      low[t] = Dot4(low[t], first, Broadcast(lo));
      if constexpr (kTokens == 1) {
        h = Dot4(h, second, Broadcast(hi + kGroup / 2));
        l = Dot4(l, second, Broadcast(lo + kGroup / 2));
      } else {
        high[t] = Dot4(high[t], second, Broadcast(hi + kGroup / 2));
        low[t] = Dot4(low[t], second, Broadcast(lo + kGroup / 2));
      }
    }
  }
  if constexpr (kTokens == 1) {
    high[0] = AddInt(high[0], h);
    low[0] = AddInt(low[0], l);
  }
}

// Weights are stored with an offset (8 or 128) to make them unsigned; -offset * sum(x) removes it.
template <int kTokens, int kOffsetBits>
SIMD_INLINE void StartSums(const TokenRows* x, int64_t g, I32* high, I32* low) {
  for (int t = 0; t < kTokens; ++t) {
    high[t] = SetInt(0);
    low[t] = SetInt(-(x[t].sum[g] * (1 << kOffsetBits)));
  }
}

template <int kTokens>
SIMD_INLINE void AddGroup(F32 weight_scale, const TokenRows* x, int64_t g, const F32* d,
                          F32* segment) {
  for (int t = 0; t < kTokens; ++t) {
    segment[t] = Fma(d[t], Mul(weight_scale, Set(x[t].scale[g])), segment[t]);
  }
}

SIMD_INLINE I32 Combine(I32 high, I32 low) { return AddInt(ShiftLeft<8>(high), low); }

template <WeightFormat kFormat, int kTokens>
SIMD_INLINE void Group(const uint8_t* tile, const TokenRows* x, int64_t g, F32* segment) {
  I32 high[kTokens], low[kTokens];
  F32 d[kTokens];
  const int64_t at = g * kGroup;
  if constexpr (kFormat == WeightFormat::kW4) {
    StartSums<kTokens, 3>(x, g, high, low);
    DotNibbles<kTokens>(tile, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) d[t] = ToFloat(Combine(high[t], low[t]));
    AddGroup<kTokens>(LoadHalf(tile + kQuads / 2 * kVectorBytes), x, g, d, segment);
  } else if constexpr (kFormat == WeightFormat::kW8) {
    StartSums<kTokens, 7>(x, g, high, low);
    DotPlane<kTokens>(tile, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) d[t] = ToFloat(Combine(high[t], low[t]));
    AddGroup<kTokens>(LoadHalf(tile + kQuads * kVectorBytes), x, g, d, segment);
  } else {
    StartSums<kTokens, 7>(x, g, high, low);
    DotPlane<kTokens>(tile, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) d[t] = ToFloat(Combine(high[t], low[t]));
    StartSums<kTokens, 7>(x, g, high, low);
    DotPlane<kTokens>(tile + kQuads * kVectorBytes, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) {
      d[t] = Fma(Set(256.0f), d[t], ToFloat(Combine(high[t], low[t])));
    }
    const uint8_t* scales = tile + 2 * kQuads * kVectorBytes;
    const F32 scale = Load(reinterpret_cast<const float*>(scales));
    AddGroup<kTokens>(Mul(scale, Set(0x1p-8f)), x, g, d, segment);
  }
}

template <WeightFormat kFormat>
constexpr int64_t kTileBytes = kFormat == WeightFormat::kW4   ? kQuads / 2 * kVectorBytes + 32
                               : kFormat == WeightFormat::kW8 ? kQuads* kVectorBytes + 32
                                                              : 2 * kQuads* kVectorBytes + 64;

// One panel, kTokens tokens: total[t] = the 16 rows' results.
template <WeightFormat kFormat, int kTokens>
SIMD_INLINE void PanelDot(const uint8_t* tile, const TokenRows* x, int64_t num_groups, F32* total) {
  for (int t = 0; t < kTokens; ++t) total[t] = Set(0.0f);
  for (int64_t first = 0; first < num_groups; first += kSegmentGroups) {
    const int64_t last = first + kSegmentGroups < num_groups ? first + kSegmentGroups : num_groups;
    F32 segment[kTokens];
    for (int t = 0; t < kTokens; ++t) segment[t] = Set(0.0f);
    for (int64_t g = first; g < last; ++g, tile += kTileBytes<kFormat>) {
      Group<kFormat, kTokens>(tile, x, g, segment);
    }
    for (int t = 0; t < kTokens; ++t) total[t] = Add(total[t], segment[t]);
  }
}

// A linear layer's slice as seen by the loops below; `up` is null for a plain linear layer.
struct Slice {
  const LinearSlice& s;
  const WeightView* up;
};

template <WeightFormat kFormat, int kTokens>
void Tokens(const Slice& slice, int64_t panel, int64_t first_token) {
  const LinearSlice& s = slice.s;
  const int64_t num_groups = s.x.groups();
  TokenRows x[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const ActivationPlanes row = s.x.FromRow(s.x_row(first_token + t));
    x[t] = {row.hi, row.lo, row.scale, row.sum};
  }
  F32 total[kTokens];
  PanelDot<kFormat, kTokens>(s.w.panel(panel), x, num_groups, total);
  if (slice.up) {
    F32 up[kTokens];
    PanelDot<kFormat, kTokens>(slice.up->panel(panel), x, num_groups, up);
    for (int t = 0; t < kTokens; ++t) total[t] = Mul(Silu(total[t]), up[t]);
  }
  const int64_t row = panel * kPanelRows;
  for (int t = 0; t < kTokens; ++t) {
    StoreSome(s.y + (first_token + t) * s.y_stride + row, total[t], s.w.rows - row);
  }
}

template <WeightFormat kFormat>
void TokenRange(const Slice& slice, int64_t panel, int64_t token, int64_t end) {
  constexpr int kMost = kFormat == WeightFormat::kW15 ? kMaxTokensW15 : kMaxTokens;
  for (; token + kMost <= end; token += kMost) Tokens<kFormat, kMost>(slice, panel, token);
  if constexpr (kMost > 4) {
    if (token + 4 <= end) {
      Tokens<kFormat, 4>(slice, panel, token);
      token += 4;
    }
  }
  if constexpr (kMost > 2) {
    if (token + 2 <= end) {
      Tokens<kFormat, 2>(slice, panel, token);
      token += 2;
    }
  }
  for (; token < end; ++token) Tokens<kFormat, 1>(slice, panel, token);
}

template <WeightFormat kFormat>
void Panels(const Slice& slice) {
  const LinearSlice& s = slice.s;
  int64_t block = kTokenBlockBytes / (2 * s.x.stride()) / kMaxTokens * kMaxTokens;
  if (block < kMaxTokens) block = kMaxTokens;
  for (int64_t token = 0; token < s.num_tokens; token += block) {
    const int64_t end = token + block < s.num_tokens ? token + block : s.num_tokens;
    for (int64_t p = s.first_panel; p < s.first_panel + s.num_panels; ++p) {
      TokenRange<kFormat>(slice, p, token, end);
    }
  }
}

void Dispatch(const Slice& slice) {
  switch (slice.s.w.format) {
    case WeightFormat::kW4: return Panels<WeightFormat::kW4>(slice);
    case WeightFormat::kW8: return Panels<WeightFormat::kW8>(slice);
    case WeightFormat::kW15: return Panels<WeightFormat::kW15>(slice);
    case WeightFormat::kF32: __builtin_trap();
  }
}

}  // namespace

void Linear(const LinearSlice& s) { Dispatch({s, nullptr}); }

void SwiGlu(const SwiGluSlice& s) { Dispatch({s.linear, &s.up}); }

}  // namespace hillstar::HILLSTAR_LEVEL
