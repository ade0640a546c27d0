#include "engine/engine_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "engine/sampler.h"

namespace hillstar {
namespace {

// Logits of one call: a caller who wants more asks in pieces.
constexpr uint64_t kMaxLogitBytes = uint64_t{8} << 30;
// Rows of MTP logits that are computed at once.
constexpr int64_t kMtpRows = 64;
// Pages that are restored at once: enough for one transfer to be worth it, few beside the pages
// themselves.
constexpr size_t kRestoreBytes = size_t{32} << 20;

}  // namespace

EngineSequence::EngineSequence(EngineState& state, const SequenceOptions& options)
    : s_(state),
      kv_(*state.kv, options.shares_prefixes && !options.keep_hidden),
      keep_hidden_(options.keep_hidden) {}

std::span<const float> EngineSequence::Append(std::span<const int32_t> ids, LogitsMode mode,
                                              const std::atomic<bool>* cancel) {
  CHECK(!s_.tells_tokens);
  CheckIds(ids);
  if (mode == LogitsMode::kAll) CheckLogitBytes(ids.size());
  const int64_t before = num_tokens(), num_ids = int64_t(ids.size());
  const int64_t vocab = s_.config.vocab_size, chunk = s_.sizes.prefill_chunk;
  const int64_t num_rows = mode == LogitsMode::kAll ? num_ids : mode == LogitsMode::kLast ? 1 : 0;
  float* const logits = s_.ResizeLogits(size_t(num_rows * vocab));
  float* out = logits;
  try {
    kv_.Prepare(before, before + num_ids);
    for (int64_t at = 0; at < num_ids; at += chunk) {
      const int64_t n = std::min(chunk, num_ids - at);
      const bool is_last = at + n == num_ids;
      const int64_t num_logits = mode == LogitsMode::kAll ? n : is_last ? num_rows : 0;
      StepAlone(ids.subspan(size_t(at), size_t(n)), num_logits, out, cancel);
      out += num_logits * vocab;
    }
  } catch (...) {
    step_ = {};
    Truncate(before);
    throw;
  }
  return {logits, num_ids == 0 ? 0 : size_t(num_rows * vocab)};
}

void EngineSequence::CheckIds(std::span<const int32_t> ids) const {
  if (failed_) {
    throw Error(ErrorCode::kNonFinite, "the sequence ended at a value that is not finite");
  }
  const int64_t total = num_tokens() + int64_t(ids.size());
  if (total > s_.sizes.context_tokens) {
    throw Error(ErrorCode::kBudget,
                fmt::format("{} tokens do not fit the context of {} (--context)", total,
                            s_.sizes.context_tokens));
  }
  for (int32_t id : ids) {
    if (id >= 0 && id < s_.config.vocab_size) continue;
    throw Error(ErrorCode::kBadRequest, fmt::format("token id {} is outside the vocabulary of {}",
                                                    id, s_.config.vocab_size));
  }
}

void EngineSequence::CheckLogitBytes(size_t num_tokens) const {
  const uint64_t bytes = num_tokens * uint64_t(s_.config.vocab_size) * sizeof(float);
  if (bytes <= kMaxLogitBytes) return;
  throw Error(ErrorCode::kBudget,
              fmt::format("logits of {} tokens are {:.1f} GB; ask for at most {:.1f} GB at once",
                          num_tokens, double(bytes) / 1e9, double(kMaxLogitBytes) / 1e9));
}

void EngineSequence::Enter(int64_t num_tokens, const std::atomic<bool>* cancel) {
  CHECK(step_.kv == nullptr);  // a sequence has one part in a step
  try {
    kv_.Prepare(this->num_tokens(), this->num_tokens() + num_tokens);
  } catch (const Error&) {
    kv_.Truncate(this->num_tokens());
    throw;
  }
  step_ = {&kv_, cancel, StepSequence::Outcome::kDone, 0, 0};
}

void EngineSequence::Leave(std::span<const int32_t> ids) {
  const StepSequence step = std::exchange(step_, {});
  if (step.outcome != StepSequence::Outcome::kDone) {
    failed_ = step.outcome == StepSequence::Outcome::kNonFinite;
    Truncate(num_tokens());
    throw StepError(step);
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  kv_.Commit(ids_);
}

void EngineSequence::StepAlone(std::span<const int32_t> ids, int64_t num_logits, float* out,
                               const std::atomic<bool>* cancel) {
  const StepTimer timer(s_);
  const int64_t n = int64_t(ids.size()), position = num_tokens();
  Enter(n, cancel);
  batch_.clear();
  for (int64_t i = 0; i < n; ++i) batch_.push_back({ids[size_t(i)], position + i, &step_});
  LayerTap tap;
  if (s_.tap) tap = [&](int64_t layer, const float* x) { s_.tap(layer, position, n, x); };
  const int64_t first_wanted = keep_hidden_ || s_.tap ? 0 : n - num_logits;
  s_.work.AddStep(s_.forward->Run(batch_, first_wanted, tap));
  const bool is_done = step_.outcome == StepSequence::Outcome::kDone;
  if (is_done && num_logits > 0) {
    s_.forward->Logits(n - num_logits - first_wanted, num_logits, out);
  }
  s_.forward->Finish();
  Leave(ids);
  if (keep_hidden_) KeepHidden(n);
}

void EngineSequence::KeepHidden(int64_t num_tokens) {
  const size_t held = hidden_.size();
  hidden_.resize(held + size_t(num_tokens * s_.config.hidden_size));
  s_.forward->ReadResidual(num_tokens, hidden_.data() + held);
}

// A step of several sequences. What goes wrong with a part before or after the step becomes its
// error.
class EngineSequence::SharedStep {
 public:
  SharedStep(EngineState& state, std::span<const StepPart> parts, std::span<StepResult> results)
      : s_(state), parts_(parts), results_(results) {}

  void Run() {
    const StepTimer timer(s_);
    EnterAll();
    GatherUnwanted();
    const auto first_wanted = int64_t(batch_.size());
    GatherWanted();
    if (batch_.empty()) return;  // all have their error
    try {
      s_.work.AddStep(s_.forward->Run(batch_, first_wanted, {}));
      HandOut(first_wanted);
    } catch (...) {
      AbandonAll();
      throw;
    }
    LeaveAll();
  }

 private:
  EngineSequence& sequence(size_t p) const {
    return *static_cast<EngineSequence*>(parts_[p].sequence);
  }
  bool wants_head(size_t p) const { return parts_[p].wants_logits || parts_[p].draw; }
  // Tokens of a part that need no head: all, or all but the last.
  size_t num_unwanted(size_t p) const { return parts_[p].ids.size() - size_t(wants_head(p)); }

  template <typename Fn>
  void Attempt(size_t p, const Fn& fn) {
    try {
      fn();
    } catch (const Error& error) {
      results_[p].error = error;
    }
  }

  void EnterAll() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      results_[p] = {};
      Attempt(p, [&] {
        CHECK(!parts_[p].ids.empty() && !sequence(p).keep_hidden_);
        CHECK(!parts_[p].draw || (!parts_[p].wants_logits && !HasPenalties(*parts_[p].draw)));
        sequence(p).CheckIds(parts_[p].ids);
        sequence(p).Enter(int64_t(parts_[p].ids.size()), parts_[p].cancel);
      });
    }
  }

  void GatherUnwanted() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (!results_[p].error) AddTokens(p, 0, num_unwanted(p));
    }
  }

  // Behind all others, so that the last layer skips those; first the logits, then the draws.
  void GatherWanted() {
    for (const bool draws : {false, true}) {
      for (size_t p = 0; p < parts_.size(); ++p) {
        if (results_[p].error || !wants_head(p) || (parts_[p].draw != nullptr) != draws) continue;
        AddTokens(p, num_unwanted(p), parts_[p].ids.size());
        wanting_parts_.push_back(p);
      }
    }
  }

  void AddTokens(size_t p, size_t first, size_t end) {
    const int64_t position = sequence(p).num_tokens();
    for (size_t i = first; i < end; ++i) {
      batch_.push_back({parts_[p].ids[i], position + int64_t(i), &sequence(p).step_});
    }
  }

  // To the parts whose tokens are still in the step. Notes outcomes.
  void HandOut(int64_t first_wanted) {
    const std::span<const int32_t> rows = s_.forward->rows();
    const auto part_of = [&](size_t row) {
      return wanting_parts_[size_t(rows[row] - first_wanted)];
    };
    size_t num_logits = 0;
    while (num_logits < rows.size() && !parts_[part_of(num_logits)].draw) ++num_logits;
    const size_t num_drawn = rows.size() - num_logits;
    const auto vocab = size_t(s_.config.vocab_size);
    const size_t drawn_from = s_.ops().is_host() ? std::min(num_drawn, size_t(kHeadRows)) : 0;
    float* logits = s_.ResizeLogits((num_logits + drawn_from) * vocab);
    if (num_logits > 0) s_.forward->Logits(0, int64_t(num_logits), logits);
    for (size_t row = 0; row < num_logits; ++row) {
      results_[part_of(row)].logits = {logits + row * vocab, vocab};
    }
    if (num_drawn == 0) return s_.forward->Finish();
    for (size_t row = num_logits; row < rows.size(); ++row) {
      draws_.push_back(DrawParamsOf(*parts_[part_of(row)].draw));
    }
    s_.forward->Draw(int64_t(num_logits), draws_, logits + num_logits * vocab);
    const std::vector<int32_t> ids = s_.forward->TakeDrawn(s_.forward->given());
    for (size_t row = num_logits; row < rows.size(); ++row) {
      results_[part_of(row)].drawn = ids[row];
    }
  }

  // Nobody has taken the step.
  void AbandonAll() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (results_[p].error) continue;
      sequence(p).step_ = {};
      sequence(p).Truncate(sequence(p).num_tokens());
    }
  }
  void LeaveAll() {
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (!results_[p].error) Attempt(p, [&] { sequence(p).Leave(parts_[p].ids); });
      if (!results_[p].error) continue;
      results_[p].logits = {};
      results_[p].drawn = -1;
    }
  }

  EngineState& s_;
  const std::span<const StepPart> parts_;
  const std::span<StepResult> results_;
  std::vector<BatchToken> batch_;
  std::vector<size_t> wanting_parts_;  // of each token that needs the head
  std::vector<DrawParams> draws_;
};

void EngineSequence::Step(EngineState& state, std::span<const StepPart> parts,
                          std::span<StepResult> results) {
  CHECK(parts.size() == results.size() && !state.tells_tokens);
  SharedStep(state, parts, results).Run();
}

std::vector<MtpToken> EngineSequence::MtpArgmax(int64_t first) {
  if (!s_.weights.mtp) {
    throw Error(ErrorCode::kUnsupported, s_.options.model + " has no MTP layer loaded");
  }
  CHECK(keep_hidden_);
  const StepTimer timer(s_);
  std::vector<MtpToken> result;
  const int64_t chunk = s_.sizes.prefill_chunk, end = num_tokens() - 1;
  StepSequence step{.kv = &kv_};
  for (int64_t at = 0; at < end; at += chunk) {
    const int64_t n = std::min(chunk, end - at);
    batch_.clear();
    for (int64_t i = at; i < at + n; ++i) batch_.push_back({ids_[size_t(i) + 1], i, &step});
    s_.forward->RunMtp(batch_, hidden_.data() + at * s_.config.hidden_size);
    AppendMtp(std::max<int64_t>(0, first - at), n, &result);
    if (step.outcome != StepSequence::Outcome::kDone) throw StepError(step);
  }
  return result;
}

void EngineSequence::AppendMtp(int64_t first, int64_t end, std::vector<MtpToken>* result) {
  const auto vocab = size_t(s_.config.vocab_size);
  for (int64_t row = first; row < end; row += kMtpRows) {
    const int64_t n = std::min(kMtpRows, end - row);
    float* logits = s_.ResizeLogits(size_t(n) * vocab);
    s_.forward->MtpLogits(row, n, logits);
    for (size_t i = 0; i < size_t(n); ++i) {
      const std::span<const float> of_row(logits + i * vocab, vocab);
      result->push_back({Argmax(of_row), float(MarginOf(of_row))});
    }
  }
}

void EngineSequence::Truncate(int64_t num_tokens) {
  CHECK(num_tokens >= 0 && num_tokens <= this->num_tokens() && !s_.tells_tokens);
  ids_.resize(size_t(num_tokens));
  kv_.Truncate(num_tokens);
  if (keep_hidden_) hidden_.resize(size_t(num_tokens * s_.config.hidden_size));
}

int64_t EngineSequence::AdoptPrefix(std::span<const int32_t> prompt) {
  if (prompt.empty()) {
    Truncate(0);
    return 0;
  }
  const auto all_but_last = prompt.first(prompt.size() - 1);
  const auto common = std::ranges::mismatch(ids_, all_but_last).in1 - ids_.begin();
  Truncate(common);
  const int64_t held = kv_.Adopt(all_but_last, common);
  ids_.assign(prompt.begin(), prompt.begin() + held);
  return held;
}

void EngineSequence::CopyPage(int64_t i, std::span<uint8_t> out) const {
  CHECK(i >= 0 && i < num_pages());
  kv_.ReadPage(i, out);
}

void EngineSequence::RestorePages(const ReadPageFn& read) {
  const KvShape& shape = s_.kv->pool().shape();
  const auto page_bytes = size_t(shape.page_bytes());
  const auto latent_bytes = size_t(shape.latent_page_bytes());
  const size_t batch_bytes = std::min(kRestoreBytes, s_.memory().fill_bytes());
  const auto at_once = int64_t(std::max<size_t>(1, batch_bytes / page_bytes));
  std::vector<uint8_t> packed;
  for (int64_t first = 0; first < kv_.num_pages(); first += at_once) {
    const int64_t count = std::min(at_once, kv_.num_pages() - first);
    packed.assign(size_t(count) * page_bytes, 0);  // `read` may leave rows out
    for (int64_t i = 0; i < count; ++i) {
      const auto page = std::span(packed).subspan(size_t(i) * page_bytes, page_bytes);
      read(first + i, page.first(latent_bytes), page.subspan(latent_bytes));
    }
    kv_.WritePages(first, packed);
  }
}

void EngineSequence::Restore(std::span<const int32_t> ids, const ReadPageFn& read) {
  CHECK(!keep_hidden_);
  Truncate(0);
  CheckIds(ids);
  try {
    kv_.Prepare(0, int64_t(ids.size()));
    RestorePages(read);
  } catch (...) {
    Truncate(0);
    throw;
  }
  ids_.assign(ids.begin(), ids.end());
  kv_.Commit(ids_);
}

}  // namespace hillstar
