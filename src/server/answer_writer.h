// Writes the answers of one request in the shape of an API, streamed or whole. Called in order, by
// one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/token_logprobs.h"
#include "server/api_error.h"
#include "tokenizer/answer_reader.h"

namespace hillstar {

// Tokens of one answer, or of all of a request.
struct TokenUsage {
  int64_t prompt = 0;
  int64_t cached = 0;      // of the prompt, taken over from earlier requests
  int64_t completion = 0;  // drawn, without the end token
  int64_t reasoning = 0;   // of them, before </think>
};

enum class AnswerEndReason { kStop, kStopString, kLength, kToolCalls };

struct AnswerEnd {
  AnswerEndReason reason = AnswerEndReason::kStop;
  std::string stop = {};  // of kStopString
  TokenUsage usage = {};
};

// What has come of an answer since the last piece.
struct AnswerPiece {
  int64_t answer = 0;  // its index
  std::vector<AnswerDelta> deltas;
  std::vector<TokenLogprobs> logprobs;  // of the tokens since, where they were asked for
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // The request has been taken.
  virtual void Begin() = 0;
  // So many tokens of the prompt are computed.
  virtual void Progress(int64_t done, int64_t total) = 0;
  virtual void Write(const AnswerPiece& piece) = 0;
  virtual void End(int64_t answer, const AnswerEnd& end) = 0;
  // All answers have ended. `usage` counts each prompt once.
  virtual void Done(const TokenUsage& usage) = 0;
  // Instead of what was to come.
  virtual void Fail(const ApiError& error) = 0;
};

}  // namespace hillstar
