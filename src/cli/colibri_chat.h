// Brings a conversation in that the predecessor, colibri, has saved. Uses the engine from the
// caller's thread.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/conversation.h"
#include "hillstar/engine.h"

namespace hillstar {

// The messages of a conversation's tokens, cut at the role markers; what precedes the first one is
// left out.
std::vector<ChatMessage> MessagesOfTokens(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// Restores tokens and rows into the conversation's sequence and their messages into the
// conversation. Returns sentences for the user. Errors: ColibriKvFile's; the engine's; kBadFile if
// it holds no message.
std::vector<std::string> ImportColibriChat(Engine& engine, const std::filesystem::path& file,
                                           Conversation& conversation);

}  // namespace hillstar
