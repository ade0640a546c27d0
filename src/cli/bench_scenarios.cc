#include "cli/bench_scenarios.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "cli/bench.h"
#include "core/check.h"
#include "core/integers.h"
#include "core/stopwatch.h"
#include "engine/continuous_batch.h"
#include "engine/sampler.h"
#include "kv/synthetic_rows.h"
#include "model/config.h"

namespace hillstar {
namespace {

using Clock = std::chrono::steady_clock;
// Tokens of each answer before a prompt arrives.
constexpr int64_t kTokensBefore = 24;

// A prompt that shares its beginning with no other number's.
std::vector<int32_t> PromptOf(const Engine& engine, int64_t number, int64_t num_tokens) {
  std::vector<int32_t> ids = SpreadTokens(num_tokens, engine.config().vocab_size);
  ids[0] = int32_t(number % engine.config().vocab_size);
  return ids;
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

// Requests whose tokens are counted and whose errors are not lost.
class CountedBatch {
 public:
  CountedBatch(Engine& engine, int64_t mixed_prompt_tokens)
      : batch_(engine, {.mixed_prompt_tokens = mixed_prompt_tokens}) {}

  // `on_token` may be empty.
  void Submit(std::vector<int32_t> prompt, int64_t max_tokens,
              std::function<void()> on_token = {}) {
    BatchRequest request;
    request.prompt_ids = std::move(prompt);
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    const size_t i = counts_.size();
    counts_.push_back(0);
    request.on_token = [this, i, on_token](int32_t) {
      ++counts_[i];
      if (on_token) on_token();
      return true;
    };
    request.on_end = [this](const BatchEnd& end) { last_end_ = end; };
    batch_.Submit(std::move(request));
  }
  // Errors: a request's.
  void Step() {
    CHECK(batch_.Step());
    if (last_end_ && last_end_->error) throw Error(*last_end_->error);
  }
  int64_t fewest_tokens() const { return std::ranges::min(counts_); }
  int64_t num_running() const { return batch_.num_requests(); }
  // Of the request that ended last.
  const BatchEnd& last_end() const { return last_end_.value(); }

 private:
  std::vector<int64_t> counts_;
  std::optional<BatchEnd> last_end_;
  ContinuousBatch batch_;  // goes first: it ends its requests
};

double SecondsToFirstToken(Engine& engine, const std::vector<int32_t>& prompt, int64_t* reused) {
  CountedBatch batch(engine, engine.max_step_tokens());
  const Stopwatch watch;
  batch.Submit(prompt, 1);
  while (batch.num_running() > 0) batch.Step();
  *reused = batch.last_end().reused_tokens;
  return watch.seconds();
}

}  // namespace

int64_t BatchTokens(int64_t num_sequences, int64_t num_tokens) {
  return kBatchPromptTokens + num_sequences + num_tokens + 1;
}

BatchSpeed MeasureBatch(Engine& engine, int64_t num_sequences, int64_t num_tokens, int64_t repeat) {
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<DecodePart> parts;
  for (int64_t i = 0; i < num_sequences; ++i) {
    owners.push_back(engine.NewSequence());
    const auto logits =
        owners.back()->Append(PromptOf(engine, i, kBatchPromptTokens), LogitsMode::kLast);
    parts.push_back({owners.back().get(), Argmax(logits)});
  }
  std::vector<double> rates;
  for (int64_t r = 0; r < repeat; ++r) {
    for (const auto& sequence : owners) sequence->Truncate(kBatchPromptTokens);
    int64_t decoded = -1;  // the first step is not measured
    Stopwatch watch;
    engine.Decode(parts, [&](std::span<const int32_t>) {
      if (decoded < 0) watch = Stopwatch();
      return ++decoded < num_tokens;
    });
    rates.push_back(double(num_tokens * num_sequences) / watch.seconds());
  }
  return {num_sequences, MedianOf(rates), std::ranges::min(rates), std::ranges::max(rates)};
}

int64_t MixedAnswerTokens(int64_t num_answers, int64_t prompt_tokens, int64_t mixed_prompt_tokens) {
  // The prompts of the answers come one after the other, in the worst case.
  const int64_t until_all_answer = CeilDiv(num_answers * kBatchPromptTokens, mixed_prompt_tokens);
  return kBatchPromptTokens + until_all_answer + num_answers + kTokensBefore +
         CeilDiv(prompt_tokens, mixed_prompt_tokens) + 1;
}

MixedLoad MeasureMixedLoad(Engine& engine, int64_t num_answers, int64_t prompt_tokens,
                           int64_t mixed_prompt_tokens) {
  MixedLoad result{num_answers, prompt_tokens, mixed_prompt_tokens, {}, {}, 0};
  GapClock gaps{size_t(num_answers)};
  CountedBatch batch(engine, mixed_prompt_tokens);
  const int64_t answer =
      MixedAnswerTokens(num_answers, prompt_tokens, mixed_prompt_tokens) - kBatchPromptTokens;
  for (int64_t i = 0; i < num_answers; ++i) {
    batch.Submit(PromptOf(engine, i, kBatchPromptTokens), answer,
                 [&gaps, i] { gaps.Note(size_t(i)); });
  }
  while (batch.fewest_tokens() == 0) batch.Step();
  gaps.Take();
  for (int64_t t = 0; t < kTokensBefore; ++t) batch.Step();
  result.before = gaps.Take();
  bool answered = false;
  // Another prompt in each measurement, or the prefix index would have it.
  const int64_t number = num_answers + mixed_prompt_tokens;
  const Stopwatch watch;
  batch.Submit(PromptOf(engine, number, prompt_tokens), 1, [&] { answered = true; });
  while (!answered) batch.Step();
  result.first_token_seconds = watch.seconds();
  result.meanwhile = gaps.Take();
  CHECK(batch.num_running() == num_answers);
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
    const Stopwatch watch;
    sequence->Append(std::span(&next, 1), LogitsMode::kLast);
    if (i > 0) times.push_back(1e3 * watch.seconds());  // the first touches what is new
    sequence->Truncate(context_tokens);
  }
  result.median_ms = MedianOf(times);
  result.lowest_ms = std::ranges::min(times);
  return result;
}

}  // namespace hillstar
