// Messages, tools and options of a request as template values: the context that Hugging Face's
// apply_chat_template gives to a template. Texts that others wrote are marked. Pure; any thread may
// call with a Heap of its own.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/chat_format.h"
#include "tokenizer/jinja/value.h"

namespace hillstar {

// A list of mappings: role, content, and where they are not empty reasoning_content and tool_calls
// (each with type and function: name and arguments as a mapping).
// Errors: kBadRequest for an unknown role or arguments that are no JSON object.
jinja::Value MessagesValue(const std::vector<ChatMessage>& messages, jinja::Heap* heap);

// A list of mappings {"type": "function", "function": ...}; none where there are no tools.
// Errors: kBadRequest for a tool that is no JSON object.
jinja::Value ToolsValue(const std::vector<std::string>& tools_json, jinja::Heap* heap);

}  // namespace hillstar
