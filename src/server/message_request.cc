#include "server/message_request.h"

#include <fmt/format.h>

#include "formats/json_scan.h"
#include "server/api_error.h"
#include "server/request_parts.h"

namespace hillstar {
namespace {

// Members of content blocks that change nothing here.
void IgnoreHints(JsonFields& block) { block.Ignore({"cache_control", "citations"}); }

// A text, or blocks of type text.
std::string ReadTexts(const OrderedJson& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    throw BadRequest(fmt::format("{} is {}; it has to be a text or an array of blocks", path,
                                 JsonKindName(content)),
                     path);
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    JsonFields block(content[i], ItemPath(path, i));
    const std::string type = block.RequiredText("type");
    if (type != "text") {
      block.Fail("type", fmt::format("is {}; this model reads text only", Quoted(type)));
    }
    text += block.RequiredText("text");
    IgnoreHints(block);
    block.RefuseOthers();
  }
  return text;
}

// Reads one message's blocks into the messages that the template knows: a user's turn may hold tool
// results, which come before its text.
class TurnReader {
 public:
  TurnReader(std::string role, std::vector<ChatMessage>* messages)
      : messages_(messages), turn_{std::move(role), "", "", {}} {}

  void Read(const OrderedJson& content, const std::string& path) {
    if (content.is_string()) {
      turn_.content = content.get<std::string>();
    } else if (content.is_array()) {
      for (size_t i = 0; i < content.size(); ++i) ReadBlock(content[i], ItemPath(path, i));
    } else {
      throw BadRequest(fmt::format("{} is {}; it has to be a text or an array of blocks", path,
                                   JsonKindName(content)),
                       path);
    }
    const bool is_empty =
        turn_.content.empty() && turn_.reasoning_content.empty() && turn_.tool_calls.empty();
    if (is_empty && has_results_) return;
    if (is_empty) throw BadRequest(path + " is empty", path);
    messages_->push_back(std::move(turn_));
  }

 private:
  bool is_user() const { return turn_.role == "user"; }
  bool is_assistant() const { return turn_.role == "assistant"; }

  void ReadBlock(const OrderedJson& json, const std::string& path) {
    JsonFields block(json, path);
    const std::string type = block.RequiredText("type");
    IgnoreHints(block);
    if (type == "text") {
      turn_.content += block.RequiredText("text");
    } else if (type == "tool_result" && is_user()) {
      ReadResult(block);
    } else if (type == "tool_use" && is_assistant()) {
      ReadUse(block);
    } else if (type == "thinking" && is_assistant()) {
      turn_.reasoning_content += block.RequiredText("thinking");
      block.Ignore({"signature"});
    } else if (type == "redacted_thinking" && is_assistant()) {
      block.Ignore({"data"});
    } else {
      block.Fail("type", fmt::format("is {}, which is not supported in a message of the {}",
                                     Quoted(type), turn_.role));
    }
    block.RefuseOthers();
  }
  void ReadResult(JsonFields& block) {
    block.RequiredText("tool_use_id");
    block.Flag("is_error");
    const OrderedJson* content = block.Find("content");
    std::string text = content != nullptr ? ReadTexts(*content, block.PathOf("content")) : "";
    messages_->push_back({"tool", std::move(text), "", {}});
    has_results_ = true;
  }
  void ReadUse(JsonFields& block) {
    block.Ignore({"id", "caller"});
    ToolCall call;
    call.name = block.RequiredText("name");
    block.Required("input");
    block.Object("input");
    call.arguments_json = JsonText(*block.Find("input"));
    turn_.tool_calls.push_back(std::move(call));
  }

  std::vector<ChatMessage>* messages_;
  ChatMessage turn_;
  bool has_results_ = false;
};

std::vector<ChatMessage> ReadMessages(JsonFields& fields) {
  std::vector<ChatMessage> messages;
  if (const OrderedJson* system = fields.Find("system")) {
    messages.push_back({"system", ReadTexts(*system, "system"), "", {}});
  }
  fields.Required("messages");
  const OrderedJson& given = *fields.Array("messages", kMaxMessages);
  if (given.empty()) fields.Fail("messages", "is empty");
  for (size_t i = 0; i < given.size(); ++i) {
    JsonFields message(given[i], ItemPath("messages", i));
    message.Required("role");
    const std::string role = *message.Choice("role", {"user", "assistant", "system"});
    TurnReader(role, &messages).Read(message.Required("content"), message.PathOf("content"));
    message.RefuseOthers();
    if (i + 1 == given.size() && role == "assistant") {
      message.Fail("role",
                   "is assistant in the last message; an answer that goes on with it is "
                   "not supported");
    }
  }
  return messages;
}

void ReadTools(JsonFields& fields, OfferedTools* offered) {
  const OrderedJson* tools = fields.Array("tools", kMaxTools);
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    JsonFields tool((*tools)[i], ItemPath("tools", i));
    const std::string type = tool.Text("type").value_or("custom");
    if (type != "custom") {
      tool.Fail("type", fmt::format("is {}; this server has no tools of its own", Quoted(type)));
    }
    const std::string name = tool.RequiredText("name");
    const std::string description = tool.Text("description").value_or("");
    tool.Required("input_schema");
    tool.Object("input_schema");
    if (tool.Flag("strict").value_or(false)) offered->is_strict = true;
    const OrderedJson* schema = tool.Find("input_schema");
    tool.Ignore({"cache_control", "eager_input_streaming", "input_examples", "defer_loading",
                 "allowed_callers"});
    tool.RefuseOthers();
    AddTool(name, description, schema, tool.PathOf("name"), offered);
  }
  auto choice = fields.Object("tool_choice");
  if (!choice) return;
  choice->Required("type");
  const std::string type = *choice->Choice("type", {"auto", "any", "tool", "none"});
  using Kind = ToolChoice::Kind;
  if (type == "none") offered->choice.kind = Kind::kNone;
  if (type == "any" || type == "tool") offered->choice.kind = Kind::kRequired;
  if (type == "tool") offered->choice.only = choice->RequiredText("name");
  offered->may_be_parallel = !choice->Flag("disable_parallel_tool_use").value_or(false);
  choice->RefuseOthers();
}

void ReadThinking(JsonFields& fields, ChatOptions* chat) {
  if (auto thinking = fields.Object("thinking")) {
    thinking->Required("type");
    const std::string type = *thinking->Choice("type", {"enabled", "disabled", "adaptive"});
    chat->thinking = type != "disabled";
    thinking->Integer("budget_tokens", 1, INT64_MAX);  // a hint that the model does not know
    thinking->Ignore({"display"});
    thinking->RefuseOthers();
  } else {
    chat->thinking = false;  // as the API has it
  }
  auto output = fields.Object("output_config");
  if (!output) return;
  const auto effort = output->Choice("effort", {"low", "medium", "high", "xhigh", "max"});
  if (effort && chat->thinking) ApplyEffort(*effort, chat);
}

// Which of the thoughts of earlier turns stay. Edits that shorten the prompt otherwise are refused:
// whoever asks for them counts on it.
void ReadEdits(JsonFields& fields, ChatOptions* chat) {
  auto management = fields.Object("context_management");
  if (!management) return;
  constexpr size_t kMaxEdits = 16;
  const OrderedJson* edits = management->Array("edits", kMaxEdits);
  for (size_t i = 0; edits != nullptr && i < edits->size(); ++i) {
    JsonFields edit((*edits)[i], ItemPath(management->PathOf("edits"), i));
    edit.Required("type");
    edit.Choice("type", {"clear_thinking_20251015"});
    const OrderedJson* keep = edit.Find("keep");
    const bool is_all =
        keep != nullptr && (*keep == "all" || *keep == OrderedJson{{"type", "all"}});
    if (keep != nullptr && !is_all) {
      edit.Fail("keep", "has to be all here, or absent: then the template chooses");
    }
    if (is_all) chat->clear_thinking = false;
    edit.RefuseOthers();
  }
  management->RefuseOthers();
}

// "output_config": {"format": {"type": "json_schema", "schema": ...}}, once "output_format".
std::shared_ptr<const Grammar> ReadFormat(JsonFields& fields) {
  auto output = fields.Object("output_config");
  auto format = output ? output->Object("format") : std::nullopt;
  if (output) {
    output->Ignore({"effort"});
    output->RefuseOthers();
  }
  if (!format) format = fields.Object("output_format");
  if (!format) return nullptr;
  format->Required("type");
  format->Choice("type", {"json_schema"});
  const std::string text = JsonText(format->Required("schema"));
  format->RefuseOthers();
  return MakeGrammar(format->PathOf("schema"), [&] { return GrammarOfJsonSchema(text); });
}

// All that makes the prompt.
void ReadPrompt(JsonFields& fields, const Engine& engine, const AnswerDefaults& defaults,
                AnswerRequest* answer) {
  answer->is_chat = true;
  const std::vector<ChatMessage> messages = ReadMessages(fields);
  ChatOptions chat = defaults.chat;
  ReadThinking(fields, &chat);
  ReadEdits(fields, &chat);
  answer->grammar = ReadFormat(fields);
  OfferedTools offered;
  ReadTools(fields, &offered);
  if (answer->grammar && !offered.tools.empty() && offered.choice.kind != ToolChoice::Kind::kNone) {
    fields.Fail("tools",
                "cannot be offered beside a schema of the answer; give one of them, or "
                "\"tool_choice\": {\"type\": \"none\"}");
  }
  ApplyTools(offered, "tool_choice", engine, &chat, answer);
  fields.IgnoreTexts({"model", "service_tier"});
  fields.Object("metadata");
  fields.Object("cache_control");
  fields.Array("betas", kMaxTools);
  fields.Refuse("container", "this server runs no code");
  fields.Refuse("mcp_servers", "this server calls no others");
  if (fields.Find("thread") != nullptr) {  // at this code the client's tool runner goes on without
    throw BadRequest(
        "thread is not supported: this server keeps no conversations; give all messages", "thread",
        "thread_unsupported_request");
  }
  answer->prompts = {RenderPrompt(messages, chat, engine)};
}

}  // namespace

MessageRequest ReadMessage(const OrderedJson& body, const Engine& engine,
                           const AnswerDefaults& defaults) {
  JsonFields fields(body, "");
  MessageRequest request;
  AnswerRequest& answer = request.answer;
  fields.Required("max_tokens");
  answer.max_tokens = *fields.Integer("max_tokens", 1, INT64_MAX);
  ReadSampling(fields, defaults, &answer.sampling);
  answer.stops = fields.Texts("stop_sequences", kMaxStops, kMaxStopBytes);
  request.streams = fields.Flag("stream").value_or(false);
  ReadPrompt(fields, engine, defaults, &answer);
  fields.RefuseOthers();
  return request;
}

int64_t CountMessageTokens(const OrderedJson& body, const Engine& engine,
                           const AnswerDefaults& defaults) {
  JsonFields fields(body, "");
  AnswerRequest answer;
  ReadPrompt(fields, engine, defaults, &answer);
  fields.RefuseOthers();
  return int64_t(answer.prompts[0].ids.size());
}

}  // namespace hillstar
