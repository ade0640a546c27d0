// The items of a Responses conversation, read into the messages that the chat template knows: an
// assistant's turn is several items there, one message here.
// Source: platform.openai.com/docs/api-reference/responses/create, member "input".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/api_json.h"
#include "tokenizer/chat_format.h"

namespace hillstar {

// One conversation, one thread. Errors of all members: ApiError of status 400 naming the member.
class ItemReader {
 public:
  // The item of a kept response that an "item_reference" means, or null.
  using FindItem = std::function<OrderedJson(const std::string& id)>;
  explicit ItemReader(FindItem find_item) : find_item_(std::move(find_item)) {}

  // Adds an item to the conversation. Returns it as it is kept and listed: with all members that
  // the item's type has, and with `new_id` behind its type's prefix where it has no id.
  OrderedJson Read(const OrderedJson& item, const std::string& path, const std::string& new_id);

  // The conversation so far. Nothing may be read afterwards.
  std::vector<ChatMessage> TakeMessages();

 private:
  OrderedJson ReadMessage(JsonFields& item);
  OrderedJson ReadCall(JsonFields& item);
  OrderedJson ReadResult(JsonFields& item);
  OrderedJson ReadReasoning(JsonFields& item);
  OrderedJson ReadReference(JsonFields& item);
  ChatMessage& Turn(bool is_new);
  void EndTurn();
  void EndResults();

  const FindItem find_item_;
  std::vector<ChatMessage> messages_;
  bool has_turn_ = false;
  ChatMessage turn_;  // the assistant's that more items may belong to
  int64_t num_calls_ = 0;
  std::map<std::string, int64_t> calls_;  // where each stands among all of them, by "call_id"
  // Results of calls since the last other item, each with its call's place.
  std::vector<std::pair<int64_t, ChatMessage>> results_;
};

}  // namespace hillstar
