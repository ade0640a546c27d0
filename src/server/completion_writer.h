// Answers of /v1/completions, streamed or whole.
// Source: platform.openai.com/docs/api-reference/completions/object.
#pragma once

#include "server/reply_writer.h"

namespace hillstar {

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(ReplyContext context, int64_t num_answers);

  void Begin() override;
  void Progress(int64_t done, int64_t total) override;
  void Write(const AnswerPiece& piece) override;
  void End(int64_t answer, const AnswerEnd& end) override;
  void Done(const TokenUsage& usage) override;
  void Fail(const ApiError& error) override;

 private:
  OrderedJson Head() const;
  OrderedJson Choice(int64_t answer, const std::string& text,
                     const std::vector<TokenLogprobs>& logprobs, OrderedJson finish);
  void SendChoice(OrderedJson choice);
  OrderedJson Logprobs(int64_t answer, const std::vector<TokenLogprobs>& logprobs);
  // What comes back of the answer's prompt.
  std::string Echo(int64_t answer) const;

  const ReplyContext context_;
  bool has_started_ = false;
  std::vector<WholeAnswer> answers_;
  std::vector<int64_t> text_offsets_;  // of the next token with logprobs
};

}  // namespace hillstar
