// Answers of /v1/messages, streamed or whole.
// Source: docs.anthropic.com/en/api/messages and /messages-streaming.
#pragma once

#include "server/reply_writer.h"

namespace hillstar {

class MessageWriter : public AnswerWriter {
 public:
  // `prompt_tokens` are told at once; how many of them were cached only at the end.
  MessageWriter(ReplyContext context, int64_t prompt_tokens);

  void Begin() override;
  void Progress(int64_t done, int64_t total) override;
  void Write(const AnswerPiece& piece) override;
  void End(int64_t answer, const AnswerEnd& end) override;
  void Done(const TokenUsage& usage) override;
  void Fail(const ApiError& error) override;

 private:
  using Kind = AnswerDelta::Kind;
  OrderedJson Head() const;
  void SendEvent(const char* type, OrderedJson members);
  void SendDelta(const AnswerDelta& delta);
  void OpenBlock(Kind kind, OrderedJson block);
  void CloseBlock();
  OrderedJson Content() const;
  OrderedJson UseBlock(int64_t call, const std::string& name, OrderedJson input) const;

  const ReplyContext context_;
  const int64_t prompt_tokens_;
  bool has_started_ = false;
  bool has_block_ = false;       // a content block is open
  Kind block_ = Kind::kContent;  // what it holds
  int64_t num_blocks_ = 0;
  Answer answer_;  // where it is sent whole
  AnswerEnd end_;
};

}  // namespace hillstar
