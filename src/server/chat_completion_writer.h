// Answers of /v1/chat/completions, streamed or whole.
// Source: platform.openai.com/docs/api-reference/chat/object and /chat/streaming.
#pragma once

#include "server/reply_writer.h"

namespace hillstar {

class ChatCompletionWriter : public AnswerWriter {
 public:
  ChatCompletionWriter(ReplyContext context, int64_t num_answers);

  void Begin() override;
  void Progress(int64_t done, int64_t total) override;
  void Write(const AnswerPiece& piece) override;
  void End(int64_t answer, const AnswerEnd& end) override;
  void Done(const TokenUsage& usage) override;
  void Fail(const ApiError& error) override;

 private:
  // The object that every chunk or the whole answer begins as.
  OrderedJson Head(const char* object) const;
  void SendChoice(int64_t answer, OrderedJson delta, OrderedJson logprobs, OrderedJson finish);
  OrderedJson Delta(const AnswerDelta& delta, int64_t answer) const;
  OrderedJson Message(int64_t answer) const;
  OrderedJson Logprobs(const std::vector<TokenLogprobs>& logprobs) const;
  std::string CallId(int64_t answer, int64_t call) const;

  const ReplyContext context_;
  bool has_started_ = false;
  std::vector<WholeAnswer> answers_;
};

// "usage" of OpenAI's objects.
OrderedJson OpenAiUsage(const TokenUsage& usage);
// "stop", "length" or "tool_calls".
const char* OpenAiFinish(AnswerEndReason reason);
// A token's text, which for a part of a character is no UTF-8 and then written with escapes.
OrderedJson LogprobToken(const Tokenizer& tokenizer, const TokenLogprob& token);

}  // namespace hillstar
