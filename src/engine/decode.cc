// Decoding: on a GPU the next step is under way before the host knows the last one's tokens.
#include <algorithm>

#include "core/check.h"
#include "engine/engine_sequence.h"

namespace hillstar {
namespace {

// Appends next[p] to part p's sequence and draws the tokens behind them. Errors: of the first part
// that has one; all sequences are then as they were.
std::vector<int32_t> StepAll(EngineState& state, std::span<const DecodePart> parts,
                             std::span<const int32_t> next) {
  std::vector<StepPart> step(parts.size());
  std::vector<StepResult> results(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const DecodePart& part = parts[i];
    step[i] = {part.sequence, next.subspan(i, 1), false, part.cancel, &part.sampling};
  }
  EngineSequence::Step(state, step, results);
  for (StepResult& result : results) {
    if (!result.error) continue;
    for (size_t i = 0; i < parts.size(); ++i) {
      Sequence& sequence = *parts[i].sequence;
      if (!results[i].error) sequence.Truncate(sequence.num_tokens() - 1);
    }
    throw *result.error;
  }
  std::vector<int32_t> drawn;
  for (const StepResult& result : results) drawn.push_back(result.drawn);
  return drawn;
}

}  // namespace

// Steps of one token for each sequence. Step k appends tokens_[k]; its logits give tokens_[k + 1].
class EngineSequence::RunAhead {
 public:
  RunAhead(EngineState& state, std::span<const DecodePart> parts) : s_(state), parts_(parts) {
    for (const DecodePart& part : parts) {
      CHECK(!HasPenalties(part.sampling));
      sequences_.push_back(static_cast<EngineSequence*>(part.sequence));
      CHECK(!sequences_.back()->keep_hidden_);
      next_.push_back(part.next);
      draws_.push_back(DrawParamsOf(part.sampling));
    }
  }

  // Each step is begun when the one before it has begun; its own tokens are taken after that.
  void Run(const NextTokensFn& on_next) {
    while (true) {
      if (!BeginAlone()) {
        next_ = StepAll(s_, parts_, next_);  // which knows whose error is the first
        if (!on_next(next_)) return;
        continue;
      }
      if (!RunOn(on_next)) return;
    }
  }

 private:
  // A step under way.
  struct Flight {
    std::vector<StepSequence> outcomes;
    std::vector<BatchToken> tokens;
  };
  Flight& flight(int64_t step) { return flights_[size_t(step % 2)]; }

  // From a step that is under way to one that none could be begun behind, or behind which a part is
  // cancelled. False where on_next ended the decoding.
  bool RunOn(const NextTokensFn& on_next) {
    const StepTimer timer(s_);
    while (true) {
      const int64_t ahead = num_taken_ + 1;
      const bool runs_ahead = HasRoom() && !Prepare(ahead);
      if (runs_ahead) Begin(ahead);
      // Forgets the step ahead, or what was prepared of it. Its kernels write rows that nobody
      // counts any more: before they are another's, since everything runs in order.
      const auto drop = [&] {
        if (runs_ahead) s_.forward->TakeDrawn(flight(ahead).tokens);
        Truncate();
      };
      bool goes_on = false;
      try {
        Take();
        goes_on = on_next(next_);
      } catch (...) {
        drop();
        throw;
      }
      if (goes_on && runs_ahead && !IsAnyCancelled()) continue;
      drop();
      return goes_on;
    }
  }

  // For the step after the one whose tokens are to be taken.
  bool HasRoom() const {
    return std::ranges::all_of(sequences_, [&](const EngineSequence* s) {
      return s->num_tokens() + 2 <= s_.sizes.context_tokens;
    });
  }

  static bool IsCancelled(const DecodePart& part) { return part.cancel && part.cancel->load(); }
  bool IsAnyCancelled() const { return std::ranges::any_of(parts_, IsCancelled); }

  // Makes the step's rows writable, or says why they are not.
  std::optional<Error> Prepare(int64_t step) {
    try {
      for (EngineSequence* s : sequences_) {
        const int64_t position = s->num_tokens() + (step - num_taken_);
        s->kv_.Prepare(position, position + 1);
      }
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  }

  // The next step, when none is under way. False, and nothing done, where a part cannot take it.
  bool BeginAlone() {
    if (IsAnyCancelled() || !AreIdsTaken()) return false;
    if (Prepare(num_taken_)) {
      Truncate();
      return false;
    }
    Begin(num_taken_);
    return true;
  }

  bool AreIdsTaken() const {
    try {
      for (size_t i = 0; i < sequences_.size(); ++i) sequences_[i]->CheckIds({&next_[i], 1});
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  void Begin(int64_t step) {
    const bool is_alone = step == num_taken_;
    Flight& f = flight(step);
    f.outcomes.resize(sequences_.size());
    f.tokens.clear();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      EngineSequence& s = *sequences_[i];
      const int64_t position = s.num_tokens() + (step - num_taken_);
      f.outcomes[i] = {.kv = &s.kv_};
      f.tokens.push_back({is_alone ? next_[i] : 0, position, &f.outcomes[i]});
    }
    if (is_alone) {
      s_.forward->Run(f.tokens, 0, {});
    } else {
      s_.forward->RunNext(f.tokens);
    }
    s_.work.AddStep(int64_t(f.tokens.size()));
    s_.forward->Draw(0, draws_, nullptr);
  }

  // The tokens of the oldest step under way, which has then been appended. Errors: of the first
  // part that has one; nothing is then appended.
  void Take() {
    Flight& f = flight(num_taken_);
    std::vector<int32_t> ids = s_.forward->TakeDrawn(f.tokens);
    ids.resize(sequences_.size());
    std::optional<Error> error;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      using Outcome = StepSequence::Outcome;
      StepSequence& part = f.outcomes[i];
      if (part.outcome == Outcome::kNonFinite) sequences_[i]->failed_ = true;
      if (part.outcome == Outcome::kDone && IsCancelled(parts_[i])) {
        part.outcome = Outcome::kCancelled;
      }
      if (part.outcome != Outcome::kDone && !error) error = StepError(part);
    }
    if (error) {
      Truncate();
      throw *error;
    }
    for (size_t i = 0; i < sequences_.size(); ++i) {
      EngineSequence& s = *sequences_[i];
      s.ids_.push_back(next_[i]);
      s.kv_.Commit(s.ids_);
    }
    ++num_taken_;
    next_ = std::move(ids);
  }

  void Truncate() {
    for (EngineSequence* s : sequences_) s->kv_.Truncate(s->num_tokens());
  }

  EngineState& s_;
  const std::span<const DecodePart> parts_;
  std::vector<EngineSequence*> sequences_;
  std::vector<DrawParams> draws_;
  std::vector<int32_t> next_;  // what the oldest step under way appends
  std::array<Flight, 2> flights_;
  int64_t num_taken_ = 0;
};

namespace {

// While on_next runs, which may throw.
class Telling {
 public:
  explicit Telling(EngineState& state) : state_(state) { state_.tells_tokens = true; }
  ~Telling() { state_.tells_tokens = false; }
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;

 private:
  EngineState& state_;
};

// Where the host computes, the next token is known as soon as the step is.
void DecodeStepByStep(EngineState& state, std::span<const DecodePart> parts,
                      const NextTokensFn& on_next) {
  std::vector<int32_t> next;
  for (const DecodePart& part : parts) next.push_back(part.next);
  do {
    next = StepAll(state, parts, next);
  } while (on_next(next));
}

}  // namespace

void EngineSequence::Decode(EngineState& state, std::span<const DecodePart> parts,
                            const NextTokensFn& on_next) {
  CHECK(!state.tells_tokens);
  const auto tell = [&](std::span<const int32_t> ids) {
    const Telling telling(state);
    return on_next(ids);
  };
  if (state.ops().is_host()) return DecodeStepByStep(state, parts, tell);
  RunAhead(state, parts).Run(tell);
}

void EngineSequence::Decode(int32_t next, const SamplingParams& sampling,
                            const std::function<bool(int32_t id)>& on_next,
                            const std::atomic<bool>* cancel) {
  const DecodePart part{this, next, sampling, cancel};
  Decode(s_, {&part, 1}, [&](std::span<const int32_t> ids) { return on_next(ids[0]); });
}

}  // namespace hillstar
