#include "cli/bench_scenarios.h"

#include <algorithm>
#include <chrono>

#include "cli/bench.h"
#include "core/check.h"
#include "engine/continuous_batch.h"
#include "kv/synthetic_rows.h"
#include "model/config.h"

namespace hillstar {
namespace {

using Clock = std::chrono::steady_clock;
// Tokens of each answer before a prompt arrives.
constexpr int64_t kTokensBefore = 24;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A prompt that shares its beginning with no other number's.
std::vector<int32_t> PromptOf(const Engine& engine, int64_t number, int64_t num_tokens) {
  std::vector<int32_t> ids = SpreadTokens(num_tokens, engine.config().vocab_size);
  ids[0] = int32_t(number % engine.config().vocab_size);
  return ids;
}

BatchRequest RequestOf(std::vector<int32_t> prompt, int64_t max_tokens) {
  BatchRequest request;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0;
  return request;
}

// When the tokens of running answers came.
class GapClock {
 public:
  explicit GapClock(size_t num_answers) : last_(num_answers) {}

  void Note(size_t answer) {
    const auto now = Clock::now();
    if (last_[answer] != Clock::time_point()) {
      gaps_.push_back(1e3 * std::chrono::duration<double>(now - last_[answer]).count());
    }
    last_[answer] = now;
  }
  // Those since the last call.
  Gaps Take() {
    Gaps gaps;
    if (!gaps_.empty()) gaps = {MedianOf(gaps_), std::ranges::max(gaps_)};
    gaps_.clear();
    return gaps;
  }

 private:
  std::vector<Clock::time_point> last_;
  std::vector<double> gaps_;
};

double SecondsToFirstToken(Engine& engine, const std::vector<int32_t>& prompt, int64_t* reused) {
  ContinuousBatch batch(engine, {});
  BatchRequest request = RequestOf(prompt, 1);
  request.on_end = [&](const BatchEnd& end) {
    if (end.error) throw Error(*end.error);
    *reused = end.reused_tokens;
  };
  const auto start = Clock::now();
  batch.Submit(std::move(request));
  while (batch.Step()) {
  }
  return SecondsSince(start);
}

}  // namespace

BatchSpeed MeasureBatch(Engine& engine, int64_t num_sequences, int64_t num_tokens, int64_t repeat) {
  std::vector<double> rates;
  for (int64_t r = 0; r < repeat; ++r) {
    ContinuousBatch batch(engine, {.mixed_prompt_tokens = engine.max_step_tokens()});
    std::vector<int64_t> counts(static_cast<size_t>(num_sequences));
    for (int64_t i = 0; i < num_sequences; ++i) {
      // One token more than is timed: the first comes from the prompt.
      BatchRequest request =
          RequestOf(PromptOf(engine, i, kBatchPromptTokens), num_tokens + 1 + num_sequences);
      request.on_token = [&counts, i](int32_t) { return ++counts[size_t(i)] > 0; };
      batch.Submit(std::move(request));
    }
    while (std::ranges::min(counts) == 0) batch.Step();
    const auto start = Clock::now();
    for (int64_t t = 0; t < num_tokens; ++t) batch.Step();
    rates.push_back(double(num_tokens * num_sequences) / SecondsSince(start));
  }
  return {num_sequences, MedianOf(rates), std::ranges::min(rates), std::ranges::max(rates)};
}

MixedLoad MeasureMixedLoad(Engine& engine, int64_t num_answers, int64_t prompt_tokens,
                           int64_t mixed_prompt_tokens) {
  MixedLoad result{num_answers, prompt_tokens, mixed_prompt_tokens, {}, {}, 0};
  ContinuousBatch batch(engine, {.mixed_prompt_tokens = mixed_prompt_tokens});
  GapClock gaps{size_t(num_answers)};
  const int64_t steps = CeilDiv(prompt_tokens, mixed_prompt_tokens);
  for (int64_t i = 0; i < num_answers; ++i) {
    BatchRequest request =
        RequestOf(PromptOf(engine, i, kBatchPromptTokens), kTokensBefore + steps + num_answers + 8);
    request.on_token = [&gaps, i](int32_t) {
      gaps.Note(size_t(i));
      return true;
    };
    batch.Submit(std::move(request));
  }
  for (int64_t t = 0; t < num_answers + kTokensBefore; ++t) {
    if (t == num_answers) gaps.Take();  // all answer by now
    batch.Step();
  }
  result.before = gaps.Take();
  bool answered = false;
  // Another prompt in each measurement, or the prefix index would have it.
  const int64_t number = num_answers + mixed_prompt_tokens;
  BatchRequest prompt = RequestOf(PromptOf(engine, number, prompt_tokens), 1);
  prompt.on_token = [&](int32_t) { return answered = true; };
  const auto start = Clock::now();
  batch.Submit(std::move(prompt));
  while (!answered && batch.Step()) {
  }
  result.first_token_seconds = SecondsSince(start);
  result.meanwhile = gaps.Take();
  return result;
}

SharedPrefix MeasureSharedPrefix(Engine& engine, int64_t prefix_tokens, int64_t rest) {
  SharedPrefix result;
  result.prefix_tokens = prefix_tokens;
  std::vector<int32_t> prompt = PromptOf(engine, 7, prefix_tokens + rest);
  int64_t reused = 0;
  result.first_seconds = SecondsToFirstToken(engine, prompt, &reused);
  for (size_t i = size_t(prefix_tokens); i < prompt.size(); ++i) {
    prompt[i] = int32_t((prompt[i] + 1) % engine.config().vocab_size);
  }
  result.second_seconds = SecondsToFirstToken(engine, prompt, &result.reused_tokens);
  return result;
}

LongContext MeasureSyntheticContext(Engine& engine, int64_t context_tokens, int64_t num_steps) {
  LongContext result;
  result.context_tokens = context_tokens;
  const auto sequence = engine.NewSequence({.shares_prefixes = false});
  sequence->Restore(SpreadTokens(context_tokens, engine.config().vocab_size),
                    [&](int64_t page, std::span<uint8_t> latents, std::span<uint8_t> keys) {
                      FillSyntheticPage(engine.kv_shape(), uint64_t(page), latents, keys);
                    });
  std::vector<double> times;
  const int32_t next = 1;
  for (int64_t i = 0; i < num_steps + 1; ++i) {
    const auto begin = Clock::now();
    sequence->Append(std::span(&next, 1), LogitsMode::kLast);
    if (i > 0) times.push_back(1e3 * SecondsSince(begin));  // the first touches what is new
    sequence->Truncate(context_tokens);
  }
  result.median_ms = MedianOf(times);
  result.lowest_ms = std::ranges::min(times);
  return result;
}

}  // namespace hillstar
