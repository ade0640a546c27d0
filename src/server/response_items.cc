#include "server/response_items.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/json_scan.h"
#include "server/api_error.h"
#include "server/request_parts.h"

namespace hillstar {
namespace {

// Members of every item that change nothing here. "status" of what was cut is no other's.
void IgnoreHints(JsonFields& item) {
  item.IgnoreTexts({"status", "phase"});
  item.Ignore({"caller", "created_by"});
}

OrderedJson TextPart(bool is_assistant, const std::string& text) {
  if (!is_assistant) return {{"type", "input_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", OrderedJson::array()}};
}

// One part of type text; appends what it says to `text`.
OrderedJson ReadPart(const OrderedJson& json, const std::string& path, bool is_assistant,
                     std::string* text) {
  JsonFields part(json, path);
  const std::string type = part.RequiredText("type");
  const bool is_refusal = type == "refusal" && is_assistant;
  if (!is_refusal && type != "input_text" && type != "output_text" && type != "text") {
    part.Fail("type", fmt::format("is {}; this model reads text only", Quoted(type)));
  }
  const std::string own = part.RequiredText(is_refusal ? "refusal" : "text");
  part.Ignore({"annotations", "logprobs", "prompt_cache_breakpoint"});
  part.RefuseOthers();
  *text += own;
  if (is_refusal) return {{"type", "refusal"}, {"refusal", own}};
  return TextPart(is_assistant, own);
}

// A text, or parts of which each is a text: as parts.
OrderedJson ReadParts(JsonFields& item, const char* name, bool is_assistant, std::string* text) {
  const OrderedJson& content = item.Required(name);
  OrderedJson parts = OrderedJson::array();
  if (content.is_string()) {
    *text = content.get<std::string>();
    parts.push_back(TextPart(is_assistant, *text));
    return parts;
  }
  const OrderedJson& given = *item.Array(name, kMaxMessages);
  for (size_t i = 0; i < given.size(); ++i) {
    parts.push_back(ReadPart(given[i], ItemPath(item.PathOf(name), i), is_assistant, text));
  }
  return parts;
}

// The texts of the parts of type `type` of a reasoning item.
std::string ReadThoughts(JsonFields& item, const char* name, const char* type) {
  std::string text;
  const OrderedJson* parts = item.Array(name, kMaxMessages);
  for (size_t i = 0; parts != nullptr && i < parts->size(); ++i) {
    JsonFields part((*parts)[i], ItemPath(item.PathOf(name), i));
    part.Required("type");
    part.Choice("type", {type});
    text += part.RequiredText("text");
    part.RefuseOthers();
  }
  return text;
}

}  // namespace

// The assistant's turn that an item goes on with, or a new one.
ChatMessage& ItemReader::Turn(bool is_new) {
  EndResults();
  if (is_new) EndTurn();
  if (!has_turn_) turn_ = {"assistant", "", "", {}};
  has_turn_ = true;
  return turn_;
}

void ItemReader::EndTurn() {
  if (has_turn_) messages_.push_back(std::move(turn_));
  has_turn_ = false;
}

// The template tells results apart by their order only, while a client may send them in any.
void ItemReader::EndResults() {
  std::ranges::stable_sort(results_, {}, [](const auto& result) { return result.first; });
  for (auto& [place, message] : results_) messages_.push_back(std::move(message));
  results_.clear();
}

std::vector<ChatMessage> ItemReader::TakeMessages() {
  EndTurn();
  EndResults();
  return std::move(messages_);
}

OrderedJson ItemReader::ReadMessage(JsonFields& item) {
  item.Required("role");
  std::string role = *item.Choice("role", {"user", "assistant", "system", "developer"});
  const bool is_assistant = role == "assistant";
  std::string text;
  OrderedJson content = ReadParts(item, "content", is_assistant, &text);
  if (role == "user" && text.empty()) item.Fail("content", "is empty");
  OrderedJson kept{{"type", "message"}, {"role", role}, {"content", std::move(content)}};
  if (is_assistant) {
    ChatMessage& turn = Turn(has_turn_ && (!turn_.content.empty() || !turn_.tool_calls.empty()));
    turn.content = std::move(text);
    return kept;
  }
  EndTurn();
  EndResults();
  if (role == "developer") role = "system";
  messages_.push_back({std::move(role), std::move(text), "", {}});
  return kept;
}

OrderedJson ItemReader::ReadCall(JsonFields& item) {
  const std::string call_id = item.RequiredText("call_id");
  ToolCall call{item.RequiredText("name"), item.RequiredText("arguments")};
  item.Refuse("namespace", "tools have none here");
  OrderedJson kept{{"type", "function_call"},
                   {"call_id", call_id},
                   {"name", call.name},
                   {"arguments", call.arguments_json}};
  calls_[call_id] = num_calls_++;
  Turn(false).tool_calls.push_back(std::move(call));
  return kept;
}

OrderedJson ItemReader::ReadResult(JsonFields& item) {
  const std::string call_id = item.RequiredText("call_id");
  const auto call = calls_.find(call_id);
  if (call == calls_.end()) {
    item.Fail("call_id",
              fmt::format("is {}, which no function_call before it has", Quoted(call_id)));
  }
  std::string text;
  OrderedJson parts = ReadParts(item, "output", false, &text);
  EndTurn();
  const bool is_text = item.Find("output")->is_string();
  OrderedJson kept{{"type", "function_call_output"}, {"call_id", call_id}};
  kept["output"] = is_text ? OrderedJson(text) : std::move(parts);
  results_.push_back({call->second, {"tool", std::move(text), "", {}}});
  return kept;
}

OrderedJson ItemReader::ReadReasoning(JsonFields& item) {
  const std::string thoughts = ReadThoughts(item, "content", "reasoning_text");
  const std::string summary = ReadThoughts(item, "summary", "summary_text");
  item.IgnoreTexts({"encrypted_content"});
  const bool is_new = has_turn_ && (!turn_.content.empty() || !turn_.tool_calls.empty());
  Turn(is_new).reasoning_content += thoughts.empty() ? summary : thoughts;
  OrderedJson kept{{"type", "reasoning"}};
  for (const char* name : {"summary", "content"}) {
    const OrderedJson* parts = item.Find(name);
    kept[name] = parts != nullptr ? *parts : OrderedJson::array();
  }
  return kept;
}

OrderedJson ItemReader::ReadReference(JsonFields& item) {
  const std::string id = item.RequiredText("id");
  item.RefuseOthers();
  const OrderedJson found = find_item_(id);
  if (found.is_null()) {
    throw ApiError(404,
                   fmt::format("{} is {}, which is no item of a kept response, or one that "
                               "the input has already",
                               item.PathOf("id"), Quoted(id)),
                   item.PathOf("id"));
  }
  return Read(found, item.PathOf("id"), "");
}

OrderedJson ItemReader::Read(const OrderedJson& json, const std::string& path,
                             const std::string& new_id) {
  JsonFields item(json, path);
  const bool is_bare_id = json.size() == 1 && json.contains("id");
  const std::string type = item.Text("type").value_or(is_bare_id ? "item_reference" : "message");
  if (type == "item_reference") return ReadReference(item);
  const auto id = item.Text("id");
  IgnoreHints(item);
  OrderedJson kept;
  const char* prefix = "";
  if (type == "message") {
    kept = ReadMessage(item);
    prefix = "msg_";
  } else if (type == "function_call") {
    kept = ReadCall(item);
    prefix = "fc_";
  } else if (type == "function_call_output") {
    kept = ReadResult(item);
    prefix = "fco_";
  } else if (type == "reasoning") {
    kept = ReadReasoning(item);
    prefix = "rs_";
  } else {
    item.Fail("type", fmt::format("is {}, which is not supported", Quoted(type)));
  }
  item.RefuseOthers();
  kept["id"] = id && !id->empty() ? *id : prefix + new_id;
  kept["status"] = "completed";
  return kept;
}

}  // namespace hillstar
