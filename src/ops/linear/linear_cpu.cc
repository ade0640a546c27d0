#include "ops/kernels.h"
#include "ops/simd.h"
#include "ops/simd_math.h"
#include "ops/transpose.h"

namespace hillstar::HILLSTAR_LEVEL {
namespace {

// Tokens that share one pass over a panel: as many as leave the accumulators in registers.
#if HILLSTAR_SIMD == 2
constexpr int kMaxTokens = 8;
#else
constexpr int kMaxTokens = 2;
#endif
constexpr int kVectorBytes = 64;
// How far ahead of several tokens' products weights are fetched: the processor's own prefetching
// stops at every 4 KB. A single token's products leave it time enough.
constexpr int kFetchAhead = 2048;
constexpr int kQuads = kGroup / 4;
constexpr int kWord = 4;  // inputs of a quad

// The activations of kTokens tokens: where a quad of one token lies. A single token is read where
// it is; more are packed side by side first, so that one pointer serves all.
//
// Weights are stored with an offset (8 in w4, else 128) that makes them unsigned; it adds
// offset * sum(x) to a group's sum, so the sum starts at the negative of that.
template <int kTokens>
struct TokenBlock {
  const int8_t* quads;   // [inputs / 4][tokens][hi, lo] words of four int8
  const float* scale;    // [groups][tokens]
  const int32_t* start;  // [groups][tokens]

  const int8_t* hi(int64_t quad, int t) const { return quads + (quad * kTokens + t) * (2 * kWord); }
  const int8_t* lo(int64_t quad, int t) const { return hi(quad, t) + kWord; }
};
template <>
struct TokenBlock<1> {
  const int8_t* high;
  const int8_t* low;
  const float* scale;
  const int32_t* sum;  // start = -(sum << OffsetBits)

  const int8_t* hi(int64_t quad, int) const { return high + quad * kWord; }
  const int8_t* lo(int64_t quad, int) const { return low + quad * kWord; }
};

// Words of a group of both planes of kTokens tokens side by side.
template <int kTokens>
SIMD_INLINE void PackGroup(const uint8_t* const* rows, int64_t at, int8_t* out) {
  if constexpr (2 * kTokens == kLanes) {
    TransposeQuads<false>(rows, at, reinterpret_cast<uint8_t*>(out), kVectorBytes);
  } else {
    for (int q = 0; q < kQuads; ++q) {
      for (int r = 0; r < 2 * kTokens; ++r, out += kWord) {
        std::memcpy(out, rows[r] + at + q * kWord, kWord);
      }
    }
  }
}

constexpr int OffsetBits(WeightFormat format) { return format == WeightFormat::kW4 ? 3 : 7; }

template <WeightFormat kFormat, int kTokens>
TokenBlock<kTokens> PackTokens(const LinearSlice& s, int64_t first_token) {
  if constexpr (kTokens == 1) {
    const ActivationPlanes x = s.x.FromRow(s.x_row(first_token));
    return {x.hi, x.lo, x.scale, x.sum};
  } else {
    const int64_t num_groups = s.x.groups(), num_quads = num_groups * kQuads;
    int8_t* quads = reinterpret_cast<int8_t*>(s.scratch);
    float* scale = reinterpret_cast<float*>(quads + num_quads * kTokens * 2 * kWord);
    int32_t* start = reinterpret_cast<int32_t*>(scale + num_groups * kTokens);
    const uint8_t* rows[2 * kTokens];
    for (int t = 0; t < kTokens; ++t) {
      const ActivationPlanes x = s.x.FromRow(s.x_row(first_token + t));
      rows[2 * t] = reinterpret_cast<const uint8_t*>(x.hi);
      rows[2 * t + 1] = reinterpret_cast<const uint8_t*>(x.lo);
      for (int64_t g = 0; g < num_groups; ++g) {
        scale[g * kTokens + t] = x.scale[g];
        start[g * kTokens + t] = -(x.sum[g] * (1 << OffsetBits(kFormat)));
      }
    }
    for (int64_t g = 0; g < num_groups; ++g) {
      PackGroup<kTokens>(rows, g * kGroup, quads + g * kQuads * kTokens * 2 * kWord);
    }
    return {quads, scale, start};
  }
}

// high[t], low[t] += sum of u * x over one plane of a tile. A single token gets two chains, else
// the latency of one would be the limit.
template <int kTokens>
SIMD_INLINE void DotPlane(const uint8_t* plane, const TokenBlock<kTokens>& x, int64_t quad,
                          I32* high, I32* low) {
  if constexpr (kTokens == 1) {
    I32 h = SetInt(0), l = SetInt(0);
    for (int q = 0; q < kQuads; q += 2) {
      const Bytes a = LoadBytes(plane + q * kVectorBytes);
      const Bytes b = LoadBytes(plane + (q + 1) * kVectorBytes);
      high[0] = Dot4(high[0], a, x.hi(quad + q, 0));
      low[0] = Dot4(low[0], a, x.lo(quad + q, 0));
      h = Dot4(h, b, x.hi(quad + q + 1, 0));
      l = Dot4(l, b, x.lo(quad + q + 1, 0));
    }
    high[0] = AddInt(high[0], h);
    low[0] = AddInt(low[0], l);
  } else {
    for (int q = 0; q < kQuads; ++q) {
      __builtin_prefetch(plane + q * kVectorBytes + kFetchAhead);
      const Bytes u = LoadBytes(plane + q * kVectorBytes);
      for (int t = 0; t < kTokens; ++t) {
        high[t] = Dot4(high[t], u, x.hi(quad + q, t));
        low[t] = Dot4(low[t], u, x.lo(quad + q, t));
      }
    }
  }
}

template <int kTokens>
SIMD_INLINE void DotNibbles(const uint8_t* plane, const TokenBlock<kTokens>& x, int64_t quad,
                            I32* high, I32* low) {
  I32 h = SetInt(0), l = SetInt(0);  // second chains of a single token
  for (int q = 0; q < kQuads / 2; ++q) {
    if (kTokens > 1) __builtin_prefetch(plane + q * kVectorBytes + kFetchAhead);
    const Bytes packed = LoadBytes(plane + q * kVectorBytes);
    const Bytes first = LowNibbles(packed), second = HighNibbles(packed);
    const int64_t at = quad + q, later = at + kQuads / 2;
    for (int t = 0; t < kTokens; ++t) {
      high[t] = Dot4(high[t], first, x.hi(at, t));
      low[t] = Dot4(low[t], first, x.lo(at, t));
      if constexpr (kTokens == 1) {
        h = Dot4(h, second, x.hi(later, t));
        l = Dot4(l, second, x.lo(later, t));
      } else {
        high[t] = Dot4(high[t], second, x.hi(later, t));
        low[t] = Dot4(low[t], second, x.lo(later, t));
      }
    }
  }
  if constexpr (kTokens == 1) {
    high[0] = AddInt(high[0], h);
    low[0] = AddInt(low[0], l);
  }
}

template <WeightFormat kFormat, int kTokens>
SIMD_INLINE void StartSums(const TokenBlock<kTokens>& x, int64_t g, I32* high, I32* low) {
  for (int t = 0; t < kTokens; ++t) {
    high[t] = SetInt(0);
    if constexpr (kTokens == 1) {
      low[t] = SetInt(-(x.sum[g] * (1 << OffsetBits(kFormat))));
    } else {
      low[t] = SetInt(x.start[g * kTokens + t]);
    }
  }
}

template <int kTokens>
SIMD_INLINE void AddGroup(F32 weight_scale, const TokenBlock<kTokens>& x, int64_t g, const F32* d,
                          F32* segment) {
  for (int t = 0; t < kTokens; ++t) {
    segment[t] = Fma(d[t], Mul(weight_scale, Set(x.scale[g * kTokens + t])), segment[t]);
  }
}

SIMD_INLINE I32 Combine(I32 high, I32 low) { return AddInt(ShiftLeft<8>(high), low); }

template <WeightFormat kFormat, int kTokens>
SIMD_INLINE void Group(const uint8_t* tile, const TokenBlock<kTokens>& x, int64_t g, F32* segment) {
  I32 high[kTokens], low[kTokens];
  F32 d[kTokens];
  const int64_t at = g * kQuads;
  if constexpr (kFormat == WeightFormat::kW4) {
    StartSums<kFormat, kTokens>(x, g, high, low);
    DotNibbles<kTokens>(tile, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) d[t] = ToFloat(Combine(high[t], low[t]));
    AddGroup<kTokens>(LoadHalf(tile + kQuads / 2 * kVectorBytes), x, g, d, segment);
  } else if constexpr (kFormat == WeightFormat::kW8) {
    StartSums<kFormat, kTokens>(x, g, high, low);
    DotPlane<kTokens>(tile, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) d[t] = ToFloat(Combine(high[t], low[t]));
    AddGroup<kTokens>(LoadHalf(tile + kQuads * kVectorBytes), x, g, d, segment);
  } else {
    StartSums<kFormat, kTokens>(x, g, high, low);
    DotPlane<kTokens>(tile, x, at, high, low);
    for (int t = 0; t < kTokens; ++t) d[t] = ToFloat(Combine(high[t], low[t]));
    StartSums<kFormat, kTokens>(x, g, high, low);
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
SIMD_INLINE void PanelDot(const uint8_t* tile, const TokenBlock<kTokens>& x, int64_t num_groups,
                          F32* total) {
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
void Tokens(const Slice& slice, int64_t first_token) {
  const LinearSlice& s = slice.s;
  const int64_t num_groups = s.x.groups();
  const TokenBlock<kTokens> x = PackTokens<kFormat, kTokens>(s, first_token);
  for (int64_t panel = s.first_panel; panel < s.first_panel + s.num_panels; ++panel) {
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
}

template <WeightFormat kFormat>
void Panels(const Slice& slice) {
  const int64_t end = slice.s.num_tokens;
  int64_t token = 0;
  for (; token + kMaxTokens <= end; token += kMaxTokens) Tokens<kFormat, kMaxTokens>(slice, token);
  if constexpr (kMaxTokens > 4) {
    if (token + 4 <= end) {
      Tokens<kFormat, 4>(slice, token);
      token += 4;
    }
  }
  if constexpr (kMaxTokens > 2) {
    if (token + 2 <= end) {
      Tokens<kFormat, 2>(slice, token);
      token += 2;
    }
  }
  for (; token < end; ++token) Tokens<kFormat, 1>(slice, token);
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
