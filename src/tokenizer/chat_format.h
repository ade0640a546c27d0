// A conversation as the model's own template writes it. The checkpoint's chat_template (Jinja)
// decides; GLM-5.2's rendering stands in where a checkpoint brings none. Immutable after loading.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace hillstar {

struct ToolCall {
  std::string name;
  std::string arguments_json;  // an object; "null", "" and "[]" count as {}
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  std::string reasoning_content;  // of an assistant's turn
  std::vector<ToolCall> tool_calls;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  bool thinking = true;
  std::string reasoning_effort;         // "high", "max" or "": the template's default
  bool clear_thinking = true;           // templates that know it drop earlier turns' reasoning
  std::vector<std::string> tools_json;  // one function object each
};

class ChatFormat {
 public:
  // `template_jinja` may be empty: GLM-5.2's rendering. `tokenizer_config_json` may hold
  // "chat_template" and the bos/eos tokens; may be empty. Errors: kUnsupported for a template
  // that uses what the interpreter lacks, naming line and construct.
  static std::shared_ptr<const ChatFormat> Create(std::string_view template_jinja,
                                                  std::string_view tokenizer_config_json);
  virtual ~ChatFormat() = default;

  // The prompt as text, byte-equal to Hugging Face's rendering.
  virtual std::string Render(const std::vector<ChatMessage>& messages,
                             const ChatOptions& options) const = 0;
  // The prompt as ids: control tokens of the template become added tokens, while the same
  // characters inside a message's text stay text.
  virtual std::vector<int32_t> RenderIds(const std::vector<ChatMessage>& messages,
                                         const ChatOptions& options,
                                         const Tokenizer& tokenizer) const = 0;
  // Where the template comes from, for reports: "built-in GLM-5.2" or "checkpoint".
  virtual std::string_view source() const = 0;
};

// The control tokens ([gMASK], <sop> and what looks like <|user|>) that `format` writes around
// messages of every role and that `tokenizer` has not among its added tokens, so that they would
// reach the model as plain text.
std::vector<std::string> MissingControlTokens(const ChatFormat& format, const Tokenizer& tokenizer);

// Whether a rendered prompt ends in an open <think>, so that the answer begins with reasoning.
bool EndsThinking(std::string_view rendered_prompt);

// Splits an answer's text into reasoning and content as it streams. Starts inside the reasoning
// if the prompt ended in an open <think>. A </think> outside of it, which models write that close
// their reasoning twice, ends a line of the content.
class ThinkSplitter {
 public:
  explicit ThinkSplitter(bool starts_thinking) : thinking_(starts_thinking) {}
  struct Piece {
    std::string reasoning, content;
  };
  Piece Push(std::string_view text);  // holds back what may become a tag
  Piece Finish();
  bool is_thinking() const { return thinking_; }

 private:
  bool thinking_;
  bool is_in_line_ = false;  // of the content
  std::string held_;
};

}  // namespace hillstar
