// Many requests at once: each step computes the next tokens of those that the scheduler chooses,
// draws, and hands tokens out. Requests come and go between steps ("continuous batching"). Submit
// and Cancel may be called by any thread, everything else by the one that uses the engine; its
// callbacks run there too.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/generate.h"
#include "engine/scheduler.h"
#include "engine/token_logprobs.h"
#include "hillstar/engine.h"

namespace hillstar {

struct BatchEnd {
  FinishReason reason = FinishReason::kLength;
  std::optional<Error> error = std::nullopt;  // ended the request; `reason` then says nothing
  int32_t end_id = -1;                        // the end token that came, or -1
  int64_t reused_tokens = 0;                  // of the prompt, taken over from the prefix index
  int64_t num_pauses = 0;
};

struct BatchRequest {
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  int64_t max_tokens = 0;
  std::vector<int32_t> end_ids;  // any of them ends the answer and is not handed out
  TokenRules rules;
  int64_t num_top_logprobs = -1;  // -1: no logprobs
  // None may throw.
  std::function<void(const TokenLogprobs&)> on_logprobs;  // of the token that is told next
  std::function<bool(int32_t id)> on_token;               // false ends the answer, as if cancelled
  // The prompt's tokens so far that are computed or were taken over; after each step that computed
  // some of them.
  std::function<void(int64_t num_tokens)> on_prompt;
  std::function<void(const BatchEnd&)> on_end;  // once, last
};

class ContinuousBatch {
 public:
  struct Options {
    int64_t mixed_prompt_tokens = 64;        // SchedulerLimits
    std::filesystem::path park_folder = {};  // where paused sequences' pages go; empty: nowhere,
                                             // their rows are computed again
  };
  struct Counts {
    int64_t steps = 0, prompt_tokens = 0, answer_tokens = 0;  // computed
    int64_t pauses = 0, parked_pages = 0, recomputed_tokens = 0;
  };

  // `engine` outlives the object, which is the only one to use it meanwhile.
  ContinuousBatch(Engine& engine, Options options);
  // Requests that have not ended end as cancelled. REQUIRES that no other thread calls any more.
  ~ContinuousBatch();

  // Checks the request and puts it in line; returns its number. Errors: kBadRequest as Generate's;
  // kBudget if all pages together could not hold it.
  int64_t Submit(BatchRequest request);
  // The same for several: all are put in line, or none.
  std::vector<int64_t> SubmitAll(std::vector<BatchRequest> requests);
  // Ends a request between two layers; one that has ended already is left alone.
  void Cancel(int64_t id);

  // Computes one step. False, and nothing done, if there is no request. Never fails: what goes
  // wrong ends the requests that it concerns, with the error.
  bool Step();
  // Waits until there is a request, until the time is up, or until WakeUp, which any thread may
  // call, is called.
  void WaitForRequest(std::chrono::milliseconds at_most);
  void WakeUp();

  // Ends every request with the error.
  void EndAll(const Error& error);

  struct Phases {
    int64_t waiting = 0, running = 0, paused = 0;
  };
  Phases phases() const;
  const Counts& counts() const { return counts_; }
  int64_t num_requests() const;  // that have not ended

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  // Checks the request; its number is given later.
  EntryPtr MakeEntry(BatchRequest request) const;
  void TakeNew();
  void EndCancelled();
  StepPlan Plan() const;
  void EndForLackOfPages();
  void Pause(Entry& entry);
  void Enter(Entry& entry);
  void Compute(std::span<const StepPlan::Share> shares);
  void TakeResult(Entry& entry, int64_t num_tokens, const StepResult& result);
  // Draws the next token from the logits of the last known one, and takes it.
  void Draw(Entry& entry, std::span<const float> logits);
  // Takes the next token; ends the entry where that ends it.
  void Take(Entry& entry, int32_t id);
  void End(Entry& entry, const BatchEnd& end);
  Entry& entry(int64_t id) { return *live_.at(id); }

  Engine& engine_;
  const Options options_;
  SchedulerLimits limits_;
  Counts counts_;
  std::map<int64_t, EntryPtr> live_;  // by number, in order of arrival

  mutable std::mutex mutex_;  // for what follows
  std::condition_variable has_new_;
  bool is_woken_ = false;
  int64_t next_id_ = 1;
  std::vector<EntryPtr> new_;
  std::map<int64_t, EntryPtr> all_;  // that have not ended
};

}  // namespace hillstar
