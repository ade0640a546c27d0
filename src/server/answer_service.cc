#include "server/answer_service.h"

#include <fmt/format.h>

#include "core/log.h"

namespace hillstar {
namespace {

constexpr std::chrono::milliseconds kActivityPeriod{500};

}  // namespace

AnswerService::AnswerService(Engine& engine, Options options)
    : engine_(engine),
      options_(std::move(options)),
      trie_(TokenTrie::Of(engine.tokenizer())),
      batch_(std::make_unique<ContinuousBatch>(engine, options_.batch)) {
  TakeSnapshot();
  activity_ = std::make_shared<const EngineActivity>(engine_.activity());
}

// What was submitted after Run has ended, or where it never ran, ends here.
AnswerService::~AnswerService() {
  Stop(std::chrono::milliseconds(0));
  batch_->EndAll({ErrorCode::kCancelled, "the server is shutting down"});
}

void AnswerService::Reserve(int64_t num_answers) {
  const int64_t limit = engine_.max_sequences() + options_.max_waiting;
  if (num_answers > limit) {
    throw Error(ErrorCode::kBadRequest,
                fmt::format("the request asks for {} answers; {} may run or wait (--max-sequences "
                            "and --max-queue)",
                            num_answers, limit));
  }
  const std::lock_guard lock(mutex_);
  if (is_stopping_) throw Error(ErrorCode::kCancelled, "the server is shutting down");
  if (num_open_ + num_answers > limit) {
    throw Error(
        ErrorCode::kBusy,
        fmt::format("{} answers run or wait already, and {} more would pass the limit of {} "
                    "(--max-sequences and --max-queue); try again later",
                    num_open_, num_answers, limit));
  }
  num_open_ += num_answers;
}

std::shared_ptr<AnswerJob> AnswerService::Submit(AnswerRequest request,
                                                 std::unique_ptr<AnswerWriter> writer,
                                                 std::function<void(const JobReport&)> on_report) {
  const int64_t num_answers = request.num_answers();
  const auto self = std::make_shared<std::weak_ptr<AnswerJob>>();
  const auto report = [this, self, on_report](const JobReport& job_report) {
    if (const auto job = self->lock()) Cancel(job);  // what is left of it
    if (on_report) on_report(job_report);
  };
  Reserve(num_answers);
  const auto job = std::make_shared<AnswerJob>(
      std::move(request), std::move(writer), AnswerJob::Context{engine_, trie_, delivery_, report});
  *self = job;
  job->set_places(num_answers);
  try {
    std::vector<BatchRequest> batch = job->MakeBatchRequests();
    const std::lock_guard lock(mutex_);
    job->set_batch_ids(batch_->SubmitAll(std::move(batch)));
  } catch (...) {
    Cancel(job);
    throw;
  }
  job->Begin();
  return job;
}

void AnswerService::Cancel(const std::shared_ptr<AnswerJob>& job) {
  const std::lock_guard lock(mutex_);  // a job may end before Submit is done with it
  num_open_ -= job->TakePlaces();
  for (const int64_t id : job->batch_ids()) batch_->Cancel(id);
}

void AnswerService::Run() {
  MeasureStages();
  while (true) {
    const bool has_computed = batch_->Step();
    TakeSnapshot();
    TakeActivity(!has_computed);
    {
      const std::lock_guard lock(mutex_);
      if (is_stopping_ && (!has_computed || Clock::now() >= deadline_)) break;
    }
    constexpr std::chrono::seconds kLong{60};
    if (!has_computed) batch_->WaitForRequest(kLong);
  }
  batch_->EndAll({ErrorCode::kCancelled, "the server is shutting down"});
  TakeSnapshot();
  delivery_.WaitUntilDone();
}

void AnswerService::Stop(std::chrono::milliseconds grace) {
  const std::lock_guard lock(mutex_);
  const auto deadline = Clock::now() + grace;
  deadline_ = is_stopping_ ? std::min(deadline_, deadline) : deadline;
  is_stopping_ = true;
  batch_->WakeUp();
}

ServiceSnapshot AnswerService::snapshot() const {
  const std::lock_guard lock(mutex_);
  ServiceSnapshot now = snapshot_;
  now.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  return now;
}

std::shared_ptr<const EngineActivity> AnswerService::activity() const {
  const std::lock_guard lock(mutex_);
  return activity_;
}

void AnswerService::TakeActivity(bool rests) {
  const Clock::time_point now = Clock::now();
  const int64_t steps = batch_->counts().steps;
  if (steps == activity_steps_ || (!rests && now < activity_taken_ + kActivityPeriod)) return;
  activity_taken_ = now;
  activity_steps_ = steps;
  auto activity = std::make_shared<const EngineActivity>(engine_.activity());
  const std::lock_guard lock(mutex_);
  activity_ = std::move(activity);
}

void AnswerService::MeasureStages() {
  constexpr int32_t kAnyToken = 0;
  try {
    const auto sequence = engine_.NewSequence({.shares_prefixes = false});
    sequence->Append({&kAnyToken, 1}, LogitsMode::kNone);
    engine_.ProfileStep(*sequence, kAnyToken);
  } catch (const Error& error) {
    LogWarn(fmt::format("the steps' stages could not be measured: {}", error.what()));
  }
}

void AnswerService::TakeSnapshot() {
  const ContinuousBatch::Phases phases = batch_->phases();
  const KvUse kv = engine_.kv_use();
  const std::lock_guard lock(mutex_);
  snapshot_.phases = phases;
  snapshot_.kv = kv;
  snapshot_.counts = batch_->counts();
}

}  // namespace hillstar
