// Speed of several sequences and of long contexts. Uses the engine from the caller's thread.
#pragma once

#include <cstdint>
#include <vector>

#include "hillstar/engine.h"

namespace hillstar {

// Prompt of each sequence of a batch, and the tokens that it decodes.
inline constexpr int64_t kBatchPromptTokens = 32;

struct BatchSpeed {
  int64_t num_sequences = 0;
  double median_rate = 0;  // tokens a second of all together
  double lowest_rate = 0, highest_rate = 0;
};
// Tokens that each sequence of a batch comes to at most, its prompt included.
int64_t BatchTokens(int64_t num_sequences, int64_t num_tokens);
// Decodes `num_tokens` in each of num_sequences sequences, `repeat` times. Errors: a request's.
// REQUIRES num_sequences <= engine.max_sequences(); room for BatchTokens in the context, and in the
// pages for all at once.
BatchSpeed MeasureBatch(Engine& engine, int64_t num_sequences, int64_t num_tokens, int64_t repeat);

// Times between two tokens of an answer, in milliseconds, over all running answers.
struct Gaps {
  double median_ms = 0, longest_ms = 0;
};
struct MixedLoad {
  int64_t num_answers = 0, prompt_tokens = 0;
  int64_t mixed_prompt_tokens = 0;  // of the prompt in a step with answers at most
  Gaps before, meanwhile;           // the prompt's arrival; until its first token
  double first_token_seconds = 0;   // of the prompt
};
// Tokens that each of the answers comes to at most, its own prompt included.
int64_t MixedAnswerTokens(int64_t num_answers, int64_t prompt_tokens, int64_t mixed_prompt_tokens);
// num_answers answers run when a prompt arrives. Errors: a request's. REQUIRES room for all, as
// above.
MixedLoad MeasureMixedLoad(Engine& engine, int64_t num_answers, int64_t prompt_tokens,
                           int64_t mixed_prompt_tokens);

struct SharedPrefix {
  int64_t prefix_tokens = 0, reused_tokens = 0;
  double first_seconds = 0, second_seconds = 0;  // to the first token
};
// Two prompts that share their first prefix_tokens tokens, then differ in `rest` more.
SharedPrefix MeasureSharedPrefix(Engine& engine, int64_t prefix_tokens, int64_t rest);

struct LongContext {
  int64_t context_tokens = 0;
  double median_ms = 0, lowest_ms = 0;  // of a decode step
};
// Steps of one token behind context_tokens random rows.
LongContext MeasureSyntheticContext(Engine& engine, int64_t context_tokens, int64_t num_steps);

}  // namespace hillstar
