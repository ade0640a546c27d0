// Many requests through one engine: every answer is the one that the request gets alone, whatever
// the others do, however few pages there are. On the built-in model.
#include "engine/continuous_batch.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

class ContinuousBatchTest : public testing::Test {
 protected:
  // Pages beyond what a context needs, and a context of five pages.
  void Open(int64_t extra_pages, int64_t max_sequences = 16) {
    EngineOptions& options = options_;
    options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
    options.num_threads = 2;
    options.context_tokens = kContext;
    options.max_sequences = max_sequences;
    options.load_mtp = false;
    options.prefill_chunk = 100;
    if (!engine_) engine_ = Engine::Open(options);  // for the size of a page
    options.kv_bytes = uint64_t((kContext / 64 + extra_pages) * engine_->page_bytes());
    engine_ = Engine::Open(options);
  }
  // A prompt that differs from every other one from its first token on.
  static std::vector<int32_t> Prompt(int number, int64_t n) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t(300 + (number * 631 + i * 17) % 7000));
    return ids;
  }
  std::vector<int32_t> Alone(const std::vector<int32_t>& prompt, int64_t max_tokens,
                             const SamplingParams& sampling = kSampling) {
    GenerateRequest request;
    request.prompt_ids = prompt;
    request.max_tokens = max_tokens;
    request.context_tokens = kContext;
    request.sampling = sampling;
    const auto sequence = engine_->NewSequence({.shares_prefixes = false});
    return Generate(*sequence, engine_->tokenizer(), request).ids;
  }
  struct Answer {
    std::vector<int32_t> ids;
    std::optional<BatchEnd> end;
  };
  BatchRequest RequestFor(const std::vector<int32_t>& prompt, int64_t max_tokens, Answer* answer) {
    BatchRequest request;
    request.prompt_ids = prompt;
    request.max_tokens = max_tokens;
    request.sampling = kSampling;
    request.on_token = [answer](int32_t id) {
      answer->ids.push_back(id);
      return true;
    };
    request.on_end = [answer](const BatchEnd& end) { answer->end = end; };
    return request;
  }

  static constexpr int64_t kContext = 320;
  static constexpr SamplingParams kSampling{.temperature = 0.8f, .top_p = 0.9f, .seed = 5};
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

// Each request alone, then all together with ever fewer pages, paused ones parked or computed anew.
TEST_F(ContinuousBatchTest, EveryAnswerIsTheOneThatItGetsAlone) {
  Open(100);
  constexpr int kRequests = 5;
  // Short prompts and answers that grow far beyond the head room, or long prompts.
  const auto length = [](int i) { return int64_t(i % 3 == 2 ? 190 : 1 + (i * 53) % 60); };
  const auto room = [](int i) { return int64_t(i % 3 == 2 ? 20 : 150 + (i * 31) % 60); };
  std::vector<std::vector<int32_t>> want;
  for (int i = 0; i < kRequests; ++i) want.push_back(Alone(Prompt(i, length(i)), room(i)));
  struct Case {
    int64_t extra_pages, mixed_prompt_tokens;
    std::string park_folder;
  };
  for (const Case& c : {Case{100, 1, ""}, Case{100, 64, ""}, Case{0, 1, ""}, Case{0, 64, ""},
                        Case{0, 64, testing::TempDir()}}) {
    Open(c.extra_pages);
    ContinuousBatch batch(*engine_, {c.mixed_prompt_tokens, c.park_folder});
    std::vector<Answer> answers(kRequests);
    for (int i = 0; i < kRequests; ++i) {
      batch.Submit(RequestFor(Prompt(i, length(i)), room(i), &answers[size_t(i)]));
      if (i % 3 == 0) batch.Step();
    }
    while (batch.Step()) {
    }
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(answers[size_t(i)].ids, want[size_t(i)])
          << i << ", " << c.extra_pages << " pages more";
      ASSERT_TRUE(answers[size_t(i)].end);
      EXPECT_EQ(answers[size_t(i)].end->reason, FinishReason::kLength);
    }
    EXPECT_EQ(batch.counts().pauses > 0, c.extra_pages == 0);
    EXPECT_EQ(batch.counts().parked_pages > 0, !c.park_folder.empty());
    EXPECT_EQ(batch.num_requests(), 0);
    EXPECT_EQ(engine_->kv_use().available_pages, engine_->kv_use().total_pages);
  }
}

// Some draw where the logits are, some with penalties from logits, greedily and not; a penalty that
// changes nothing asks for logits too, and has the same answer.
TEST_F(ContinuousBatchTest, RequestsAreDrawnEachInItsOwnWay) {
  Open(100);
  const SamplingParams samplings[] = {
      {.temperature = 0},
      {.temperature = 1, .seed = 1},
      {.temperature = 1.5, .top_p = 0.9, .top_k = 40, .seed = 2},
      {.temperature = 1, .min_p = 0.1, .seed = 3},
      {.temperature = 0, .repetition_penalty = 1.3},
      {.temperature = 1, .presence_penalty = 0.5, .frequency_penalty = 0.3, .seed = 4}};
  std::vector<std::vector<int32_t>> want;
  std::vector<BatchRequest> requests;
  std::vector<Answer> answers(2 * std::size(samplings));
  for (int i = 0; i < int(answers.size()); ++i) {
    const auto which = size_t(i) / 2;
    SamplingParams sampling = samplings[which];
    const std::vector<int32_t> prompt = Prompt(int(which), 3 + 7 * int64_t(which));
    want.push_back(Alone(prompt, 30, sampling));
    requests.push_back(RequestFor(prompt, 30, &answers[size_t(i)]));
    if (i % 2 == 1) sampling.frequency_penalty += 1e-30;
    requests.back().sampling = sampling;
  }
  EXPECT_TRUE(HasPenalties(requests[1].sampling) && !HasPenalties(requests[0].sampling));
  ContinuousBatch batch(*engine_, {4, ""});
  for (BatchRequest& request : requests) {
    batch.Submit(std::move(request));
    batch.Step();
  }
  while (batch.Step()) {
  }
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].ids, want[i]) << i;
}

TEST_F(ContinuousBatchTest, ALongPromptNeverStallsARunningAnswer) {
  Open(100);
  ContinuousBatch batch(*engine_, {8, ""});
  Answer running, arriving;
  batch.Submit(RequestFor(Prompt(1, 5), 60, &running));
  batch.Step();
  ASSERT_EQ(running.ids.size(), 1u);
  batch.Submit(RequestFor(Prompt(2, 250), 10, &arriving));
  for (size_t step = 2; step <= 30; ++step) {
    batch.Step();
    EXPECT_EQ(running.ids.size(), step);
  }
  EXPECT_EQ(batch.counts().prompt_tokens, 5 + 29 * 8);
  while (batch.Step()) {
  }
  EXPECT_EQ(arriving.ids.size(), 10u);
}

TEST_F(ContinuousBatchTest, ASharedPrefixIsTakenOver) {
  Open(100);
  ContinuousBatch batch(*engine_, {});
  std::vector<int32_t> prompt = Prompt(1, 200);
  Answer first, second;
  batch.Submit(RequestFor(prompt, 5, &first));
  while (batch.Step()) {
  }
  prompt.resize(150);
  prompt.push_back(77);
  const std::vector<int32_t> want = Alone(prompt, 5);
  batch.Submit(RequestFor(prompt, 5, &second));
  while (batch.Step()) {
  }
  EXPECT_EQ(second.ids, want);
  EXPECT_EQ(first.end->reused_tokens, 0);
  EXPECT_EQ(second.end->reused_tokens, 150);
}

TEST_F(ContinuousBatchTest, CancelledRequestsEndAndLeaveNothingBehind) {
  Open(0);
  ContinuousBatch batch(*engine_, {});
  Answer waiting, running, other;
  const int64_t a = batch.Submit(RequestFor(Prompt(1, 200), 50, &running));
  const int64_t b = batch.Submit(RequestFor(Prompt(2, 200), 50, &waiting));
  const std::vector<int32_t> want = Alone(Prompt(3, 20), 20);
  batch.Submit(RequestFor(Prompt(3, 20), 20, &other));
  batch.Step();
  batch.Cancel(a);
  batch.Cancel(b);
  batch.Cancel(12345);  // nobody
  while (batch.Step()) {
  }
  for (const Answer* answer : {&waiting, &running}) {
    ASSERT_TRUE(answer->end);
    EXPECT_EQ(answer->end->reason, FinishReason::kCancelled);
  }
  EXPECT_EQ(other.ids, want);
  EXPECT_EQ(engine_->kv_use().available_pages, engine_->kv_use().total_pages);
}

// Logprobs come for every token, in its order, and change none; the prompt's progress is told.
TEST_F(ContinuousBatchTest, LogprobsAndProgressAreTold) {
  Open(10);
  const std::vector<int32_t> want = Alone(Prompt(1, 150), 6);
  ContinuousBatch batch(*engine_, {});
  Answer answer;
  BatchRequest request = RequestFor(Prompt(1, 150), 6, &answer);
  request.num_top_logprobs = 2;
  std::vector<int32_t> drawn;
  std::vector<int64_t> progress;
  request.on_logprobs = [&](const TokenLogprobs& logprobs) {
    EXPECT_EQ(drawn.size(), answer.ids.size());
    drawn.push_back(logprobs.drawn.id);
    ASSERT_EQ(logprobs.top.size(), 2u);
    EXPECT_GE(logprobs.top[0].logprob, logprobs.drawn.logprob);
  };
  request.on_prompt = [&](int64_t n) { progress.push_back(n); };
  batch.Submit(std::move(request));
  while (batch.Step()) {
  }
  EXPECT_EQ(answer.ids, want);
  EXPECT_EQ(drawn, want);
  EXPECT_EQ(progress, (std::vector<int64_t>{100, 150}));
}

TEST_F(ContinuousBatchTest, WhatCanNeverFitIsRefusedAtOnce) {
  Open(0);
  ContinuousBatch batch(*engine_, {});
  Answer answer;
  const auto code = [&](const BatchRequest& request) {
    try {
      batch.Submit(request);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::kCancelled;
  };
  EXPECT_EQ(code(RequestFor({}, 5, &answer)), ErrorCode::kBadRequest);
  EXPECT_EQ(code(RequestFor(Prompt(1, kContext), 5, &answer)), ErrorCode::kBadRequest);
  EXPECT_EQ(code(RequestFor(Prompt(1, 10), 0, &answer)), ErrorCode::kBadRequest);
  EXPECT_EQ(code(RequestFor({1 << 30}, 5, &answer)), ErrorCode::kBadRequest);
  BatchRequest hot = RequestFor(Prompt(1, 10), 5, &answer);
  hot.sampling.temperature = -1;
  EXPECT_EQ(code(hot), ErrorCode::kBadRequest);
  EXPECT_FALSE(batch.Step());
  EXPECT_FALSE(answer.end);
}

TEST_F(ContinuousBatchTest, AFolderThatTakesNoPagesCostsTimeOnly) {
  Open(0);
  const std::vector<int32_t> want[] = {Alone(Prompt(1, 10), 240), Alone(Prompt(2, 10), 240)};
  ContinuousBatch batch(*engine_, {64, "/nonexistent/folder"});
  Answer answers[2];
  for (int i = 0; i < 2; ++i) batch.Submit(RequestFor(Prompt(i + 1, 10), 240, &answers[i]));
  while (batch.Step()) {
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(answers[i].ids, want[i]);
  EXPECT_GT(batch.counts().recomputed_tokens, 0);
}

// The system has memory for fewer pages than planned: requests wait for one another, and one that
// could never go on ends with a sentence.
TEST_F(ContinuousBatchTest, MemoryThatEndsEarlyEndsNoOtherRequest) {
  Open(100);
  constexpr int kShort = 6;
  std::vector<std::vector<int32_t>> want;
  for (int i = 0; i < kShort; ++i) want.push_back(Alone(Prompt(i, 100), 20));
  options_.context_tokens = 2000;
  engine_ = Engine::Open(options_);
  const MemoryPlan plan = engine_->memory();
  const int64_t planned = engine_->kv_use().total_pages;
  // Buffers take a little less than the plan's parts, and pages come in slabs of 2 MB.
  options_.memory_limit = plan.dense_weights + plan.experts + plan.workspace + (4 << 20);
  engine_ = Engine::Open(options_);
  ContinuousBatch batch(*engine_, {});
  std::vector<Answer> answers(kShort + 1);
  batch.Submit(RequestFor(Prompt(kShort, 200), 1000, &answers[kShort]));
  for (int i = 0; i < kShort; ++i) {
    batch.Submit(RequestFor(Prompt(i, 100), 20, &answers[size_t(i)]));
  }
  while (batch.Step()) {
  }
  ASSERT_LT(engine_->kv_use().total_pages, planned);
  for (int i = 0; i < kShort; ++i) {
    ASSERT_TRUE(answers[size_t(i)].end);
    EXPECT_EQ(answers[size_t(i)].ids, want[size_t(i)]) << i;
  }
  ASSERT_TRUE(answers[kShort].end && answers[kShort].end->error);
  EXPECT_EQ(answers[kShort].end->error->code(), ErrorCode::kBudget);
  EXPECT_EQ(engine_->kv_use().available_pages, engine_->kv_use().total_pages);
}

TEST_F(ContinuousBatchTest, WhatHasNotEndedEndsWithTheBatch) {
  Open(4);
  Answer running, waiting;
  {
    ContinuousBatch batch(*engine_, {});
    batch.Submit(RequestFor(Prompt(1, 30), 20, &running));
    batch.Step();
    batch.Submit(RequestFor(Prompt(2, 30), 20, &waiting));
  }
  for (const Answer* answer : {&running, &waiting}) {
    ASSERT_TRUE(answer->end);
    EXPECT_EQ(answer->end->reason, FinishReason::kCancelled);
  }
  EXPECT_EQ(engine_->kv_use().available_pages, engine_->kv_use().total_pages);
}

// Threads submit and cancel while one thread steps; what is not cancelled is answered.
TEST_F(ContinuousBatchTest, ManyThreadsSubmitAndCancel) {
  Open(4);
  const std::vector<int32_t> want = Alone(Prompt(1, 30), 6);
  ContinuousBatch batch(*engine_, {});
  constexpr int kThreads = 3, kEach = 6;
  std::vector<Answer> answers(size_t(kThreads * kEach));
  std::atomic<int> submitting{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const int64_t id =
            batch.Submit(RequestFor(Prompt(1, 30), 6, &answers[size_t(t * kEach + i)]));
        if (i % 3 == 2) batch.Cancel(id);
      }
      --submitting;
    });
  }
  while (batch.Step() || submitting > 0) batch.WaitForRequest(std::chrono::milliseconds(1));
  for (std::thread& thread : threads) thread.join();
  while (batch.Step()) {
  }
  for (int i = 0; i < kThreads * kEach; ++i) {
    const Answer& answer = answers[size_t(i)];
    ASSERT_TRUE(answer.end) << i;
    if (answer.end->reason == FinishReason::kLength) {
      EXPECT_EQ(answer.ids, want);
    }
    if (i % kEach % 3 != 2) {
      EXPECT_EQ(answer.end->reason, FinishReason::kLength);
    }
  }
}

}  // namespace
}  // namespace hillstar
