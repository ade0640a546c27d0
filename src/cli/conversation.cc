#include "cli/conversation.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/request.h"
#include "formats/json_scan.h"
#include "model/config.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

constexpr size_t kMaxJsonBytes = size_t{1} << 30;

}  // namespace

Conversation::Conversation(Engine& engine, GenerateRequest request, ChatOptions chat,
                           const SequenceOptions& sequence)
    : engine_(engine),
      request_(std::move(request)),
      chat_(std::move(chat)),
      sequence_options_(sequence),
      sequence_(engine.NewSequence(sequence)) {
  request_.end_ids = ChatEndIds(engine.config().eos_ids, engine.tokenizer());
}

GenerateResult Conversation::Ask(const std::string& text, const TextFn& on_reasoning,
                                 const TextFn& on_content, const std::atomic<bool>* cancel) {
  const ChatFormat& format = engine_.chat_format();
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", ReplaceInvalidUtf8(text), "", {}});
  GenerateRequest request = request_;
  request.prompt_ids = format.RenderIds(messages, chat_, engine_.tokenizer());
  request.cancel = cancel;

  ChatMessage answer{"assistant", "", "", {}};
  ThinkSplitter splitter(EndsThinking(format.Render(messages, chat_)));
  const auto take = [&](const ThinkSplitter::Piece& piece) {
    answer.reasoning_content += piece.reasoning;
    answer.content += piece.content;
    if (!piece.reasoning.empty() && on_reasoning) on_reasoning(piece.reasoning);
    if (!piece.content.empty() && on_content) on_content(piece.content);
  };
  request.on_text = [&](std::string_view piece) { take(splitter.Push(piece)); };
  GenerateResult result;
  try {
    result = Generate(*sequence_, engine_.tokenizer(), request);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNonFinite) sequence_ = engine_.NewSequence(sequence_options_);
    throw;
  }
  take(splitter.Finish());
  const bool nothing_came = answer.content.empty() && answer.reasoning_content.empty();
  if (result.finish_reason == FinishReason::kCancelled && nothing_came) return result;
  messages.push_back(std::move(answer));
  messages_ = std::move(messages);
  return result;
}

void Conversation::Clear() {
  sequence_->Truncate(0);
  std::erase_if(messages_, [](const ChatMessage& m) { return m.role != "system"; });
}

void Conversation::SetSystem(const std::string& text) {
  std::erase_if(messages_, [](const ChatMessage& m) { return m.role == "system"; });
  if (!text.empty()) {
    messages_.insert(messages_.begin(), {"system", ReplaceInvalidUtf8(text), "", {}});
  }
}

void Conversation::SetMessages(std::vector<ChatMessage> messages) {
  messages_ = std::move(messages);
  for (ChatMessage& message : messages_) {
    message.content = ReplaceInvalidUtf8(message.content);
    message.reasoning_content = ReplaceInvalidUtf8(message.reasoning_content);
  }
}

void Conversation::FromJson(const std::string& text, const std::string& source) {
  const nlohmann::json list = ParseJson(text, source, kMaxJsonBytes);
  std::vector<ChatMessage> messages;
  const auto text_of = [&](const nlohmann::json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  const bool is_list = list.is_array() && std::ranges::all_of(list, [&](const auto& message) {
                         return message.is_object() && !text_of(message, "role").empty();
                       });
  if (!is_list) {
    throw Error(ErrorCode::kBadFile,
                source + " does not hold a list of messages with role and content");
  }
  for (const nlohmann::json& message : list) {
    messages.push_back({text_of(message, "role"),
                        text_of(message, "content"),
                        text_of(message, "reasoning_content"),
                        {}});
  }
  messages_ = std::move(messages);
}

std::string Conversation::Json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages_) {
    nlohmann::ordered_json object{{"role", message.role}, {"content", message.content}};
    if (!message.reasoning_content.empty()) {
      object["reasoning_content"] = message.reasoning_content;
    }
    list.push_back(std::move(object));
  }
  return list.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace hillstar
