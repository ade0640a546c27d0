// The loop of `hillstar chat`, apart from the model's loading, so that tests can drive it.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/conversation.h"
#include "cli/line_source.h"
#include "core/options.h"
#include "hillstar/engine.h"

namespace hillstar {

class SavedChat;

struct ChatSession {
  Engine& engine;
  const Options& options;
  bool is_built_in;   // the model
  bool has_terminal;  // colours and prompts are of use
  LineSource& lines;
  std::ostream& out;           // answers
  std::ostream& notes;         // banner, statistics, what a slash command says
  SavedChat* saved = nullptr;  // --session
  // Brings a conversation in, or empty; returns sentences for the user.
  std::function<std::vector<std::string>(Conversation&)> import = {};
};

// Talks until the lines end or /quit; returns the exit code. A failed answer is told and the
// conversation goes on.
int Chat(const ChatSession& session);

}  // namespace hillstar
