// Draws a token from a row of logits.
//
// Logit x of the largest m weighs W = rint(2^43 exp((x - m) / temperature)), an integer: every sum
// of weights is exact, so no order of summation, no cut into parts and no kind of processor changes
// a draw. Candidates are the ids with W > 0, the most likely first, ties of logits by id. They are
// cut to the first top_k; then to the fewest whose sum reaches top_p of the sum; then to those of
// min_weight or more. With R, the random word of (seed, position), and S, the sum of what is left,
// the token is the first in ascending id whose running sum exceeds floor(R * S / 2^64). Below
// kGreedyTemperature it is the most likely one.
//   logits: f32 [n], n <= kMaxDrawnLogits
// A row with NaN or +infinity, or of -infinity alone, has no token: -1.
// Synchronous, no allocation; needs scratch of DrawScratchBytes(n) bytes, 8-byte aligned.
// Numerics: docs/numerics.md, "Sampling". Source: Holtzman et al., "The curious case of neural text
// degeneration", 2020 (top-p); Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hillstar/sampling.h"

namespace hillstar {

struct CpuKernels;

// Of the most likely token's weight. A million of them stay below 2^63.
inline constexpr int kWeightBits = 43;
inline constexpr uint64_t kLargestWeight = uint64_t{1} << kWeightBits;
inline constexpr int64_t kMaxDrawnLogits = int64_t{1} << 20;
// Below this gap a weight is 0, e^-31 * 2^43 being 0.3.
inline constexpr double kLeastGap = -31;

// The parameters of a draw, ready for integers; penalties have changed the logits before.
struct DrawParams {
  double temperature = 0;
  uint64_t top_p = UINT64_MAX;  // in units of 2^-64; UINT64_MAX: 1, all
  uint64_t min_weight = 0;      // least weight that is kept
  uint64_t seed = 0;
  int64_t top_k = 0;  // 0: all

  constexpr bool is_greedy() const { return temperature < kGreedyTemperature; }
  bool operator==(const DrawParams&) const = default;
};
DrawParams DrawParamsOf(const SamplingParams& params);

// Which weights a draw is from, given their sum in whole: the least sum that a nucleus reaches.
constexpr uint64_t NucleusSum(uint64_t top_p, uint64_t sum) {
  const auto product = static_cast<unsigned __int128>(top_p) * sum;
  const uint64_t up = uint64_t(product) != 0 ? 1 : 0;
  const uint64_t least = uint64_t(product >> 64) + up;
  return least > 0 ? least : 1;
}

// Philox 4x32 with 10 rounds (Salmon et al.).
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  // Multipliers and key increments of the paper's table 2 and section 3.
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kGoldenRatio = 0x9E3779B9, kSqrt3MinusOne = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key[0], uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key[1], uint32_t(product0)};
    key[0] += kGoldenRatio;
    key[1] += kSqrt3MinusOne;
  }
  return counter;
}

// Uniform over all 64-bit words.
constexpr uint64_t RandomWord(uint64_t seed, uint64_t position) {
  const auto words = Philox4x32({uint32_t(position), uint32_t(position >> 32), 0, 0},
                                {uint32_t(seed), uint32_t(seed >> 32)});
  return uint64_t{words[0]} << 32 | words[1];
}

// The running sum, of all `sum`, that the drawn token's exceeds as the first.
constexpr uint64_t DrawTarget(uint64_t word, uint64_t sum) {
  return uint64_t((static_cast<unsigned __int128>(word) * sum) >> 64);
}

// e^x = 2^k p(r) with x = k ln2 + r, |r| <= ln2 / 2. ln2 comes in two parts, the first with 32
// bits, so that k times it is exact. The Taylor series to r^13 errs by 2^-57 at the ends of the
// range.
inline constexpr double kExpLog2E = 0x1.71547652b82fep0;
inline constexpr double kExpLn2High = 0x1.62e42fee00000p-1, kExpLn2Low = 0x1.a39ef35793c76p-33;
// A double of magnitude below 2^51 plus this is rounded to an integer, ties to even, whose two's
// complement are the sum's low bits.
inline constexpr double kExpRound = 0x1.8p52;
// 1 / n!, from n = 13 down to 0.
inline constexpr double kExpTaylor[] = {1.0 / 6227020800,
                                        1.0 / 479001600,
                                        1.0 / 39916800,
                                        1.0 / 3628800,
                                        1.0 / 362880,
                                        1.0 / 40320,
                                        1.0 / 5040,
                                        1.0 / 720,
                                        1.0 / 120,
                                        1.0 / 24,
                                        1.0 / 6,
                                        1.0 / 2,
                                        1.0,
                                        1.0};

// e^x for x <= 0 in double with a fixed sequence of operations; within 1e-15 relative of the true
// value for x >= -700, and 0 below.
constexpr double ExpNonPositive(double x) {
  if (!(x >= -700)) return 0;
  const double rounded = x * kExpLog2E + kExpRound;
  const double k = rounded - kExpRound;
  const double r = (x - k * kExpLn2High) - k * kExpLn2Low;
  double sum = kExpTaylor[0];
  for (int i = 1; i < 14; ++i) sum = sum * r + kExpTaylor[i];
  return sum * std::bit_cast<double>((std::bit_cast<uint64_t>(rounded) + 1023) << 52);
}

// A row's largest logit. False in `is_finite`: the row has no token.
struct LogitRange {
  float largest = 0;
  bool is_finite = false;
};
// weights[i] = W of logits[i].
struct WeighSlice {
  const float* logits = nullptr;
  int64_t n = 0;
  float largest = 0;
  double temperature = 0;
  uint64_t* weights = nullptr;
};
// The sum of the weights of what is kept: of min_weight or more, and of a logit above `pivot` or
// equal to it up to id `last_tie`.
struct KeptSlice {
  const float* logits = nullptr;
  const uint64_t* weights = nullptr;
  int64_t first = 0, end = 0;
  uint64_t min_weight = 1;
  float pivot = 0;
  int64_t last_tie = 0;
};

size_t DrawScratchBytes(int64_t n);
int32_t DrawToken(const CpuKernels& kernels, const float* logits, int64_t n,
                  const DrawParams& params, int64_t position, uint8_t* scratch);
// The same in plain words; allocates.
int32_t DrawTokenByReference(const float* logits, int64_t n, const DrawParams& params,
                             int64_t position);

}  // namespace hillstar
