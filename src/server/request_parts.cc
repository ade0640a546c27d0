#include "server/request_parts.h"

#include <fmt/format.h>

#include <charconv>
#include <random>

#include "formats/json_scan.h"
#include "model/config.h"
#include "server/api_error.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tool_call_reader.h"

namespace hillstar {

void ReadSampling(JsonFields& fields, const AnswerDefaults& defaults, SamplingParams* sampling) {
  SamplingParams& s = *sampling;
  s = defaults.sampling;
  s.temperature = fields.Number("temperature", 0, 100).value_or(s.temperature);
  s.top_p = fields.Number("top_p", 0, 1).value_or(s.top_p);
  // -1 means all in other servers.
  s.top_k = std::max<int64_t>(fields.Integer("top_k", -1, 1'000'000'000).value_or(s.top_k), 0);
  s.min_p = fields.Number("min_p", 0, 1).value_or(s.min_p);
  s.repetition_penalty =
      fields.Number("repetition_penalty", 0.01, 100).value_or(s.repetition_penalty);
  s.presence_penalty = fields.Number("presence_penalty", -2, 2).value_or(s.presence_penalty);
  s.frequency_penalty = fields.Number("frequency_penalty", -2, 2).value_or(s.frequency_penalty);
  const std::optional<int64_t> seed = fields.Integer("seed", INT64_MIN, INT64_MAX);
  s.seed = seed ? uint64_t(*seed) : defaults.seed ? *defaults.seed : std::random_device()();
}

std::vector<std::string> ReadStops(JsonFields& fields, std::string_view name) {
  const OrderedJson* stop = fields.Find(name);
  if (stop == nullptr) return {};
  if (!stop->is_string()) return fields.Texts(name, kMaxStops, kMaxStopBytes);
  const auto text = stop->get<std::string>();
  if (text.empty()) fields.Fail(name, "is empty");
  if (text.size() > kMaxStopBytes) {
    fields.Fail(name, fmt::format("has {} bytes; {} are the most", text.size(), kMaxStopBytes));
  }
  return {text};
}

void ReadStreaming(JsonFields& fields, bool* streams, bool* includes_usage) {
  *streams = fields.Flag("stream").value_or(false);
  auto options = fields.Object("stream_options");
  if (!options) return;
  if (!*streams) fields.Fail("stream_options", "needs \"stream\": true");
  *includes_usage = options->Flag("include_usage").value_or(false);
  options->Ignore({"include_obfuscation"});
  options->RefuseOthers();
}

std::vector<LogitBias> ReadBiases(JsonFields& fields, const Engine& engine) {
  std::vector<LogitBias> biases;
  const OrderedJson* given = fields.Find("logit_bias");
  if (given == nullptr) return biases;
  if (!given->is_object()) fields.Fail("logit_bias", "has to be an object of ids and numbers");
  constexpr size_t kMaxBiases = 1024;
  if (given->size() > kMaxBiases) {
    fields.Fail("logit_bias",
                fmt::format("has {} members; {} are the most", given->size(), kMaxBiases));
  }
  const int64_t vocab = engine.config().vocab_size;
  for (const auto& [key, value] : given->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab) {
      fields.Fail("logit_bias",
                  fmt::format("has the key {}, which is no token id below {}", Quoted(key), vocab));
    }
    if (!value.is_number() || !(std::abs(value.get<double>()) <= 100)) {
      fields.Fail("logit_bias", fmt::format("gives token {} {}; it has to be a number from -100 to "
                                            "100",
                                            id, ShownJson(value)));
    }
    biases.push_back({id, float(value.get<double>())});
  }
  return biases;
}

void AddTool(const std::string& name, const std::string& description, const OrderedJson* parameters,
             const std::string& path, OfferedTools* offered) {
  if (!IsToolName(name)) {
    throw BadRequest(
        fmt::format("{} is {}; a tool's name has 1 to 128 letters, digits and _ - . : /", path,
                    Quoted(name)),
        path);
  }
  for (const ToolDefinition& tool : offered->tools) {
    if (tool.name == name) {
      throw BadRequest(fmt::format("{} is '{}', the name of another tool", path, name), path);
    }
  }
  OrderedJson function{{"name", name}};
  if (!description.empty()) function["description"] = description;
  if (parameters != nullptr) function["parameters"] = *parameters;
  offered->tools.push_back({name, parameters != nullptr ? JsonText(*parameters) : ""});
  offered->tools_json.push_back(JsonText(function));
}

void ApplyTools(const OfferedTools& offered, const std::string& choice_path, const Engine& engine,
                ChatOptions* chat, AnswerRequest* request) {
  const ToolChoice& choice = offered.choice;
  const bool asks = choice.kind == ToolChoice::Kind::kRequired;
  if (asks && offered.tools.empty()) {
    throw BadRequest(fmt::format("{} asks for a tool, but there are no tools", choice_path),
                     choice_path);
  }
  if (offered.tools.empty() || choice.kind == ToolChoice::Kind::kNone) return;
  chat->tools_json = offered.tools_json;
  request->reads_calls = true;
  request->tools = offered.tools;
  if (!asks && !offered.is_strict && offered.may_be_parallel) return;
  std::vector<ToolSpec> allowed;
  for (const ToolDefinition& tool : offered.tools) {
    if (choice.only.empty() || tool.name == choice.only) {
      allowed.push_back({tool.name, tool.parameters_json});
    }
  }
  if (allowed.empty()) {
    throw BadRequest(fmt::format("{} names the tool {}, which is not among the tools", choice_path,
                                 Quoted(choice.only)),
                     choice_path);
  }
  const ToolCallRule rule = asks ? ToolCallRule::kRequired : ToolCallRule::kAuto;
  request->grammar = MakeGrammar("tools", [&] {
    return GrammarOfToolCalls(allowed, rule, offered.may_be_parallel, engine.tokenizer());
  });
}

void ApplyEffort(const std::string& effort, ChatOptions* chat) {
  chat->thinking = effort != "none" && effort != "minimal";
  if (chat->thinking) {
    chat->reasoning_effort = effort == "max" || effort == "xhigh" ? "max" : "high";
  }
}

Prompt RenderPrompt(const std::vector<ChatMessage>& messages, const ChatOptions& chat,
                    const Engine& engine, const std::string& param) {
  const ChatFormat& format = engine.chat_format();
  Prompt prompt;
  try {
    const std::string text = format.Render(messages, chat);
    prompt.starts_thinking = EndsThinking(text);
    CheckTextRoom(text, engine, "messages");
    prompt.ids = format.RenderIds(messages, chat, engine.tokenizer());
  } catch (const Error& error) {
    throw BadRequest(error.what(), param);
  }
  CheckRoom(prompt, engine, param);
  return prompt;
}

void CheckRoom(const Prompt& prompt, const Engine& engine, const std::string& param) {
  const auto num_tokens = int64_t(prompt.ids.size());
  if (num_tokens == 0) throw BadRequest(param + " makes an empty prompt", param);
  if (num_tokens < engine.context_tokens()) return;
  throw BadRequest(
      fmt::format("the prompt has {} tokens; the context of {} tokens leaves no room for it and an "
                  "answer",
                  num_tokens, engine.context_tokens()),
      param, "context_length_exceeded");
}

void CheckTextRoom(std::string_view text, const Engine& engine, const std::string& param) {
  constexpr size_t kUsualTokenBytes = 64;  // texts of shorter tokens are cut, and counted exactly
  const auto context = size_t(engine.context_tokens());
  if (text.size() < kUsualTokenBytes * context) return;
  const Tokenizer& tokenizer = engine.tokenizer();
  size_t longest = 1;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    longest = std::max(longest, tokenizer.TokenBytes(int32_t(id)).size());
  }
  const size_t least = (text.size() + longest - 1) / longest;
  if (least < context) return;
  throw BadRequest(fmt::format("the prompt has {} tokens at least; the context of {} tokens leaves "
                               "no room for it and an answer",
                               least, context),
                   param, "context_length_exceeded");
}

std::shared_ptr<const Grammar> MakeGrammar(
    const std::string& param, const std::function<std::shared_ptr<const Grammar>()>& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw BadRequest(fmt::format("{}: {}", param, error.what()), param);
  }
}

}  // namespace hillstar
