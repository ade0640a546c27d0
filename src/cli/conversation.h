// A conversation with a model: the messages so far, in valid UTF-8 (what is not becomes U+FFFD),
// and the sequence that holds their tokens. What two prompts have in common is computed once. Uses
// the engine from the caller's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate.h"
#include "tokenizer/chat_format.h"

namespace hillstar {

class Conversation {
 public:
  // `engine` must outlive the conversation. `request` holds sampling, lengths and stop strings.
  Conversation(Engine& engine, GenerateRequest request, ChatOptions chat,
               const SequenceOptions& sequence = {});

  using TextFn = std::function<void(std::string_view)>;
  // Answers `text` and keeps both; reasoning and content go to their functions as they come. Where
  // the answer fails or is cancelled before anything came, the conversation is as it was before.
  // Errors: Generate's.
  GenerateResult Ask(const std::string& text, const TextFn& on_reasoning, const TextFn& on_content,
                     const std::atomic<bool>* cancel);

  void Clear();                             // forgets everything but the system message
  void SetSystem(const std::string& text);  // "" removes it
  void SetThinking(bool thinking) { chat_.thinking = thinking; }
  bool thinking() const { return chat_.thinking; }
  const std::vector<ChatMessage>& messages() const { return messages_; }
  // The sequence, for saving and restoring its rows.
  Sequence& sequence() { return *sequence_; }
  const Sequence& sequence() const { return *sequence_; }
  void SetMessages(std::vector<ChatMessage> messages);
  // Takes over messages that Json gave. Errors: kBadFile naming `source`.
  void FromJson(const std::string& json, const std::string& source);
  // The messages as a JSON array of objects with role, content and perhaps reasoning_content.
  std::string Json() const;

 private:
  Engine& engine_;
  GenerateRequest request_;
  ChatOptions chat_;
  const SequenceOptions sequence_options_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<ChatMessage> messages_;
};

}  // namespace hillstar
