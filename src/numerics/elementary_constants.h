// The constants of numerics/elementary.h, without its functions: kernel files, which are compiled
// for several SIMD levels, use these alone.
#pragma once

namespace hillstar {

// Below kExpLow the result is 0, above kExpHigh it is exp(kExpHigh): finite and never subnormal.
inline constexpr float kExpLow = -87.0f;
inline constexpr float kExpHigh = 88.0f;
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.62e4p-1f;    // ln 2 in 15 bits: n * kLn2High is exact
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;  // the rest
// Taylor coefficients 1/7! ... 1/0!: the first term left out is below 2^-27 for |r| <= ln2 / 2.
inline constexpr float kExpTerms[] = {1.f / 5040, 1.f / 720, 1.f / 120, 1.f / 24,
                                      1.f / 6,    1.f / 2,   1.f,       1.f};

// Sums of any length run over so many partial sums.
inline constexpr int kNumPartials = 256;

}  // namespace hillstar
