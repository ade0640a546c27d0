// A sequence of an engine, and the steps that compute it, alone or beside others. Used by one
// thread at a time.
#pragma once

#include <span>
#include <vector>

#include "engine/engine_state.h"
#include "hillstar/engine.h"
#include "kv/sequence_kv.h"

namespace hillstar {

class EngineSequence : public Sequence {
 public:
  // `state` outlives the object.
  EngineSequence(EngineState& state, const SequenceOptions& options);

  int64_t num_tokens() const override { return int64_t(ids_.size()); }
  std::span<const int32_t> ids() const override { return ids_; }
  std::span<const float> Append(std::span<const int32_t> ids, LogitsMode mode,
                                const std::atomic<bool>* cancel) override;
  void Decode(int32_t next, const SamplingParams& sampling,
              const std::function<bool(int32_t id)>& on_next,
              const std::atomic<bool>* cancel) override;
  std::vector<MtpToken> MtpArgmax(int64_t first) override;
  void Truncate(int64_t num_tokens) override;
  int64_t AdoptPrefix(std::span<const int32_t> prompt) override;
  int64_t num_pages() const override { return KvShape::PagesOf(num_tokens()); }
  int64_t num_shared_pages() const override { return kv_.num_shared(); }
  void CopyPage(int64_t i, std::span<uint8_t> out) const override;
  void Restore(std::span<const int32_t> ids, const ReadPageFn& read) override;

  // See Engine::Step.
  static void Step(EngineState& state, std::span<const StepPart> parts,
                   std::span<StepResult> results);
  // See Engine::Decode.
  static void Decode(EngineState& state, std::span<const DecodePart> parts,
                     const NextTokensFn& on_next);

 private:
  class RunAhead;
  class SharedStep;
  void RestorePages(const ReadPageFn& read);

  // Errors: as Append's, before anything is computed.
  void CheckIds(std::span<const int32_t> ids) const;
  void CheckLogitBytes(size_t num_tokens) const;
  // Makes the pages of the next tokens writable and puts the sequence into a step. REQUIRES: it is
  // in none.
  void Enter(int64_t num_tokens, const std::atomic<bool>* cancel);
  // After a step: keeps `ids` if all went well. Errors: the outcome's; the sequence is then as it
  // was before the step.
  void Leave(std::span<const int32_t> ids);
  // One step of this sequence alone; `out` f32 [rows, vocab] takes the last rows' logits.
  void StepAlone(std::span<const int32_t> ids, int64_t num_logits, float* out,
                 const std::atomic<bool>* cancel);
  void KeepHidden(int64_t num_tokens);
  // The MTP head's tokens of rows [first, end) of the step.
  void AppendMtp(int64_t first, int64_t end, std::vector<MtpToken>* result);

  EngineState& s_;
  SequenceKv kv_;
  const bool keep_hidden_;
  bool failed_ = false;
  std::vector<int32_t> ids_;
  std::vector<float> hidden_;  // [tokens, hidden] after the last layer, if kept
  StepSequence step_;          // the step it takes part in; without `kv` between steps
  std::vector<BatchToken> batch_;
};

}  // namespace hillstar
