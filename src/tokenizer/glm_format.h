// GLM-5.2's own rendering of a conversation, for checkpoints that bring no chat template. Pure; any
// thread may call.
#pragma once

#include <vector>

#include "tokenizer/chat_format.h"
#include "tokenizer/marked_text.h"

namespace hillstar {

// Errors: kBadRequest for an unknown role, tool arguments or tools that are no JSON objects.
MarkedText RenderGlm(const std::vector<ChatMessage>& messages, const ChatOptions& options);

}  // namespace hillstar
