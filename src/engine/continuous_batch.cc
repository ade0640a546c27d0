#include "engine/continuous_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/log.h"
#include "kv/layout.h"
#include "kv/parked_pages.h"
#include "model/config.h"

namespace hillstar {
struct ContinuousBatch::Entry {
  Entry(BatchRequest request_, int64_t vocab_size)
      : request(std::move(request_)),
        sampler(request.sampling, request.prompt_ids, vocab_size, request.rules),
        known(request.prompt_ids) {}

  int64_t id = 0;
  BatchRequest request;
  Sampler sampler;
  std::vector<int32_t> known;  // the prompt, then the answer
  SequencePhase phase = SequencePhase::kWaiting;
  std::unique_ptr<Sequence> sequence;  // while running
  std::optional<ParkedPages> parked;   // while paused
  int64_t kept_tokens = 0;             // of `parked`
  int64_t last_step = 0;
  BatchEnd end;
  std::atomic<bool> cancel{false};

  int64_t num_known() const { return int64_t(known.size()); }
  int64_t num_computed() const { return sequence ? sequence->num_tokens() : kept_tokens; }
  int64_t num_answer_tokens() const { return num_known() - int64_t(request.prompt_ids.size()); }
  bool answers() const { return num_answer_tokens() > 0 && num_known() == num_computed() + 1; }
  bool needs_logits() const { return sampler.needs_logits() || request.num_top_logprobs >= 0; }
};

ContinuousBatch::ContinuousBatch(Engine& engine, Options options)
    : engine_(engine), options_(std::move(options)) {
  limits_.step_tokens = engine.max_step_tokens();
  limits_.mixed_prompt_tokens = options_.mixed_prompt_tokens;
  limits_.max_running = engine.max_sequences();
  limits_.total_pages = engine.kv_use().total_pages;
  limits_.page_tokens = kPageTokens;
}

ContinuousBatch::~ContinuousBatch() {
  TakeNew();
  while (!live_.empty()) End(*live_.begin()->second, {.reason = FinishReason::kCancelled});
}

ContinuousBatch::EntryPtr ContinuousBatch::MakeEntry(BatchRequest request) const {
  const int64_t prompt = int64_t(request.prompt_ids.size());
  request.max_tokens = RoomForAnswer(prompt, request.max_tokens, engine_.context_tokens());
  CheckAdmissible(prompt, request.max_tokens, limits_);
  const int64_t vocab = engine_.config().vocab_size;
  for (int32_t id : request.prompt_ids) {
    if (id >= 0 && id < vocab) continue;
    throw Error(ErrorCode::kBadRequest,
                fmt::format("token id {} is outside the vocabulary of {}", id, vocab));
  }
  return std::make_shared<Entry>(std::move(request), vocab);
}

int64_t ContinuousBatch::Submit(BatchRequest request) {
  std::vector<BatchRequest> requests;
  requests.push_back(std::move(request));
  return SubmitAll(std::move(requests))[0];
}

std::vector<int64_t> ContinuousBatch::SubmitAll(std::vector<BatchRequest> requests) {
  std::vector<EntryPtr> entries;
  for (BatchRequest& request : requests) entries.push_back(MakeEntry(std::move(request)));
  std::vector<int64_t> ids;
  const std::lock_guard lock(mutex_);
  for (const EntryPtr& entry : entries) {
    entry->id = next_id_++;
    ids.push_back(entry->id);
    new_.push_back(entry);
    all_.emplace(entry->id, entry);
  }
  has_new_.notify_one();
  return ids;
}

void ContinuousBatch::EndAll(const Error& error) {
  TakeNew();
  while (!live_.empty()) End(*live_.begin()->second, {.error = error});
}

ContinuousBatch::Phases ContinuousBatch::phases() const {
  Phases phases;
  for (const auto& [id, entry] : live_) {
    if (entry->phase == SequencePhase::kRunning) ++phases.running;
    if (entry->phase == SequencePhase::kPaused) ++phases.paused;
  }
  phases.waiting = num_requests() - phases.running - phases.paused;
  return phases;
}

void ContinuousBatch::Cancel(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto it = all_.find(id);
  if (it != all_.end()) it->second->cancel = true;
}

int64_t ContinuousBatch::num_requests() const {
  const std::lock_guard lock(mutex_);
  return int64_t(all_.size());
}

void ContinuousBatch::WaitForRequest(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  has_new_.wait_for(lock, at_most, [&] { return is_woken_ || !all_.empty(); });
  is_woken_ = false;
}

void ContinuousBatch::WakeUp() {
  const std::lock_guard lock(mutex_);
  is_woken_ = true;
  has_new_.notify_one();
}

bool ContinuousBatch::Step() {
  TakeNew();
  EndCancelled();
  if (live_.empty()) return false;
  const StepPlan plan = Plan();
  if (plan == StepPlan{}) EndForLackOfPages();
  for (int64_t id : plan.pause) Pause(entry(id));
  for (int64_t id : plan.resume) Enter(entry(id));
  for (int64_t id : plan.admit) Enter(entry(id));
  Compute(plan.shares);
  return true;
}

void ContinuousBatch::TakeNew() {
  const std::lock_guard lock(mutex_);
  for (EntryPtr& entry : new_) live_.emplace(entry->id, std::move(entry));
  new_.clear();
}

void ContinuousBatch::EndCancelled() {
  std::vector<EntryPtr> cancelled;
  for (const auto& [id, entry] : live_) {
    if (entry->cancel) cancelled.push_back(entry);
  }
  for (const EntryPtr& entry : cancelled) End(*entry, {.reason = FinishReason::kCancelled});
}

StepPlan ContinuousBatch::Plan() const {
  std::vector<ScheduledSequence> sequences;
  sequences.reserve(live_.size());
  for (const auto& [id, entry] : live_) {
    ScheduledSequence s;
    s.id = s.arrival = id;
    s.phase = entry->phase;
    s.num_known = entry->num_known();
    s.num_computed = entry->num_computed();
    s.answers = entry->answers();
    if (entry->sequence) {
      s.num_pages = entry->sequence->num_pages();
      s.num_shared_pages = entry->sequence->num_shared_pages();
    }
    s.last_step = entry->last_step;
    sequences.push_back(s);
  }
  SchedulerLimits limits = limits_;
  const KvUse use = engine_.kv_use();
  limits.available_pages = use.available_pages;
  limits.total_pages = use.total_pages;
  return PlanStep(sequences, limits);
}

// Nothing can go on, since there are fewer pages than when the requests were taken.
void ContinuousBatch::EndForLackOfPages() {
  Entry& oldest = *live_.begin()->second;
  End(oldest,
      {.error = Error(ErrorCode::kBudget,
                      fmt::format("{} tokens do not fit the KV cache, which the system gave "
                                  "memory for {} pages of {} tokens",
                                  oldest.num_known(), engine_.kv_use().total_pages, kPageTokens))});
}

// Parks the pages in a file: reading them back is many times faster than computing them again.
void ContinuousBatch::Pause(Entry& entry) {
  ++counts_.pauses;
  ++entry.end.num_pauses;
  entry.phase = SequencePhase::kPaused;
  const Sequence& sequence = *entry.sequence;
  if (!options_.park_folder.empty()) {
    try {
      entry.parked.emplace(
          options_.park_folder, sequence.num_pages(), engine_.page_bytes(),
          [&](int64_t page, std::span<uint8_t> out) { sequence.CopyPage(page, out); });
      entry.kept_tokens = sequence.num_tokens();
      counts_.parked_pages += sequence.num_pages();
    } catch (const Error& error) {
      LogWarn(fmt::format("a paused sequence of {} tokens will be computed again: {}",
                          sequence.num_tokens(), error.what()));
      entry.parked.reset();
    }
  }
  entry.sequence.reset();
}

void ContinuousBatch::Enter(Entry& entry) {
  const bool is_new = entry.phase == SequencePhase::kWaiting;
  entry.phase = SequencePhase::kRunning;
  entry.sequence = engine_.NewSequence();
  if (entry.parked) {
    try {
      entry.sequence->Restore(std::span(entry.known).first(size_t(entry.kept_tokens)),
                              [&](int64_t page, std::span<uint8_t> first, std::span<uint8_t> rest) {
                                entry.parked->Read(page, first, rest);
                              });
    } catch (const Error& error) {
      LogWarn(fmt::format("a paused sequence is computed again: {}", error.what()));
    }
    entry.parked.reset();
    entry.kept_tokens = 0;
  }
  if (entry.sequence->num_tokens() > 0) return;
  const int64_t reused = entry.sequence->AdoptPrefix(entry.known);
  if (is_new) {
    entry.end.reused_tokens = reused;
  } else {
    counts_.recomputed_tokens += entry.num_known() - 1 - reused;
  }
}

void ContinuousBatch::Compute(std::span<const StepPlan::Share> shares) {
  std::vector<StepPart> parts;
  std::vector<Entry*> entries;
  for (const StepPlan::Share& share : shares) {
    Entry& e = entry(share.id);
    const int64_t computed = e.num_computed();
    const int64_t n = std::min(share.num_tokens, e.num_known() - computed);
    const auto ids = std::span(e.known).subspan(size_t(computed), size_t(n));
    const bool is_known = computed + n == e.num_known();  // then the next token is wanted
    const SamplingParams& sampling = e.request.sampling;
    parts.push_back({e.sequence.get(), ids, is_known && e.needs_logits(), &e.cancel,
                     is_known && !e.needs_logits() ? &sampling : nullptr});
    entries.push_back(&e);
  }
  if (parts.empty()) return;
  ++counts_.steps;
  std::vector<StepResult> results(parts.size());
  engine_.Step(parts, results);
  for (size_t i = 0; i < parts.size(); ++i) {
    TakeResult(*entries[i], int64_t(parts[i].ids.size()), results[i]);
  }
}

void ContinuousBatch::TakeResult(Entry& entry, int64_t num_tokens, const StepResult& result) {
  if (result.error && result.error->code() == ErrorCode::kCancelled) {
    return End(entry, {.reason = FinishReason::kCancelled});
  }
  if (result.error && result.error->code() == ErrorCode::kBudget) return Pause(entry);
  if (result.error) return End(entry, {.error = result.error});
  entry.last_step = counts_.steps;
  const bool is_answer = num_tokens == 1 && entry.num_answer_tokens() > 0;
  (is_answer ? counts_.answer_tokens : counts_.prompt_tokens) += num_tokens;
  if (!is_answer && entry.request.on_prompt) entry.request.on_prompt(entry.num_computed());
  if (result.drawn >= 0) return Take(entry, result.drawn);
  if (!result.logits.empty()) Draw(entry, result.logits);
}

void ContinuousBatch::Draw(Entry& entry, std::span<const float> logits) {
  int32_t id = -1;
  try {
    id = entry.sampler.Draw(logits, entry.num_known());
  } catch (const Error& error) {
    return End(entry, {.error = error});
  }
  const BatchRequest& request = entry.request;
  const bool ends = std::ranges::count(request.end_ids, id) > 0;
  if (!ends) entry.sampler.Accept(id);
  if (!ends && request.num_top_logprobs >= 0 && request.on_logprobs) {
    request.on_logprobs(LogprobsOf(logits, id, request.num_top_logprobs));
  }
  Take(entry, id);
}

void ContinuousBatch::Take(Entry& entry, int32_t id) {
  const BatchRequest& request = entry.request;
  if (std::ranges::count(request.end_ids, id) > 0) {
    return End(entry, {.reason = FinishReason::kStop, .end_id = id});
  }
  entry.known.push_back(id);
  if (request.on_token && !request.on_token(id)) {
    return End(entry, {.reason = FinishReason::kCancelled});
  }
  if (entry.num_answer_tokens() >= request.max_tokens) End(entry, {});
}

void ContinuousBatch::End(Entry& entry, const BatchEnd& end) {
  BatchEnd whole = end;
  whole.reused_tokens = entry.end.reused_tokens;
  whole.num_pauses = entry.end.num_pauses;
  EntryPtr last = live_.at(entry.id);  // lives until the callback is done
  live_.erase(entry.id);
  {
    const std::lock_guard lock(mutex_);
    all_.erase(entry.id);
  }
  entry.sequence.reset();
  entry.parked.reset();
  if (entry.request.on_end) entry.request.on_end(whole);
}

}  // namespace hillstar
