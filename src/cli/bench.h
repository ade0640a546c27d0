// Prefill and decode speed of an engine. Uses the engine from the caller's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hillstar/engine.h"

namespace hillstar {

struct BenchPlan {
  std::vector<int64_t> prompt_tokens;   // prefill lengths
  std::vector<int64_t> context_tokens;  // tokens before the decoded ones
  int64_t decode_tokens = 128;
  int64_t repeat = 5;
  // Called before each measurement of prefill or decode and after the last, or empty: what the
  // machine does at most in a second at that moment, in the unit of the bound.
  std::function<double()> beside_prefill, beside_decode;
};

struct BenchRow {
  bool is_prefill;
  int64_t num_tokens;      // prefilled, or decoded
  int64_t context_tokens;  // before them, as the plan has it: 0 stands for the one to begin with
  double median_rate;      // tokens a second
  double lowest_rate, highest_rate;
  // Tokens for each unit that the machine could do: the median over the measurements, each against
  // the mean of what was measured just before and after it; 0 where nothing was.
  double tokens_per_unit;
  std::vector<double> beside;  // what was measured there
};

// Tokens that MeasureSpeed computes unmeasured at first, where the context holds as many.
inline constexpr int64_t kWarmUpTokens = 64;

// Tokens spread over the vocabulary, so that prompts route to all experts; the same in every run.
std::vector<int32_t> SpreadTokens(int64_t count, int64_t vocab_size);

// Of a bound, as shown: "51.3 %"; what exceeds it shows that the bound does not hold.
std::string ShareText(double share);

// REQUIRES at least one value.
double MedianOf(std::vector<double> values);

// "128,512" as numbers >= `least`. Errors: kUsage naming the option and the entry.
std::vector<int64_t> ParseTokenCounts(const char* option_name, const std::string& list,
                                      int64_t least);

// Errors: kUsage, with the numbers, where a length passes the engine's context.
std::vector<BenchRow> MeasureSpeed(Engine& engine, const BenchPlan& plan,
                                   const ProgressFn& progress);

}  // namespace hillstar
