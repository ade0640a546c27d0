#include "tokenizer/conversation.h"

#include <fmt/format.h>

#include <algorithm>

#include "hillstar/error.h"
#include "tokenizer/jinja/json.h"

namespace hillstar {
namespace {

using jinja::Dict;
using jinja::Heap;
using jinja::List;
using jinja::Value;

void SetPlain(Dict* dict, std::string_view key, Value value) {
  dict->Set(Value::Plain(key), std::move(value));
}

Value Marked(std::string_view text) { return MarkedText(text, true); }

// Clients send "null", "" and "[]" for a call without arguments.
Value ArgumentsValue(const ToolCall& call, Heap* heap) {
  if (call.arguments_json.find_first_not_of(" \t\r\n") == std::string::npos) {
    return heap->NewDict();
  }
  const std::optional<Value> arguments = jinja::ParseJson(call.arguments_json, heap);
  if (arguments) {
    if (arguments->dict() != nullptr) return *arguments;
    const List* list = arguments->list();
    if (arguments->IsNone() || (list != nullptr && list->items.empty())) return heap->NewDict();
  }
  throw Error(ErrorCode::kBadRequest,
              fmt::format("The arguments of the tool call \"{}\" are no JSON object: {:.80}",
                          call.name, call.arguments_json));
}

Value ToolCallsValue(const std::vector<ToolCall>& calls, Heap* heap) {
  List* list = heap->NewList();
  for (const ToolCall& call : calls) {
    Dict* function = heap->NewDict();
    SetPlain(function, "name", Marked(call.name));
    SetPlain(function, "arguments", ArgumentsValue(call, heap));
    Dict* entry = heap->NewDict();
    SetPlain(entry, "type", Value::Plain("function"));
    SetPlain(entry, "function", function);
    list->items.push_back(entry);
  }
  return list;
}

Value MessageValue(const ChatMessage& message, size_t index, Heap* heap) {
  // Templates may build a control token from the role, so it is not marked and has to be known.
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};
  if (std::find(std::begin(kRoles), std::end(kRoles), message.role) == std::end(kRoles)) {
    throw Error(ErrorCode::kBadRequest,
                fmt::format("Message {} has the role \"{:.40}\"; known are system, user, "
                            "assistant and tool.",
                            index, message.role));
  }
  Dict* dict = heap->NewDict();
  SetPlain(dict, "role", Value::Plain(message.role));
  SetPlain(dict, "content", Marked(message.content));
  if (!message.reasoning_content.empty()) {
    SetPlain(dict, "reasoning_content", Marked(message.reasoning_content));
  }
  if (!message.tool_calls.empty()) {
    SetPlain(dict, "tool_calls", ToolCallsValue(message.tool_calls, heap));
  }
  return dict;
}

}  // namespace

Value MessagesValue(const std::vector<ChatMessage>& messages, Heap* heap) {
  List* list = heap->NewList();
  for (size_t i = 0; i < messages.size(); ++i) {
    list->items.push_back(MessageValue(messages[i], i, heap));
  }
  return list;
}

Value ToolsValue(const std::vector<std::string>& tools_json, Heap* heap) {
  if (tools_json.empty()) return jinja::None();
  List* list = heap->NewList();
  for (size_t i = 0; i < tools_json.size(); ++i) {
    const std::optional<Value> tool = jinja::ParseJson(tools_json[i], heap);
    if (!tool || tool->dict() == nullptr) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("Tool {} is no JSON object: {:.80}", i, tools_json[i]));
    }
    if (tool->dict()->Find("function") != nullptr) {
      list->items.push_back(*tool);
      continue;
    }
    Dict* wrapped = heap->NewDict();
    SetPlain(wrapped, "type", Value::Plain("function"));
    SetPlain(wrapped, "function", *tool);
    list->items.push_back(wrapped);
  }
  return list;
}

}  // namespace hillstar
