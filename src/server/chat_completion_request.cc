#include "server/chat_completion_request.h"

#include <fmt/format.h>

#include "formats/json_scan.h"
#include "server/api_error.h"
#include "server/request_parts.h"

namespace hillstar {
namespace {

// A text, or parts of which each is a text.
std::string ReadContent(JsonFields& fields, std::string_view name) {
  const OrderedJson* content = fields.Find(name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  const OrderedJson* parts = fields.Array(name, kMaxMessages);
  for (size_t i = 0; i < parts->size(); ++i) {
    JsonFields part((*parts)[i], ItemPath(fields.PathOf(name), i));
    const std::string type = part.RequiredText("type");
    if (type != "text" && type != "refusal") {
      part.Fail("type", fmt::format("is {}; this model reads text only", Quoted(type)));
    }
    text += part.RequiredText(type);
    part.Ignore({"cache_control"});
    part.RefuseOthers();
  }
  return text;
}

std::vector<ToolCall> ReadCalls(JsonFields& message) {
  std::vector<ToolCall> calls;
  const OrderedJson* given = message.Array("tool_calls", kMaxTools);
  for (size_t i = 0; given != nullptr && i < given->size(); ++i) {
    JsonFields call((*given)[i], ItemPath(message.PathOf("tool_calls"), i));
    call.Ignore({"id", "index"});
    call.Choice("type", {"function"});
    call.Required("function");
    JsonFields function = *call.Object("function");
    ToolCall& made = calls.emplace_back();
    made.name = function.RequiredText("name");
    const OrderedJson* arguments = function.Find("arguments");
    if (arguments != nullptr) {
      made.arguments_json =
          arguments->is_string() ? arguments->get<std::string>() : JsonText(*arguments);
    }
    function.RefuseOthers();
    call.RefuseOthers();
  }
  return calls;
}

ChatMessage ReadMessage(const OrderedJson& json, const std::string& path) {
  JsonFields fields(json, path);
  ChatMessage message;
  message.role = *[&] {
    fields.Required("role");
    return fields.Choice("role", {"system", "developer", "user", "assistant", "tool"});
  }();
  if (message.role == "developer") message.role = "system";
  const bool is_assistant = message.role == "assistant";
  fields.IgnoreTexts({"name", "tool_call_id", "refusal"});
  fields.Ignore({"annotations", "audio", "function_call"});
  message.content = ReadContent(fields, "content");
  if (is_assistant) {
    message.tool_calls = ReadCalls(fields);
    message.reasoning_content = fields.Text("reasoning_content").value_or("");
    // vLLM's name of the same.
    const std::string reasoning = fields.Text("reasoning").value_or("");
    if (message.reasoning_content.empty()) message.reasoning_content = reasoning;
  } else {
    fields.Required("content");
  }
  if (message.role == "user" && message.content.empty()) fields.Fail("content", "is empty");
  fields.RefuseOthers();
  return message;
}

void ReadTools(JsonFields& fields, OfferedTools* offered) {
  const OrderedJson* tools = fields.Array("tools", kMaxTools);
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    JsonFields tool((*tools)[i], ItemPath("tools", i));
    tool.Required("type");
    tool.Choice("type", {"function"});
    tool.Required("function");
    JsonFields function = *tool.Object("function");
    const std::string name = function.RequiredText("name");
    const std::string description = function.Text("description").value_or("");
    if (function.Flag("strict").value_or(false)) offered->is_strict = true;
    const OrderedJson* parameters = function.Find("parameters");
    if (parameters != nullptr) JsonFields(*parameters, function.PathOf("parameters"));
    function.RefuseOthers();
    tool.RefuseOthers();
    AddTool(name, description, parameters, function.PathOf("name"), offered);
  }
}

ToolChoice ReadToolChoice(JsonFields& fields) {
  const OrderedJson* given = fields.Find("tool_choice");
  if (given == nullptr) return {};
  if (given->is_string()) {
    const std::string choice = *fields.Choice("tool_choice", {"auto", "none", "required"});
    if (choice == "none") return {ToolChoice::Kind::kNone, ""};
    return {choice == "auto" ? ToolChoice::Kind::kAuto : ToolChoice::Kind::kRequired, ""};
  }
  JsonFields choice = *fields.Object("tool_choice");
  choice.Required("type");
  choice.Choice("type", {"function"});
  choice.Required("function");
  JsonFields function = *choice.Object("function");
  const std::string name = function.RequiredText("name");
  function.RefuseOthers();
  choice.RefuseOthers();
  return {ToolChoice::Kind::kRequired, name};
}

// Thinking on or off and how much, by any of the names that clients use.
void ReadThinking(JsonFields& fields, ChatOptions* chat) {
  const auto effort = fields.Choice("reasoning_effort",
                                    {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (effort) ApplyEffort(*effort, chat);
  if (auto thinking = fields.Object("thinking")) {  // of GLM's hosted API
    thinking->Required("type");
    chat->thinking = *thinking->Choice("type", {"enabled", "disabled"}) == "enabled";
    chat->clear_thinking = thinking->Flag("clear_thinking").value_or(chat->clear_thinking);
    thinking->RefuseOthers();
  }
  if (auto arguments = fields.Object("chat_template_kwargs")) {  // of vLLM and SGLang
    chat->thinking = arguments->Flag("enable_thinking").value_or(chat->thinking);
    chat->clear_thinking = arguments->Flag("clear_thinking").value_or(chat->clear_thinking);
    if (auto text = arguments->Text("reasoning_effort")) chat->reasoning_effort = *text;
    arguments->RefuseOthers();
  }
}

std::shared_ptr<const Grammar> ReadFormat(JsonFields& fields, const Engine& engine) {
  std::shared_ptr<const Grammar> grammar;
  if (auto format = fields.Object("response_format")) {
    format->Required("type");
    const std::string type = *format->Choice("type", {"text", "json_object", "json_schema"});
    if (type == "json_object") grammar = GrammarOfJsonObject();
    if (type == "json_schema") {
      format->Required("json_schema");
      JsonFields schema = *format->Object("json_schema");
      schema.Ignore({"name", "description", "strict"});
      const std::string path = schema.PathOf("schema");
      const std::string text = JsonText(schema.Required("schema"));
      schema.RefuseOthers();
      grammar = MakeGrammar(path, [&] { return GrammarOfJsonSchema(text); });
    }
    format->RefuseOthers();
  }
  const std::optional<std::string> own = fields.Text("grammar");
  if (!own) return grammar;
  if (grammar) fields.Fail("grammar", "is of no use beside response_format; give one of them");
  return MakeGrammar("grammar", [&] { return GrammarOfGbnf(*own, engine.tokenizer()); });
}

int64_t ReadTopLogprobs(JsonFields& fields) {
  const bool wanted = fields.Flag("logprobs").value_or(false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top && !wanted) fields.Fail("top_logprobs", "needs \"logprobs\": true");
  return wanted ? top.value_or(0) : -1;
}

void RefuseWhatIsMissing(JsonFields& fields) {
  fields.IgnoreTexts({"model", "user", "service_tier", "safety_identifier", "prompt_cache_key",
                      "prompt_cache_retention"});
  fields.Object("metadata");
  fields.Object("prediction");
  fields.Flag("store");
  fields.Refuse("functions", "give \"tools\" instead");
  fields.Refuse("function_call", "give \"tool_choice\" instead");
  fields.Refuse("audio", "this model writes text only");
  fields.Refuse("web_search_options", "this server searches nothing");
  fields.Refuse("verbosity", "this model has no such setting");
  const std::vector<std::string> modalities = fields.Texts("modalities", 8, 32);
  for (const std::string& modality : modalities) {
    if (modality != "text") fields.Fail("modalities", "may hold \"text\" only");
  }
  fields.RefuseOthers();
}

}  // namespace

std::vector<ChatMessage> ReadChatMessages(const OrderedJson& messages, const std::string& path) {
  std::vector<ChatMessage> read;
  for (size_t i = 0; i < messages.size(); ++i) {
    read.push_back(ReadMessage(messages[i], ItemPath(path, i)));
  }
  return read;
}

ChatCompletionRequest ReadChatCompletion(const OrderedJson& body, const Engine& engine,
                                         const AnswerDefaults& defaults) {
  JsonFields fields(body, "");
  ChatCompletionRequest request;
  AnswerRequest& answer = request.answer;
  answer.is_chat = true;
  fields.Required("messages");
  const OrderedJson& given = *fields.Array("messages", kMaxMessages);
  if (given.empty()) fields.Fail("messages", "is empty");
  const std::vector<ChatMessage> messages = ReadChatMessages(given, "messages");
  if (messages.back().role == "assistant") {
    throw BadRequest(
        "messages end with the assistant's; an answer that goes on with it is not "
        "supported",
        ItemPath("messages", messages.size() - 1));
  }
  ReadSampling(fields, defaults, &answer.sampling);
  answer.max_tokens = defaults.max_tokens;
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {  // the later one wins
    answer.max_tokens = fields.Integer(name, 1, INT64_MAX).value_or(answer.max_tokens);
  }
  answer.stops = ReadStops(fields, "stop");
  answer.answers_each = fields.Integer("n", 1, kMaxAnswers).value_or(1);
  answer.biases = ReadBiases(fields, engine);
  answer.num_top_logprobs = ReadTopLogprobs(fields);
  ChatOptions chat = defaults.chat;
  ReadThinking(fields, &chat);
  answer.grammar = ReadFormat(fields, engine);
  OfferedTools offered;
  ReadTools(fields, &offered);
  offered.choice = ReadToolChoice(fields);
  offered.may_be_parallel = fields.Flag("parallel_tool_calls").value_or(true);
  ReadStreaming(fields, &request.streams, &request.includes_usage);
  RefuseWhatIsMissing(fields);
  if (answer.grammar && !offered.tools.empty() && offered.choice.kind != ToolChoice::Kind::kNone) {
    fields.Fail("tools",
                "cannot be offered beside a grammar of the answer; give one of them, or "
                "\"tool_choice\": \"none\"");
  }
  ApplyTools(offered, "tool_choice", engine, &chat, &answer);
  answer.prompts = {RenderPrompt(messages, chat, engine)};
  return request;
}

}  // namespace hillstar
