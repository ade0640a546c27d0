#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/stopwatch.h"
#include "engine/sampler.h"
#include "model/config.h"

namespace hillstar {
namespace {

// `beside` has a value before each rate and one after the last, or none.
BenchRow RowOf(bool is_prefill, int64_t num_tokens, int64_t context_tokens,
               const std::vector<double>& rates, std::vector<double> beside) {
  std::vector<double> shares;
  for (size_t i = 0; i + 1 < beside.size(); ++i) {
    shares.push_back(rates[i] / ((beside[i] + beside[i + 1]) / 2));
  }
  const auto [lowest, highest] = std::ranges::minmax(rates);
  const double share = shares.empty() ? 0 : MedianOf(std::move(shares));
  return {is_prefill, num_tokens, context_tokens, MedianOf(rates),
          lowest,     highest,    share,          std::move(beside)};
}

BenchRow MeasurePrefill(Sequence& sequence, std::span<const int32_t> ids, const BenchPlan& plan) {
  std::vector<double> rates, beside;
  for (int64_t i = 0; i < plan.repeat; ++i) {
    if (plan.beside_prefill) beside.push_back(plan.beside_prefill());
    sequence.Truncate(0);
    const Stopwatch watch;
    sequence.Append(ids, LogitsMode::kLast);
    rates.push_back(double(ids.size()) / watch.seconds());
  }
  if (plan.beside_prefill) beside.push_back(plan.beside_prefill());
  return RowOf(true, int64_t(ids.size()), 0, rates, std::move(beside));
}

BenchRow MeasureDecode(Engine& engine, Sequence& sequence, std::span<const int32_t> context,
                       const BenchPlan& plan) {
  sequence.Truncate(0);
  const auto num_context = int64_t(context.size());
  sequence.Append(context, LogitsMode::kLast);
  std::vector<double> rates, beside;
  for (int64_t i = 0; i < plan.repeat; ++i) {
    if (plan.beside_decode) beside.push_back(plan.beside_decode());
    sequence.Truncate(num_context - 1);
    const int32_t next = Argmax(sequence.Append(context.last(1), LogitsMode::kLast));
    const DecodePart part{&sequence, next};
    int64_t decoded = 0;
    const Stopwatch watch;
    engine.Decode({&part, 1},
                  [&](std::span<const int32_t>) { return ++decoded < plan.decode_tokens; });
    rates.push_back(double(plan.decode_tokens) / watch.seconds());
  }
  if (plan.beside_decode) beside.push_back(plan.beside_decode());
  return RowOf(false, plan.decode_tokens, num_context, rates, std::move(beside));
}

void CheckLengths(const Engine& engine, const BenchPlan& plan) {
  const auto check = [&](const char* option, int64_t tokens) {
    if (tokens <= engine.context_tokens()) return;
    const bool is_limit = engine.context_tokens() >= engine.config().max_positions;
    throw Error(ErrorCode::kUsage,
                fmt::format("{} needs a context of {} tokens, and the engine's has {}; {}", option,
                            tokens, engine.context_tokens(),
                            is_limit ? "that is the model's limit" : "--context may raise it"));
  };
  for (const int64_t tokens : plan.prompt_tokens) check("--prompt-tokens", tokens);
  for (const int64_t tokens : plan.context_tokens) {
    check("--context-tokens with --decode-tokens",
          std::max<int64_t>(tokens, 1) + plan.decode_tokens);
  }
}

}  // namespace

std::vector<int32_t> SpreadTokens(int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(int32_t(Philox4x32({uint32_t(i), 0, 0, 0}, {0, 0})[0] % uint64_t(vocab_size)));
  }
  return ids;
}

std::string ShareText(double share) {
  return share > 1 ? "over the bound" : fmt::format("{:.1f} %", 100 * share);
}

double MedianOf(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::vector<int64_t> ParseTokenCounts(const char* option_name, const std::string& list,
                                      int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 20;
  std::vector<int64_t> counts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string word = list.substr(begin, end - begin);
    begin = end + 1;
    int64_t value = 0;
    const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (code != std::errc() || stop != word.data() + word.size() || value < least ||
        value > kMost) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--{} cannot hold \"{}\"; it is a list such as 128,512 of whole "
                              "numbers from {} to {}",
                              option_name, word, least, kMost));
    }
    counts.push_back(value);
  }
  return counts;
}

std::vector<BenchRow> MeasureSpeed(Engine& engine, const BenchPlan& plan,
                                   const ProgressFn& progress) {
  CheckLengths(engine, plan);
  const std::unique_ptr<Sequence> sequence = engine.NewSequence({.shares_prefixes = false});
  const int64_t vocab = engine.config().vocab_size;
  const uint64_t total = plan.prompt_tokens.size() + plan.context_tokens.size();
  std::vector<BenchRow> rows;
  const auto add = [&](const BenchRow& row) {
    rows.push_back(row);
    if (progress) progress(rows.size(), total);
  };
  if (progress) progress(0, total);
  // Once unmeasured: the first step touches every page.
  sequence->Append(SpreadTokens(std::min(kWarmUpTokens, engine.context_tokens()), vocab),
                   LogitsMode::kLast);
  for (const int64_t tokens : plan.prompt_tokens) {
    add(MeasurePrefill(*sequence, SpreadTokens(tokens, vocab), plan));
  }
  for (const int64_t tokens : plan.context_tokens) {
    // A sequence begins with at least one token.
    const std::vector<int32_t> context = SpreadTokens(std::max<int64_t>(tokens, 1), vocab);
    BenchRow row = MeasureDecode(engine, *sequence, context, plan);
    row.context_tokens = tokens;
    add(row);
  }
  return rows;
}

}  // namespace hillstar
