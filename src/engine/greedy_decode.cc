// Greedy decoding: on a GPU the next step is under way before the host knows the last one's tokens.
#include <algorithm>

#include "core/check.h"
#include "engine/engine_sequence.h"
#include "engine/sampler.h"

namespace hillstar {

// Steps of one token for each sequence. Step k appends tokens_[k]; its logits give tokens_[k + 1].
class EngineSequence::GreedyDecode {
 public:
  GreedyDecode(EngineState& state, std::span<Sequence* const> sequences,
               std::span<const int32_t> next)
      : s_(state), next_(next.begin(), next.end()) {
    CHECK(sequences.size() == next.size());
    for (Sequence* sequence : sequences) {
      sequences_.push_back(static_cast<EngineSequence*>(sequence));
      CHECK(!sequences_.back()->keep_hidden_);
    }
  }

  // Each step is begun when the one before it has begun; its own tokens are taken after that.
  void Run(const NextTokensFn& on_next) {
    for (size_t i = 0; i < sequences_.size(); ++i) sequences_[i]->CheckIds({&next_[i], 1});
    Begin(/*step=*/0);
    while (true) {
      const bool runs_ahead = HasRoom();
      if (runs_ahead) Begin(num_taken_ + 1);
      const bool goes_on = Take() && on_next(next_);
      if (!goes_on || !runs_ahead) {
        if (runs_ahead) Drop();
        if (error_) throw *error_;
        if (!goes_on) return;
        for (EngineSequence* s : sequences_) s->CheckIds({next_.data(), 1});  // throws: no room
      }
    }
  }

 private:
  // A step under way.
  struct Flight {
    std::vector<StepSequence> outcomes;
    std::vector<BatchToken> tokens;
  };
  Flight& flight(int64_t step) { return flights_[size_t(step % 2)]; }

  // For the step after the one whose tokens are to be taken.
  bool HasRoom() const {
    return std::ranges::all_of(sequences_, [&](const EngineSequence* s) {
      return s->num_tokens() + 2 <= s_.sizes.context_tokens;
    });
  }

  void Begin(int64_t step) {
    Flight& f = flight(step);
    f.outcomes.resize(sequences_.size());
    f.tokens.clear();
    for (size_t i = 0; i < sequences_.size(); ++i) {
      EngineSequence& s = *sequences_[i];
      const int64_t position = s.num_tokens() + (step - num_taken_);
      s.kv_.Prepare(position, position + 1);
      f.outcomes[i] = {.kv = &s.kv_};
      f.tokens.push_back({step == 0 ? next_[i] : 0, position, &f.outcomes[i]});
    }
    if (step == 0) {
      s_.forward->Run(f.tokens, 0, {});
    } else {
      s_.forward->RunNext(f.tokens);
    }
    s_.forward->AskLikeliest();
  }

  // The tokens of the oldest step under way, which has then been appended. False on an error.
  bool Take() {
    Flight& f = flight(num_taken_);
    std::vector<int32_t> ids = s_.forward->TakeLikeliest(f.tokens);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      EngineSequence& s = *sequences_[i];
      if (f.outcomes[i].outcome == StepSequence::Outcome::kDone) continue;
      s.failed_ = true;
      if (!error_) error_ = StepError(f.outcomes[i]);
    }
    if (error_) {
      Truncate();
      return false;
    }
    for (size_t i = 0; i < sequences_.size(); ++i) {
      EngineSequence& s = *sequences_[i];
      s.ids_.push_back(next_[i]);
      s.kv_.Commit(s.ids_);
    }
    ++num_taken_;
    next_ = std::move(ids);
    return true;
  }

  // Forgets the step under way. Its kernels write rows that nobody counts any more: before they are
  // another's, since everything runs in order.
  void Drop() {
    Flight& f = flight(error_ ? num_taken_ + 1 : num_taken_);
    s_.forward->TakeLikeliest(f.tokens);
    Truncate();
  }

  void Truncate() {
    for (EngineSequence* s : sequences_) s->kv_.Truncate(s->num_tokens());
  }

  EngineState& s_;
  std::vector<EngineSequence*> sequences_;
  std::vector<int32_t> next_;  // what the oldest step under way appends
  std::array<Flight, 2> flights_;
  int64_t num_taken_ = 0;
  std::optional<Error> error_;
};

namespace {

// Where the host computes, the next token is known as soon as the step is.
void DecodeStepByStep(EngineState& state, std::span<Sequence* const> sequences,
                      std::span<const int32_t> first, const NextTokensFn& on_next) {
  std::vector<int32_t> next(first.begin(), first.end());
  std::vector<StepPart> parts(sequences.size());
  std::vector<StepResult> results(sequences.size());
  do {
    for (size_t i = 0; i < sequences.size(); ++i) {
      parts[i] = {sequences[i], std::span(next).subspan(i, 1), true, nullptr};
    }
    EngineSequence::Step(state, parts, results);
    for (StepResult& result : results) {
      if (!result.error) continue;
      for (size_t i = 0; i < sequences.size(); ++i) {
        if (!results[i].error) sequences[i]->Truncate(sequences[i]->num_tokens() - 1);
      }
      throw *result.error;
    }
    for (size_t i = 0; i < results.size(); ++i) next[i] = Argmax(results[i].logits);
  } while (on_next(next));
}

}  // namespace

void EngineSequence::DecodeGreedily(EngineState& state, std::span<Sequence* const> sequences,
                                    std::span<const int32_t> next, const NextTokensFn& on_next) {
  if (state.ops().is_host()) return DecodeStepByStep(state, sequences, next, on_next);
  GreedyDecode(state, sequences, next).Run(on_next);
}

void EngineSequence::DecodeGreedily(int32_t next, const std::function<bool(int32_t id)>& on_next) {
  Sequence* const sequences[] = {this};
  DecodeGreedily(s_, sequences, {&next, 1},
                 [&](std::span<const int32_t> ids) { return on_next(ids[0]); });
}

}  // namespace hillstar
