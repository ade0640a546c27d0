// An answer's text as it streams, read into reasoning, content and tool calls. What comes out,
// joined for each channel and in its order, does not depend on how the text was cut into pieces.
//
// Reasoning is what ThinkSplitter says. A call is what stands between <tool_call> and </tool_call>
// outside of the reasoning (tool_call_reader.h). The rest is content, by these rules:
// - A <tool_call> that no name follows begins no call; it is content as it stands.
// - White space between calls, in front of a call and behind the last one is left out.
// - Text between the parts of a call comes behind the call.
// - A call that is not closed when the text ends is one as soon as its name was followed by a tag;
//   an argument that has begun is closed, and was_cut() tells of it. A name alone is content.
// - In reasoning that is closed later, <tool_call> is reasoning. Where it is never closed, the
//   calls that end the text are calls if all of them are whole, since models forget the </think>;
//   therefore what may be such a call is kept back until it is known.
// One per answer, one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/answer_delta.h"
#include "tokenizer/chat_format.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tool_call_reader.h"

namespace hillstar {

struct AnswerReaderOptions {
  bool starts_thinking = false;  // the prompt ended in an open <think>
  bool reads_calls = false;      // else <tool_call> and its kin are content
  std::vector<ToolDefinition> tools;
};

class AnswerReader {
 public:
  explicit AnswerReader(const AnswerReaderOptions& options);

  // `text` may be any bytes; what is not UTF-8 becomes U+FFFD.
  std::vector<AnswerDelta> Push(std::string_view text);
  // What was kept back. Nothing may be pushed afterwards.
  std::vector<AnswerDelta> Finish();

  int64_t num_calls() const { return num_calls_; }
  // The text ended inside an argument, so that the last call's arguments are JSON, but not whole.
  bool was_cut() const { return was_cut_; }

 private:
  using Deltas = std::vector<AnswerDelta>;

  AnswerReader(std::shared_ptr<ToolSchemas> schemas, int64_t num_calls);
  void Take(std::string_view text, Deltas* deltas);
  std::string_view rest() const { return std::string_view(text_).substr(pos_); }
  // Each takes of rest() what it can; false: no more without further text.
  bool ReadText(Deltas* deltas);
  bool ReadCall(Deltas* deltas);
  bool ReadThoughtCalls(Deltas* deltas);
  void LeaveCall(Deltas* deltas);
  bool TakeThoughtDeltas(const Deltas& deltas);
  void GiveThoughtCallsUp(size_t end, Deltas* deltas);
  void FinishThoughtCalls(Deltas* deltas);
  void Split(std::string_view text, Deltas* deltas);
  void TellPiece(const ThinkSplitter::Piece& piece, Deltas* deltas);
  void TellContent(std::string_view content, Deltas* deltas);

  const bool reads_calls_;
  const bool is_inner_ = false;  // `thought_` of another reader
  const std::shared_ptr<ToolSchemas> schemas_;
  Utf8Stream utf8_;
  ThinkSplitter splitter_;
  int64_t num_calls_ = 0;
  bool was_cut_ = false;
  bool is_closed_ = true;  // the last call, by a tag

  std::string text_;  // from what may have to be read again
  size_t pos_ = 0;    // of what is to be read next
  // Behind a <tool_call>; it is content if this is no call.
  std::unique_ptr<ToolCallReader> call_;
  size_t call_pos_ = 0;
  // Behind a <tool_call> in the reasoning: reads what follows as if the reasoning had ended.
  std::unique_ptr<AnswerReader> thought_;
  size_t thought_pos_ = 0;
  Deltas thought_deltas_;

  std::string blanks_;           // at the end of the content so far
  bool is_behind_call_ = false;  // no content since
};

// A whole answer, built of deltas.
struct Answer {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;
  void Apply(const AnswerDelta& delta);
};

// The answer of a text that is there as a whole.
Answer ReadAnswer(std::string_view text, const AnswerReaderOptions& options);

}  // namespace hillstar
