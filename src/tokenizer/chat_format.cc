#include "tokenizer/chat_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/json_scan.h"
#include "hillstar/error.h"
#include "tokenizer/conversation.h"
#include "tokenizer/glm_format.h"
#include "tokenizer/jinja/template.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;
using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

// Renders to marked text; ids and plain text follow from that.
class MarkedFormat : public ChatFormat {
 public:
  std::string Render(const std::vector<ChatMessage>& messages,
                     const ChatOptions& options) const override {
    return RenderMarked(messages, options).text();
  }
  std::vector<int32_t> RenderIds(const std::vector<ChatMessage>& messages,
                                 const ChatOptions& options,
                                 const Tokenizer& tokenizer) const override {
    const MarkedText prompt = RenderMarked(messages, options);
    return tokenizer.EncodeMarked(prompt.text(), prompt.MarkedRanges());
  }

 protected:
  virtual MarkedText RenderMarked(const std::vector<ChatMessage>& messages,
                                  const ChatOptions& options) const = 0;
};

class BuiltInFormat final : public MarkedFormat {
 public:
  std::string_view source() const override { return "built-in GLM-5.2"; }

 protected:
  MarkedText RenderMarked(const std::vector<ChatMessage>& messages,
                          const ChatOptions& options) const override {
    return RenderGlm(messages, options);
  }
};

class TemplateFormat final : public MarkedFormat {
 public:
  TemplateFormat(std::string_view source, SpecialTokens special_tokens)
      : template_(source), special_tokens_(std::move(special_tokens)) {}
  std::string_view source() const override { return "checkpoint"; }

 protected:
  MarkedText RenderMarked(const std::vector<ChatMessage>& messages,
                          const ChatOptions& options) const override {
    jinja::Runtime runtime;
    jinja::Template::Variables variables;
    for (const auto& [name, token] : special_tokens_) {
      variables.emplace_back(name, jinja::Value::Plain(token));
    }
    variables.emplace_back("messages", MessagesValue(messages, &runtime.heap));
    variables.emplace_back("tools", ToolsValue(options.tools_json, &runtime.heap));
    variables.emplace_back("documents", jinja::None());
    variables.emplace_back("add_generation_prompt", options.add_generation_prompt);
    variables.emplace_back("enable_thinking", options.thinking);
    variables.emplace_back("clear_thinking", options.clear_thinking);
    if (!options.reasoning_effort.empty()) {
      variables.emplace_back("reasoning_effort", MarkedText(options.reasoning_effort, true));
    }
    return template_.Render(variables, &runtime);
  }

 private:
  jinja::Template template_;
  SpecialTokens special_tokens_;
};

constexpr size_t kMaxConfigBytes = size_t{64} << 20;

[[noreturn]] void Bad(const std::string& what) {
  throw Error(ErrorCode::kBadFile, "tokenizer_config.json is damaged: " + what + ".");
}

Json ParseConfig(std::string_view text) {
  if (text.empty()) return Json::object();
  Json config = ParseJson(text, "tokenizer_config.json", kMaxConfigBytes);
  if (!config.is_object()) Bad("it is no JSON object");
  return config;
}

// "bos_token" and its kin, which Hugging Face gives to templates: a text, or an object that holds
// it as "content".
SpecialTokens FindSpecialTokens(const Json& config) {
  SpecialTokens tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null()) continue;
    const Json& content = found->is_object() ? found->value("content", Json()) : *found;
    if (!content.is_string()) Bad(fmt::format("\"{}\" is no text", name));
    tokens.emplace_back(name, content.get<std::string>());
  }
  return tokens;
}

// The template of the name "default", where there are several.
std::string FindTemplate(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) Bad("\"chat_template\" is neither a text nor a list");
  for (const Json& entry : *found) {
    if (!entry.is_object() || entry.value("name", Json()) != "default") continue;
    const Json text = entry.value("template", Json());
    if (!text.is_string()) Bad("the chat template \"default\" is no text");
    return text.get<std::string>();
  }
  throw Error(ErrorCode::kUnsupported,
              "tokenizer_config.json has several chat templates, but none named \"default\".");
}

// A conversation of every role; templates may refuse some of them.
std::string RenderEveryRole(const ChatFormat& format) {
  const std::vector<ChatMessage> messages[] = {
      {{"user", "x", "", {}}},
      {{"system", "x", "", {}}, {"user", "x", "", {}}},
      {{"user", "x", "", {}}, {"assistant", "x", "", {}}, {"user", "x", "", {}}},
      {{"user", "x", "", {}}, {"assistant", "", "", {{"f", "{}"}}}, {"tool", "x", "", {}}},
  };
  std::string text;
  for (const std::vector<ChatMessage>& conversation : messages) {
    try {
      text += format.Render(conversation, {});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kBadRequest) throw;
    }
  }
  return text;
}

// "<|user|>" and its like in `text`, each once, in order of appearance.
std::vector<std::string> FindBarTokens(std::string_view text) {
  std::vector<std::string> found;
  for (size_t begin = text.find("<|"); begin != std::string_view::npos;
       begin = text.find("<|", begin + 2)) {
    const size_t end = text.find("|>", begin + 2);
    if (end == std::string_view::npos) break;
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    const auto is_part = [](char c) { return c == '_' || (c >= 'a' && c <= 'z'); };
    const std::string token(text.substr(begin, end + 2 - begin));
    if (std::ranges::all_of(name, is_part) && std::ranges::count(found, token) == 0) {
      found.push_back(token);
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> MissingControlTokens(const ChatFormat& format,
                                              const Tokenizer& tokenizer) {
  const std::string text = RenderEveryRole(format);
  std::vector<std::string> tokens = FindBarTokens(text);
  for (const char* prefix : {"<sop>", "[gMASK]"}) {
    if (text.find(prefix) != std::string::npos) tokens.insert(tokens.begin(), prefix);
  }
  std::erase_if(tokens,
                [&](const std::string& t) { return tokenizer.AddedTokenId(t).has_value(); });
  return tokens;
}

std::shared_ptr<const ChatFormat> ChatFormat::Create(std::string_view template_jinja,
                                                     std::string_view tokenizer_config_json) {
  const Json config = ParseConfig(tokenizer_config_json);
  const std::string source =
      template_jinja.empty() ? FindTemplate(config) : std::string(template_jinja);
  if (source.empty()) return std::make_shared<BuiltInFormat>();
  return std::make_shared<TemplateFormat>(source, FindSpecialTokens(config));
}

}  // namespace hillstar
