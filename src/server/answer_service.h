// Answers many requests at once with one engine: owns the queue, the loop of steps and the threads
// that deliver. Submit, Cancel, Stop and the snapshot may be used by any thread; Run is for the
// thread that opened the engine.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>

#include "engine/continuous_batch.h"
#include "hillstar/engine.h"
#include "server/answer_job.h"

namespace hillstar {

// What the service is at.
struct ServiceSnapshot {
  double seconds = 0;              // since the service began
  ContinuousBatch::Phases phases;  // of answers
  KvUse kv;
  ContinuousBatch::Counts counts;
};

class AnswerService {
 public:
  struct Options {
    int64_t max_waiting = 512;  // answers beyond those that may run
    ContinuousBatch::Options batch;
  };
  // `engine` outlives the object.
  AnswerService(Engine& engine, Options options);
  ~AnswerService();

  // Puts a request in line; the job's writer is told all that follows, on the delivery thread.
  // Errors: kBadRequest; kBudget; kBusy when too many wait; kCancelled when the service ends.
  std::shared_ptr<AnswerJob> Submit(AnswerRequest request, std::unique_ptr<AnswerWriter> writer,
                                    std::function<void(const JobReport&)> on_report);
  // Ends a job as cancelled, between two layers if it runs. Its place in the queue is free at once.
  void Cancel(const std::shared_ptr<AnswerJob>& job);

  // Computes until Stop and until nothing runs, or the grace is over: what has not ended then ends
  // with an error. When it returns all reports have been made, and no more will be.
  void Run();
  // No request is taken any more.
  void Stop(std::chrono::milliseconds grace);

  ServiceSnapshot snapshot() const;
  // What the engine has done, as it was half a second ago at most.
  std::shared_ptr<const EngineActivity> activity() const;

 private:
  using Clock = AnswerJob::Clock;

  // Takes places for answers, before anything is made for them. Errors as Submit's.
  void Reserve(int64_t num_answers);
  void TakeSnapshot();
  // Reading it costs a GPU a round trip, so that it is done now and then, and before a rest.
  void TakeActivity(bool rests);
  // A GPU's steps are not timed by stage as they run: one is measured for all.
  void MeasureStages();

  Engine& engine_;
  const Options options_;
  const Clock::time_point began_ = Clock::now();
  std::shared_ptr<const TokenTrie> trie_;
  std::unique_ptr<ContinuousBatch> batch_;
  TaskQueue delivery_{1};             // ends before the batch, which its tasks may refer to
  Clock::time_point activity_taken_;  // by Run
  int64_t activity_steps_ = 0;        // computed then

  mutable std::mutex mutex_;  // for what follows, and for places and numbers of jobs
  int64_t num_open_ = 0;      // answers that count for the queue's limit
  bool is_stopping_ = false;
  Clock::time_point deadline_;
  ServiceSnapshot snapshot_;
  std::shared_ptr<const EngineActivity> activity_;
};

}  // namespace hillstar
