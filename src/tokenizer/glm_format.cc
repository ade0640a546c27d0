#include "tokenizer/glm_format.h"

#include <string>
#include <string_view>

#include "tokenizer/conversation.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/text.h"

namespace hillstar {
namespace {

using jinja::Dict;
using jinja::Heap;
using jinja::List;
using jinja::Value;

constexpr std::string_view kToolsBefore =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
constexpr std::string_view kToolsAfter =
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>"
    "<arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</arg_key>"
    "<arg_value>{arg-value-2}</arg_value>...</tool_call>";

constexpr std::string_view kThinkOpen = "<think>";
constexpr std::string_view kThinkClose = "</think>";

class GlmWriter {
 public:
  GlmWriter(const std::vector<ChatMessage>& messages, const ChatOptions& options)
      : messages_(messages), options_(options) {}

  MarkedText Write() {
    Ours("[gMASK]<sop>");
    if (options_.thinking) {
      Ours("<|system|>Reasoning Effort: ");
      Ours(options_.reasoning_effort == "high" ? "High" : "Max");
    }
    WriteTools();
    values_ = MessagesValue(messages_, &heap_);
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i].role == "user") last_user_ = i;
    }
    for (size_t i = 0; i < messages_.size(); ++i) WriteMessage(i);
    if (options_.add_generation_prompt) {
      Ours("<|assistant|><think>");
      if (!options_.thinking) Ours(kThinkClose);
    }
    return std::move(out_);
  }

 private:
  void Ours(std::string_view text) { out_.Append(text, false); }
  void Theirs(std::string_view text) { out_.Append(text, true); }

  void WriteTools() {
    const Value tools = ToolsValue(options_.tools_json, &heap_);
    if (tools.IsNone()) return;
    Ours(kToolsBefore);
    for (const Value& tool : tools.list()->items) {
      const Value* function = tool.dict()->Find("function");
      if (function->dict() != nullptr) WriteTool(*function->dict());
    }
    Ours(kToolsAfter);
  }

  // A deferred tool is one that the model finds by searching, so it is not listed.
  void WriteTool(const Dict& function) {
    const Value* deferred = function.Find("defer_loading");
    if (deferred != nullptr && deferred->Truth()) return;
    Dict* shown = heap_.NewDict();
    for (const Dict::Entry& entry : function.entries()) {
      const std::string& key = entry.key.text()->text();
      if (key != "defer_loading" && key != "strict") shown->Set(entry.key, entry.value);
    }
    out_.Append(jinja::WriteJson(shown, {}));
    Ours("\n");
  }

  void WriteMessage(size_t index) {
    const ChatMessage& message = messages_[index];
    if (message.role == "system") {
      Ours("<|system|>");
      Theirs(message.content);
    } else if (message.role == "user") {
      Ours("<|user|>");
      Theirs(message.content);
    } else if (message.role == "assistant") {
      WriteAssistant(index);
    } else {
      if (index == 0 || messages_[index - 1].role != "tool") Ours("<|observation|>");
      Ours("<tool_response>");
      Theirs(message.content);
      Ours("</tool_response>");
    }
  }

  void WriteAssistant(size_t index) {
    const ChatMessage& message = messages_[index];
    std::string_view reasoning = message.reasoning_content;
    std::string_view content = message.content;
    // Clients that do not separate the reasoning send it back inside the content.
    const size_t close = content.find(kThinkClose);
    if (reasoning.empty() && close != std::string_view::npos) {
      reasoning = content.substr(0, close);
      const size_t open = reasoning.rfind(kThinkOpen);
      if (open != std::string_view::npos) reasoning.remove_prefix(open + kThinkOpen.size());
      content.remove_prefix(content.rfind(kThinkClose) + kThinkClose.size());
    }
    const bool in_last_turn = last_user_ == kNoUser || index > last_user_;
    Ours("<|assistant|><think>");
    if (!options_.clear_thinking || in_last_turn) Theirs(reasoning);
    Ours(kThinkClose);
    Theirs(jinja::Strip(content));
    if (message.tool_calls.empty()) return;
    const Value* calls = values_.list()->items[index].dict()->Find("tool_calls");
    for (const Value& call : calls->list()->items)
      WriteCall(*call.dict()->Find("function")->dict());
  }

  void WriteCall(const Dict& function) {
    Ours("<tool_call>");
    out_.Append(*function.Find("name")->text());
    for (const Dict::Entry& argument : function.Find("arguments")->dict()->entries()) {
      Ours("<arg_key>");
      out_.Append(*argument.key.text());
      Ours("</arg_key><arg_value>");
      const MarkedText* text = argument.value.text();
      out_.Append(text != nullptr ? *text : jinja::WriteJson(argument.value, {}));
      Ours("</arg_value>");
    }
    Ours("</tool_call>");
  }

  static constexpr size_t kNoUser = SIZE_MAX;

  const std::vector<ChatMessage>& messages_;
  const ChatOptions& options_;
  Heap heap_;
  Value values_;  // the messages, with arguments parsed
  size_t last_user_ = kNoUser;
  MarkedText out_;
};

}  // namespace

MarkedText RenderGlm(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  return GlmWriter(messages, options).Write();
}

}  // namespace hillstar
