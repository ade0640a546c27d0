#include "server/responses_request.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "formats/json_scan.h"
#include "server/api_error.h"
#include "server/request_parts.h"
#include "server/response_items.h"

namespace hillstar {
namespace {

template <typename T>
OrderedJson ValueOrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

// "text": what the answer has to look like.
std::shared_ptr<const Grammar> ReadTextFormat(JsonFields& fields, OrderedJson* settings) {
  std::shared_ptr<const Grammar> grammar;
  OrderedJson& echo =
      (*settings)["text"] = {{"format", {{"type", "text"}}}, {"verbosity", "medium"}};
  auto text = fields.Object("text");
  if (!text) return grammar;
  if (auto format = text->Object("format")) {
    format->Required("type");
    const std::string type = *format->Choice("type", {"text", "json_object", "json_schema"});
    if (type == "json_object") grammar = GrammarOfJsonObject();
    if (type == "json_schema") {
      format->RequiredText("name");
      format->Text("description");
      format->Flag("strict");
      format->Required("schema");
      format->Object("schema");
      const std::string schema = JsonText(*format->Find("schema"));
      grammar = MakeGrammar(format->PathOf("schema"), [&] { return GrammarOfJsonSchema(schema); });
    }
    format->RefuseOthers();
    echo["format"] = *text->Find("format");
  }
  if (text->Text("verbosity").value_or("medium") != "medium") {
    text->Fail("verbosity", "has to be medium: this model has no such setting");
  }
  text->RefuseOthers();
  return grammar;
}

void ReadTool(const OrderedJson& json, const std::string& path, OfferedTools* offered,
              OrderedJson* echoes) {
  JsonFields tool(json, path);
  const std::string type = tool.RequiredText("type");
  if (type != "function") {
    tool.Fail("type", fmt::format("is {}; this server has no tools of its own, and knows those of "
                                  "type function only",
                                  Quoted(type)));
  }
  const std::string name = tool.RequiredText("name");
  const auto description = tool.Text("description");
  const bool is_strict = tool.Flag("strict").value_or(false);
  const OrderedJson* parameters = tool.Find("parameters");
  if (parameters != nullptr) JsonFields(*parameters, tool.PathOf("parameters"));
  tool.Refuse("defer_loading", "all tools are in the prompt");
  tool.Ignore({"allowed_callers", "output_schema"});
  tool.RefuseOthers();
  AddTool(name, description.value_or(""), parameters, tool.PathOf("name"), offered);
  offered->is_strict |= is_strict;
  echoes->push_back({{"type", "function"},
                     {"name", name},
                     {"description", ValueOrNull(description)},
                     {"parameters", parameters != nullptr ? *parameters : OrderedJson(nullptr)},
                     {"strict", is_strict}});
}

// Leaves the tools that {"type": "allowed_tools"} names, so that the prompt has no others.
void KeepAllowed(JsonFields& choice, OfferedTools* offered) {
  choice.Required("tools");
  const OrderedJson& given = *choice.Array("tools", kMaxTools);
  OfferedTools allowed;
  for (size_t i = 0; i < given.size(); ++i) {
    JsonFields tool(given[i], ItemPath(choice.PathOf("tools"), i));
    tool.Required("type");
    tool.Choice("type", {"function"});
    const std::string name = tool.RequiredText("name");
    tool.RefuseOthers();
    size_t at = 0;
    while (at < offered->tools.size() && offered->tools[at].name != name) ++at;
    if (at == offered->tools.size()) {
      tool.Fail("name", fmt::format("is {}, which is not among the tools", Quoted(name)));
    }
    allowed.tools.push_back(offered->tools[at]);
    allowed.tools_json.push_back(offered->tools_json[at]);
  }
  offered->tools = std::move(allowed.tools);
  offered->tools_json = std::move(allowed.tools_json);
}

void ReadToolChoice(JsonFields& fields, OfferedTools* offered) {
  using Kind = ToolChoice::Kind;
  const OrderedJson* given = fields.Find("tool_choice");
  if (given == nullptr) return;
  if (given->is_string()) {
    const std::string choice = *fields.Choice("tool_choice", {"auto", "none", "required"});
    if (choice != "auto") offered->choice.kind = choice == "none" ? Kind::kNone : Kind::kRequired;
    return;
  }
  JsonFields choice = *fields.Object("tool_choice");
  choice.Required("type");
  if (*choice.Choice("type", {"function", "allowed_tools"}) == "function") {
    offered->choice = {Kind::kRequired, choice.RequiredText("name")};
  } else {
    choice.Required("mode");
    const std::string mode = *choice.Choice("mode", {"auto", "required"});
    if (mode == "required") offered->choice.kind = Kind::kRequired;
    KeepAllowed(choice, offered);
  }
  choice.RefuseOthers();
}

OfferedTools ReadTools(JsonFields& fields, OrderedJson* settings) {
  OfferedTools offered;
  OrderedJson echoes = OrderedJson::array();
  const OrderedJson* tools = fields.Array("tools", kMaxTools);
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    ReadTool((*tools)[i], ItemPath("tools", i), &offered, &echoes);
  }
  ReadToolChoice(fields, &offered);
  offered.may_be_parallel = fields.Flag("parallel_tool_calls").value_or(true);
  const OrderedJson* choice = fields.Find("tool_choice");
  (*settings)["tools"] = std::move(echoes);
  (*settings)["tool_choice"] = choice != nullptr ? *choice : OrderedJson("auto");
  (*settings)["parallel_tool_calls"] = offered.may_be_parallel;
  return offered;
}

void ReadReasoning(JsonFields& fields, ChatOptions* chat, OrderedJson* settings) {
  OrderedJson& echo = (*settings)["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  auto reasoning = fields.Object("reasoning");
  if (!reasoning) return;
  const auto effort =
      reasoning->Choice("effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  if (effort) ApplyEffort(*effort, chat);
  echo["effort"] = ValueOrNull(effort);
  // Reasoning is told in whole; a summary would say less.
  for (const char* name : {"summary", "generate_summary"}) {
    reasoning->Choice(name, {"auto", "concise", "detailed"});
  }
  reasoning->RefuseOthers();
}

int64_t ReadTopLogprobs(JsonFields& fields, OrderedJson* settings) {
  bool is_wanted = false;
  constexpr size_t kMaxIncludes = 32, kMaxIncludeBytes = 128;
  const std::vector<std::string> includes = fields.Texts("include", kMaxIncludes, kMaxIncludeBytes);
  for (size_t i = 0; i < includes.size(); ++i) {
    if (includes[i] == "message.output_text.logprobs") {
      is_wanted = true;
    } else if (includes[i] != "reasoning.encrypted_content") {  // it is told in the open
      fields.Fail(ItemPath("include", i),
                  fmt::format("is {}, which no answer has here", Quoted(includes[i])));
    }
  }
  const int64_t top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs).value_or(0);
  if (top > 0 && !is_wanted) {
    fields.Fail("top_logprobs", "needs \"message.output_text.logprobs\" in \"include\"");
  }
  (*settings)["top_logprobs"] = top;
  return is_wanted ? top : -1;
}

OrderedJson ReadMetadata(JsonFields& fields) {
  // Of up to 64 and 512 characters, which have up to 4 bytes.
  constexpr size_t kMaxPairs = 16, kMaxKeyBytes = 256, kMaxValueBytes = 2048;
  auto metadata = fields.Object("metadata");
  if (!metadata) return OrderedJson::object();
  const OrderedJson& given = *fields.Find("metadata");
  if (given.size() > kMaxPairs) {
    fields.Fail("metadata",
                fmt::format("has {} members; {} are the most", given.size(), kMaxPairs));
  }
  for (const auto& [name, value] : given.items()) {
    const bool fits = name.size() <= kMaxKeyBytes && value.is_string() &&
                      value.get_ref<const std::string&>().size() <= kMaxValueBytes;
    if (!fits) {
      fields.Fail("metadata",
                  "may hold texts only: names of up to 64 characters, values of up to "
                  "512");
    }
  }
  return given;
}

void RefuseWhatIsMissing(JsonFields& fields) {
  fields.IgnoreTexts({"model", "service_tier", "prompt_cache_retention"});
  fields.Ignore({"prompt_cache_options", "client_metadata"});
  if (auto options = fields.Object("stream_options")) {
    options->Flag("include_obfuscation");  // there is none
    options->RefuseOthers();
  }
  fields.Choice("truncation", {"disabled"});
  fields.Refuse("background", "the answer comes with the reply");
  fields.Refuse("conversation", "give \"previous_response_id\" instead");
  fields.Refuse("prompt", "this server keeps no prompts");
  fields.Refuse("max_tool_calls", "it counts calls of tools that this server does not have");
  fields.Refuse("context_management", "the input is taken as it is");
  fields.Refuse("moderation", "this server has none");
  fields.RefuseOthers();
}

// Input and output of a turn.
std::array<OrderedJson, 2> ItemsOf(const ResponseTurn& turn) {
  return {OrderedJson::parse(turn.input_items), OrderedJson::parse(turn.response).at("output")};
}

// Items of kept responses by their ids, each of which is given once: a short request must not grow
// by naming a long item again and again.
class KeptItems {
 public:
  explicit KeptItems(const ResponseStore& store) : store_(store) {}

  // Null where it is not there, or was given already.
  OrderedJson Take(const std::string& item_id) {
    const size_t begin = item_id.find('_') + 1, end = item_id.find('_', begin);
    if (begin == 0 || end == std::string::npos) return nullptr;
    const std::string response_id = "resp_" + item_id.substr(begin, end - begin);
    const auto [of_response, is_new] = items_.try_emplace(response_id);
    if (is_new) Parse(store_.Find(response_id), &of_response->second);
    const auto found = of_response->second.find(item_id);
    if (found == of_response->second.end()) return nullptr;
    return std::exchange(found->second, nullptr);
  }

 private:
  using ById = std::map<std::string, OrderedJson>;
  static void Parse(const ResponseStore::Turns& turns, ById* items) {
    if (turns.empty()) return;
    for (OrderedJson& parsed : ItemsOf(*turns.back())) {
      for (OrderedJson& item : parsed) {
        const std::string id = item.at("id");
        (*items)[id] = std::move(item);
      }
    }
  }

  const ResponseStore& store_;
  std::map<std::string, ById> items_;  // by the response's id
};

ResponseStore::Turns FindEarlier(JsonFields& fields, const ResponseStore& store,
                                 OrderedJson* settings) {
  const auto id = fields.Text("previous_response_id");
  (*settings)["previous_response_id"] = ValueOrNull(id);
  if (!id) return {};
  ResponseStore::Turns turns = store.Find(*id);
  if (!turns.empty()) return turns;
  throw ApiError(404,
                 fmt::format("there is no response {} here: it was not stored, it was deleted, or "
                             "newer ones have taken its place",
                             Quoted(*id)),
                 "previous_response_id", "previous_response_not_found");
}

// This request's input; a text is a message of the user.
OrderedJson ReadInput(JsonFields& fields, const std::string& id, ItemReader* reader) {
  OrderedJson items = OrderedJson::array();
  const OrderedJson& input = fields.Required("input");
  const auto read = [&](const OrderedJson& item, const std::string& path) {
    const std::string place = fmt::format("in{}", items.size());
    items.push_back(reader->Read(item, path, ItemIdEnd(id, place)));
  };
  if (input.is_string()) {
    if (input.get_ref<const std::string&>().empty()) fields.Fail("input", "is empty");
    read({{"type", "message"}, {"role", "user"}, {"content", input}}, "input");
    return items;
  }
  const OrderedJson& given = *fields.Array("input", kMaxMessages);
  for (size_t i = 0; i < given.size(); ++i) read(given[i], ItemPath("input", i));
  return items;
}

std::vector<ChatMessage> ReadConversation(JsonFields& fields, const std::string& id,
                                          const ResponseStore& store, ResponsesRequest* request) {
  std::vector<ChatMessage> messages;
  // Those of earlier responses do not go on to apply.
  const auto instructions = fields.Text("instructions");
  request->settings["instructions"] = ValueOrNull(instructions);
  if (instructions && !instructions->empty()) messages.push_back({"system", *instructions, "", {}});
  request->earlier = FindEarlier(fields, store, &request->settings);
  KeptItems kept(store);
  ItemReader reader([&](const std::string& item_id) { return kept.Take(item_id); });
  for (const auto& turn : request->earlier) {
    for (const OrderedJson& items : ItemsOf(*turn)) {
      for (const OrderedJson& item : items) reader.Read(item, "previous_response_id", "");
    }
  }
  request->input_items = ReadInput(fields, id, &reader);
  for (ChatMessage& message : reader.TakeMessages()) messages.push_back(std::move(message));
  if (request->earlier.empty() && request->input_items.empty()) fields.Fail("input", "is empty");
  if (messages.back().role == "assistant") {
    fields.Fail("input",
                "ends with the assistant's; an answer that goes on with it is not supported");
  }
  return messages;
}

void EchoSampling(JsonFields& fields, const AnswerRequest& answer, OrderedJson* settings) {
  const SamplingParams& sampling = answer.sampling;
  (*settings)["temperature"] = sampling.temperature;
  (*settings)["top_p"] = sampling.top_p;
  (*settings)["presence_penalty"] = sampling.presence_penalty;
  (*settings)["frequency_penalty"] = sampling.frequency_penalty;
  (*settings)["max_output_tokens"] = ValueOrNull(fields.Integer("max_output_tokens", 1, INT64_MAX));
}

}  // namespace

std::string ItemIdEnd(const std::string& response_id, std::string_view place) {
  return fmt::format("{}_{}", response_id.substr(response_id.find('_') + 1), place);
}

ResponsesRequest ReadResponses(const OrderedJson& body, const std::string& id, const Engine& engine,
                               const AnswerDefaults& defaults, const ResponseStore& store) {
  JsonFields fields(body, "");
  ResponsesRequest request;
  AnswerRequest& answer = request.answer;
  OrderedJson& settings = request.settings;
  answer.is_chat = true;
  const std::vector<ChatMessage> messages = ReadConversation(fields, id, store, &request);
  ReadSampling(fields, defaults, &answer.sampling);
  answer.max_tokens =
      fields.Integer("max_output_tokens", 1, INT64_MAX).value_or(defaults.max_tokens);
  EchoSampling(fields, answer, &settings);
  answer.num_top_logprobs = ReadTopLogprobs(fields, &settings);
  ChatOptions chat = defaults.chat;
  ReadReasoning(fields, &chat, &settings);
  answer.grammar = ReadTextFormat(fields, &settings);
  const OfferedTools offered = ReadTools(fields, &settings);
  request.streams = fields.Flag("stream").value_or(false);
  request.is_stored = fields.Flag("store").value_or(true);
  settings["store"] = request.is_stored;
  settings["metadata"] = ReadMetadata(fields);
  for (const char* name : {"safety_identifier", "prompt_cache_key"}) {
    settings[name] = ValueOrNull(fields.Text(name));
  }
  if (const auto user = fields.Text("user")) settings["user"] = *user;  // cannot be null
  settings["background"] = false;
  settings["max_tool_calls"] = nullptr;
  settings["service_tier"] = "default";
  settings["truncation"] = "disabled";
  RefuseWhatIsMissing(fields);
  if (answer.grammar && !offered.tools.empty() && offered.choice.kind != ToolChoice::Kind::kNone) {
    fields.Fail("tools",
                "cannot be offered beside a format of the answer; give one of them, or "
                "\"tool_choice\": \"none\"");
  }
  ApplyTools(offered, "tool_choice", engine, &chat, &answer);
  answer.prompts = {RenderPrompt(messages, chat, engine, "input")};
  return request;
}

}  // namespace hillstar
