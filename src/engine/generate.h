// One answer: prompt ids in, text out as it comes. Reuses what the sequence already holds of the
// prompt. Runs on the caller's thread, which must be the one that uses the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampler.h"
#include "hillstar/engine.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

struct GenerateRequest {
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  int64_t max_tokens = 0;        // >= 1
  int64_t context_tokens = 0;    // the engine's; prompt and answer together do not pass it
  std::vector<int32_t> end_ids;  // any of them ends the answer and is not part of it
  std::vector<std::string> stops;
  // Called with text that is certain to be shown: whole UTF-8 characters, no control tokens.
  std::function<void(std::string_view)> on_text;
  // Called with each token of the answer; false ends the answer as if cancelled. May be empty.
  std::function<bool(int32_t)> on_token;
  const std::atomic<bool>* cancel = nullptr;
};

enum class FinishReason { kStop, kLength, kCancelled };
// "stop", "length", "cancelled".
const char* FinishReasonName(FinishReason reason);

struct GenerateResult {
  std::vector<int32_t> ids;  // of the answer; the end token is left out
  std::string text;          // all that on_text was given
  FinishReason finish_reason = FinishReason::kLength;
  int32_t end_id = -1;  // the end token that came, or -1
  std::string stop;     // the stop string that came, or ""
  std::string notice;   // a sentence where the context and not max_tokens ended it; else ""
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  // of the prompt, already in the sequence
  int64_t steps = 0;          // single-token steps behind decode_seconds
  double prefill_seconds = 0;
  double decode_seconds = 0;
  double decode_rate() const { return steps > 0 ? double(steps) / decode_seconds : 0; }
  double prefill_rate() const {
    return prefill_seconds > 0 ? double(prompt_tokens - reused_tokens) / prefill_seconds : 0;
  }
};

// Tokens that an answer may have. Errors: kBadRequest for an empty prompt, one that leaves no room
// in the context, max_tokens < 1.
int64_t RoomForAnswer(int64_t prompt_tokens, int64_t max_tokens, int64_t context_tokens);

// Errors: kBadRequest for an empty prompt, a prompt that leaves no room in the context,
// max_tokens < 1 or sampling parameters out of range; kNonFinite from the engine or the logits.
GenerateResult Generate(Sequence& sequence, const Tokenizer& tokenizer,
                        const GenerateRequest& request);

// The ids that end a turn of a conversation: `eos_ids` and every role marker that the tokenizer
// knows, so that no model goes on to speak for the other side.
std::vector<int32_t> ChatEndIds(std::span<const int32_t> eos_ids, const Tokenizer& tokenizer);

// A text's ids as --raw takes it: what looks like an added token becomes it, and the [gMASK]<sop>
// with which every text of the model begins is put in front where it is missing.
std::vector<int32_t> RawPromptIds(const Tokenizer& tokenizer, const std::string& text);

}  // namespace hillstar
