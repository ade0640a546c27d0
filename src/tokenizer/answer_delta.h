// Pieces of an answer in the order in which they come. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

struct ToolDefinition {
  std::string name;
  std::string parameters_json;  // a JSON schema of the arguments; may be empty
};

struct AnswerDelta {
  enum class Kind { kReasoning, kContent, kCallBegin, kCallArguments, kCallEnd };
  Kind kind = Kind::kContent;
  int64_t call = -1;  // which tool call, from 0; -1 of reasoning and content
  // Reasoning, content, the name of a call that begins, or a piece of its arguments' JSON. Whole
  // UTF-8 characters; a piece of JSON does not end inside an escape.
  std::string text;
  bool operator==(const AnswerDelta&) const = default;
};

// Appends text to the last delta where that is of the same kind and call, else as a new one. Empty
// text is none, unless a call begins or ends with it.
inline void AppendDelta(AnswerDelta::Kind kind, int64_t call, std::string_view text,
                        std::vector<AnswerDelta>* deltas) {
  const bool is_mark = kind == AnswerDelta::Kind::kCallBegin || kind == AnswerDelta::Kind::kCallEnd;
  if (text.empty() && !is_mark) return;
  if (!is_mark && !deltas->empty() && deltas->back().kind == kind && deltas->back().call == call) {
    deltas->back().text += text;
  } else {
    deltas->push_back({kind, call, std::string(text)});
  }
}

}  // namespace hillstar
