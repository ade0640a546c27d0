// An answer's text as it streams, read into reasoning, content and tool calls. Calls are not told
// apart yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat_format.h"

namespace hillstar {

struct ToolDefinition {
  std::string name;
  std::string parameters_json;
};

struct AnswerDelta {
  enum class Kind { kReasoning, kContent, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kContent;
  int64_t call = -1;
  std::string text;
};

struct AnswerReaderOptions {
  bool starts_thinking = false;
  bool reads_calls = false;
  std::vector<ToolDefinition> tools;
};

class AnswerReader {
 public:
  explicit AnswerReader(const AnswerReaderOptions& options) : splitter_(options.starts_thinking) {}
  std::vector<AnswerDelta> Push(std::string_view text) { return Deltas(splitter_.Push(text)); }
  std::vector<AnswerDelta> Finish() { return Deltas(splitter_.Finish()); }
  int64_t num_calls() const { return 0; }

 private:
  static std::vector<AnswerDelta> Deltas(const ThinkSplitter::Piece& piece) {
    std::vector<AnswerDelta> deltas;
    if (!piece.reasoning.empty()) {
      deltas.push_back({AnswerDelta::Kind::kReasoning, -1, piece.reasoning});
    }
    if (!piece.content.empty()) {
      deltas.push_back({AnswerDelta::Kind::kContent, -1, piece.content});
    }
    return deltas;
  }

  ThinkSplitter splitter_;
};

struct Answer {
  std::string reasoning, content;
  std::vector<ToolCall> tool_calls;
  void Apply(const AnswerDelta& delta) {
    (delta.kind == AnswerDelta::Kind::kReasoning ? reasoning : content) += delta.text;
  }
};

}  // namespace hillstar
