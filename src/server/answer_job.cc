#include "server/answer_job.h"

#include <algorithm>

#include "engine/generate.h"
#include "engine/grammar_constraint.h"
#include "model/config.h"

namespace hillstar {

struct AnswerJob::Answer {
  Answer(const Tokenizer& tokenizer, const AnswerRequest& request, const Prompt& prompt)
      : text(tokenizer, request.stops),
        reader({.starts_thinking = prompt.starts_thinking,
                .reads_calls = request.reads_calls,
                .tools = request.tools}) {}

  int64_t index = 0;
  int64_t prompt_tokens = 0;
  // Of the engine's thread.
  TextStream text;
  bool is_thinking = false;
  TokenUsage usage;
  std::vector<TokenLogprobs> logprobs;  // of the tokens since the last event
  std::optional<Clock::time_point> started, first, last;
  // Of the delivery thread.
  AnswerReader reader;
  bool is_chat = false;
  std::optional<AnswerEnd> end;
};

AnswerJob::AnswerJob(AnswerRequest request, std::unique_ptr<AnswerWriter> writer, Context context)
    : request_(std::move(request)),
      writer_(std::move(writer)),
      context_(std::move(context)),
      submitted_(Clock::now()),
      think_close_(context_.engine.tokenizer().AddedTokenId("</think>").value_or(-1)) {}

AnswerJob::~AnswerJob() = default;

std::vector<BatchRequest> AnswerJob::MakeBatchRequests() {
  const Engine& engine = context_.engine;
  std::vector<int32_t> end_ids = engine.config().eos_ids;
  if (request_.is_chat) end_ids = ChatEndIds(end_ids, engine.tokenizer());
  std::vector<BatchRequest> batch;
  for (int64_t i = 0; i < request_.num_answers(); ++i) {
    const Prompt& prompt = request_.prompts[size_t(i / request_.answers_each)];
    answers_.push_back(std::make_unique<Answer>(engine.tokenizer(), request_, prompt));
    Answer& answer = *answers_.back();
    answer.index = i;
    answer.is_chat = request_.is_chat;
    answer.is_thinking = prompt.starts_thinking;
    answer.prompt_tokens = int64_t(prompt.ids.size());
    BatchRequest& made = batch.emplace_back();
    made.prompt_ids = prompt.ids;
    made.sampling = request_.sampling;
    made.sampling.seed += uint64_t(i);
    made.max_tokens = request_.max_tokens;
    made.end_ids = end_ids;
    made.rules.biases = request_.biases;
    if (request_.grammar) {
      made.rules.constraint = std::make_shared<GrammarConstraint>(request_.grammar, context_.trie,
                                                                  context_.engine.tokenizer(),
                                                                  end_ids, prompt.starts_thinking);
    }
    made.num_top_logprobs = request_.num_top_logprobs;
    const std::shared_ptr<AnswerJob> self = shared_from_this();
    made.on_token = [self, &answer](int32_t id) { return self->TakeToken(answer, id); };
    made.on_logprobs = [self, &answer](const TokenLogprobs& l) { self->TakeLogprobs(answer, l); };
    made.on_prompt = [self, &answer](int64_t n) { self->TakePrompt(answer, n); };
    made.on_end = [self, &answer](const BatchEnd& end) { self->TakeEnd(answer, end); };
  }
  return batch;
}

void AnswerJob::Begin() { Push({.kind = Event::Kind::kBegin}); }

void AnswerJob::Fail(const ApiError& error) {
  Event event{.kind = Event::Kind::kFail};
  event.error = error;
  Push(std::move(event));
}

void AnswerJob::TakePrompt(Answer& answer, int64_t num_tokens) {
  if (!answer.started) answer.started = Clock::now();
  if (num_tokens >= answer.prompt_tokens) return;  // the first token says as much
  Push({.kind = Event::Kind::kProgress,
        .answer = answer.index,
        .done = num_tokens,
        .total = answer.prompt_tokens});
}

void AnswerJob::TakeLogprobs(Answer& answer, const TokenLogprobs& logprobs) {
  answer.logprobs.push_back(logprobs);
}

bool AnswerJob::TakeToken(Answer& answer, int32_t id) {
  const Clock::time_point now = Clock::now();
  if (!answer.started) answer.started = now;
  if (!answer.first) answer.first = now;
  answer.last = now;
  ++answer.usage.completion;
  if (id == think_close_) answer.is_thinking = false;
  if (answer.is_thinking) ++answer.usage.reasoning;
  std::string text = answer.text.Push(id);
  if (!text.empty() || !answer.logprobs.empty()) {
    Event event{.kind = Event::Kind::kText, .answer = answer.index, .text = std::move(text)};
    event.logprobs.swap(answer.logprobs);
    Push(std::move(event));
  }
  return !answer.text.matched();
}

void AnswerJob::TakeEnd(Answer& answer, const BatchEnd& end) {
  if (end.error) return Fail(ApiErrorOf(*end.error));
  const bool is_matched = answer.text.matched();
  if (end.reason == FinishReason::kCancelled && !is_matched) {
    return Fail({503, "the request was cancelled", {}, "cancelled"});
  }
  Event event{.kind = Event::Kind::kEnd, .answer = answer.index, .text = answer.text.Finish()};
  event.end.emplace();
  event.end->usage = answer.usage;
  event.end->usage.prompt = answer.prompt_tokens;
  event.end->usage.cached = end.reused_tokens;
  // A stop string may also end in what was held back.
  event.end->reason = answer.text.matched()               ? AnswerEndReason::kStopString
                      : end.reason == FinishReason::kStop ? AnswerEndReason::kStop
                                                          : AnswerEndReason::kLength;
  event.end->stop = answer.text.match();
  Push(std::move(event));
}

void AnswerJob::Push(Event event) {
  const std::lock_guard lock(mutex_);
  Event* last = events_.empty() ? nullptr : &events_.back();
  const bool joins = last != nullptr && last->kind == event.kind && last->answer == event.answer;
  if (joins && event.kind == Event::Kind::kText) {
    last->text += event.text;
    std::ranges::move(event.logprobs, std::back_inserter(last->logprobs));
  } else if (joins && event.kind == Event::Kind::kProgress) {
    *last = std::move(event);
  } else {
    events_.push_back(std::move(event));
  }
  if (is_scheduled_) return;
  is_scheduled_ = true;
  context_.delivery.Post([self = shared_from_this()] { self->Deliver(); });
}

void AnswerJob::Deliver() {
  std::vector<Event> events;
  {
    const std::lock_guard lock(mutex_);
    events.swap(events_);
    is_scheduled_ = false;
  }
  for (Event& event : events) {
    if (!is_over_) Handle(event);
  }
}

void AnswerJob::Handle(Event& event) {
  if (!has_begun_ && event.kind != Event::Kind::kFail) writer_->Begin();
  has_begun_ = true;
  switch (event.kind) {
    case Event::Kind::kBegin: return;
    case Event::Kind::kProgress: return writer_->Progress(event.done, event.total);
    case Event::Kind::kFail:
      is_over_ = true;
      writer_->Fail(*event.error);
      return Report(event.error->code() == "cancelled" ? JobReport::Outcome::kCancelled
                                                       : JobReport::Outcome::kFailed,
                    event.error->what());
    case Event::Kind::kText:
    case Event::Kind::kEnd: break;
  }
  Answer& answer = *answers_[size_t(event.answer)];
  AnswerPiece piece{event.answer, {}, std::move(event.logprobs)};
  if (answer.is_chat) {
    piece.deltas = answer.reader.Push(event.text);
    if (event.end) {
      for (AnswerDelta& delta : answer.reader.Finish()) piece.deltas.push_back(std::move(delta));
    }
  } else if (!event.text.empty()) {
    piece.deltas.push_back({AnswerDelta::Kind::kContent, -1, std::move(event.text)});
  }
  if (!piece.deltas.empty() || !piece.logprobs.empty()) writer_->Write(piece);
  if (event.end) HandleEnd(answer, *event.end);
}

void AnswerJob::HandleEnd(Answer& answer, const AnswerEnd& end) {
  answer.end = end;
  const bool has_calls = answer.reader.num_calls() > 0;
  if (has_calls && end.reason == AnswerEndReason::kStop) {
    answer.end->reason = AnswerEndReason::kToolCalls;
  }
  writer_->End(answer.index, *answer.end);
  if (++num_ended_ < answers_.size()) return;
  is_over_ = true;
  Report(JobReport::Outcome::kDone, "");
}

void AnswerJob::Report(JobReport::Outcome outcome, const std::string& error) {
  const auto since = [&](Clock::time_point time) {
    return std::chrono::duration<double>(time - submitted_).count();
  };
  JobReport report;
  report.outcome = outcome;
  report.error = error;
  report.seconds = since(Clock::now());
  const auto keep_least = [&](std::optional<double>* least, const auto& time) {
    if (time) *least = std::min(least->value_or(since(*time)), since(*time));
  };
  for (const auto& answer : answers_) {
    if (!answer->end) continue;  // the engine may be at it
    keep_least(&report.queue_seconds, answer->started);
    keep_least(&report.first_token_seconds, answer->first);
    const TokenUsage& usage = answer->end->usage;
    const bool is_first_of_prompt = answer->index % request_.answers_each == 0;
    if (is_first_of_prompt) report.usage.prompt += usage.prompt;
    if (is_first_of_prompt) report.usage.cached += usage.cached;
    report.usage.completion += usage.completion;
    report.usage.reasoning += usage.reasoning;
    if (usage.completion > 1) {
      const std::chrono::duration<double> span = *answer->last - *answer->first;
      report.token_seconds.push_back(span.count() / double(usage.completion - 1));
    }
  }
  if (outcome == JobReport::Outcome::kDone) writer_->Done(report.usage);
  context_.on_report(report);
}

}  // namespace hillstar
