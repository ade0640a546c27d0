#include "cli/colibri_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/terminal.h"
#include "core/check.h"
#include "engine/colibri_rows.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

constexpr const char* kRoles[] = {"system", "user", "assistant", "observation"};

// "<think>reasoning</think>content" in its two parts; the prompt may have held the <think>.
void SplitReasoning(ChatMessage* message) {
  if (message->content.find("</think>") == std::string::npos) return;
  ThinkSplitter splitter(!message->content.starts_with("<think>"));
  const ThinkSplitter::Piece first = splitter.Push(message->content), rest = splitter.Finish();
  message->reasoning_content = first.reasoning + rest.reasoning;
  message->content = first.content + rest.content;
}

}  // namespace

std::vector<ChatMessage> MessagesOfTokens(const Tokenizer& tokenizer,
                                          std::span<const int32_t> ids) {
  const auto role_of = [&](int32_t id) -> std::optional<std::string> {
    for (const char* role : kRoles) {
      if (tokenizer.AddedTokenId(fmt::format("<|{}|>", role)) == id) return role;
    }
    return std::nullopt;
  };
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < ids.size();) {
    const std::optional<std::string> role = role_of(ids[i++]);
    if (!role) continue;
    size_t end = i;
    while (end < ids.size() && !role_of(ids[end])) ++end;
    ChatMessage message{*role == "observation" ? "tool" : *role,
                        tokenizer.Decode(ids.subspan(i, end - i), /*skip_special=*/false),
                        "",
                        {}};
    if (message.role == "assistant") SplitReasoning(&message);
    messages.push_back(std::move(message));
    i = end;
  }
  // A marker that ended an answer begins nothing.
  if (!messages.empty() && messages.back().content.empty()) messages.pop_back();
  return messages;
}

std::vector<std::string> ImportColibriChat(Engine& engine, const std::filesystem::path& file,
                                           Conversation& conversation) {
  const KvShape& shape = engine.kv_shape();
  ColibriKvFile saved = ColibriKvFile::Open(
      file, ColibriShapeOf(shape, engine.config().num_layers, engine.config().vocab_size));
  ColibriKvRecord record;
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < saved.num_tokens() && saved.ReadRecord(i, &record); ++i) {
    ids.push_back(record.token);
  }
  std::vector<ChatMessage> messages = MessagesOfTokens(engine.tokenizer(), ids);
  if (messages.empty()) {
    std::string why;
    for (const std::string& finding : saved.findings()) why += "; " + finding;
    throw Error(ErrorCode::kBadFile, fmt::format("{} holds {} and no message{}", file.string(),
                                                 CountText(int64_t(ids.size()), "token"), why));
  }
  conversation.sequence().Restore(
      ids, [&](int64_t page, std::span<uint8_t> latents, std::span<uint8_t> keys) {
        for (int64_t place = 0; place < kPageTokens; ++place) {
          const int64_t token = page * kPageTokens + place;
          if (token >= int64_t(ids.size())) break;
          CHECK(saved.ReadRecord(token, &record));
          StoreColibriRecord(shape, record, place, latents, keys);
        }
      });
  conversation.SetMessages(std::move(messages));
  std::vector<std::string> notes = saved.findings();
  notes.push_back(fmt::format("of colibri's conversation in {} {} and {} are here", file.string(),
                              CountText(int64_t(conversation.messages().size()), "message"),
                              CountText(int64_t(ids.size()), "token")));
  return notes;
}

}  // namespace hillstar
