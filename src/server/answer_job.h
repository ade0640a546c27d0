// One HTTP request's answers on their way from the engine to the client. The engine's thread hands
// tokens in, which costs it little; the delivery thread, of which there is one, turns them into
// pieces of the API. Where the client reads slowly, pieces grow and become fewer.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/continuous_batch.h"
#include "engine/text_stream.h"
#include "grammar/matcher.h"
#include "server/answer_request.h"
#include "server/answer_writer.h"
#include "server/task_queue.h"

namespace hillstar {

// What became of a request, for log and metrics.
struct JobReport {
  enum class Outcome { kDone, kCancelled, kFailed };
  Outcome outcome = Outcome::kDone;
  std::string error;
  TokenUsage usage;
  std::optional<double> queue_seconds;        // until the first step that computed of it
  std::optional<double> first_token_seconds;  // since it was submitted, of the first answer
  std::vector<double> token_seconds;  // between one token and the next, of each answer's mean
  double seconds = 0;
};

class AnswerJob : public std::enable_shared_from_this<AnswerJob> {
 public:
  using Clock = std::chrono::steady_clock;
  struct Context {
    const Engine& engine;
    std::shared_ptr<const TokenTrie> trie;
    TaskQueue& delivery;
    // Once, on the delivery thread, when the last answer has ended.
    std::function<void(const JobReport&)> on_report;
  };

  AnswerJob(AnswerRequest request, std::unique_ptr<AnswerWriter> writer, Context context);
  ~AnswerJob();

  // What the batch takes, one request an answer; they refer to the job, which lives until all have
  // ended. Errors: kBadRequest.
  std::vector<BatchRequest> MakeBatchRequests();

  // Tells the writer that the request was taken, before anything else.
  void Begin();
  // Ends the job without an answer. Any thread.
  void Fail(const ApiError& error);

  // The numbers that the batch gave. These and the places are guarded by the service.
  void set_batch_ids(std::vector<int64_t> ids) { batch_ids_ = std::move(ids); }
  const std::vector<int64_t>& batch_ids() const { return batch_ids_; }
  // Places in the queue that the job holds; whoever takes them gives them back.
  void set_places(int64_t places) { places_ = places; }
  int64_t TakePlaces() { return std::exchange(places_, 0); }

 private:
  struct Answer;
  struct Event {
    enum class Kind { kBegin, kProgress, kText, kEnd, kFail };
    Kind kind = Kind::kText;
    int64_t answer = 0;
    std::string text = {};
    std::vector<TokenLogprobs> logprobs = {};
    int64_t done = 0, total = 0;  // of kProgress
    std::optional<AnswerEnd> end = {};
    std::optional<ApiError> error = {};
  };

  // On the engine's thread.
  bool TakeToken(Answer& answer, int32_t id);
  void TakeLogprobs(Answer& answer, const TokenLogprobs& logprobs);
  void TakePrompt(Answer& answer, int64_t num_tokens);
  void TakeEnd(Answer& answer, const BatchEnd& end);
  void Push(Event event);
  // On the delivery thread.
  void Deliver();
  void Handle(Event& event);
  void HandleEnd(Answer& answer, const AnswerEnd& end);
  void Report(JobReport::Outcome outcome, const std::string& error);

  const AnswerRequest request_;
  const std::unique_ptr<AnswerWriter> writer_;
  const Context context_;
  const Clock::time_point submitted_;
  const int32_t think_close_;  // id of </think>, or -1
  std::vector<std::unique_ptr<Answer>> answers_;
  std::vector<int64_t> batch_ids_;
  int64_t places_ = 0;

  std::mutex mutex_;  // for the next two
  std::vector<Event> events_;
  bool is_scheduled_ = false;

  // Of the delivery thread.
  bool has_begun_ = false;
  size_t num_ended_ = 0;
  bool is_over_ = false;
};

}  // namespace hillstar
