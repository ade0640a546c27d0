// Parts that requests of several APIs have in common, read and checked. Errors: ApiError of status
// 400, its param naming the member. Pure functions; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hillstar/engine.h"
#include "server/answer_request.h"
#include "server/api_json.h"

namespace hillstar {

// Limits on what a request may hold.
inline constexpr size_t kMaxMessages = 10000, kMaxTools = 512, kMaxStops = 16, kMaxStopBytes = 1024;
inline constexpr int64_t kMaxAnswers = 128, kMaxTopLogprobs = 20;

// Temperature, top_p, top_k, min_p, penalties and seed.
void ReadSampling(JsonFields& fields, const AnswerDefaults& defaults, SamplingParams* sampling);
// "stop": a text or an array of texts.
std::vector<std::string> ReadStops(JsonFields& fields, std::string_view name);
// "stream" and OpenAI's "stream_options", which need it.
void ReadStreaming(JsonFields& fields, bool* streams, bool* includes_usage);
// "logit_bias": an object of token ids and numbers from -100 to 100.
std::vector<LogitBias> ReadBiases(JsonFields& fields, const Engine& engine);

// "auto", "none", "required" or one tool by its name.
struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired };
  Kind kind = Kind::kAuto;
  std::string only;  // of kRequired: this tool; "": any
};
struct OfferedTools {
  std::vector<ToolDefinition> tools;
  std::vector<std::string> tools_json;  // as the chat template takes them
  bool is_strict = false;               // arguments have to follow the schema
  bool may_be_parallel = true;
  ToolChoice choice;
};
// Errors: a name that is no name, or stands twice.
void AddTool(const std::string& name, const std::string& description, const OrderedJson* parameters,
             const std::string& path, OfferedTools* offered);
// Sets what the tools mean for the prompt and for the answer. `choice_path` is named in errors.
void ApplyTools(const OfferedTools& offered, const std::string& choice_path, const Engine& engine,
                ChatOptions* chat, AnswerRequest* request);

// "none" and "minimal" turn thinking off; "low", "medium" and "high" mean high, "xhigh" and "max"
// max, as GLM's hosted API has it.
void ApplyEffort(const std::string& effort, ChatOptions* chat);

// The prompt as the model's template renders it. Errors, of the member `param`: what the template
// refuses; a prompt that leaves no room in the context: code context_length_exceeded.
Prompt RenderPrompt(const std::vector<ChatMessage>& messages, const ChatOptions& chat,
                    const Engine& engine, const std::string& param = "messages");
void CheckRoom(const Prompt& prompt, const Engine& engine, const std::string& param);
// The same for a text that is so long that no tokens of it could be few enough: cutting tens of MB
// into tokens takes seconds, in which other requests would wait.
void CheckTextRoom(std::string_view text, const Engine& engine, const std::string& param);

// A grammar's error as one of the member `param`.
std::shared_ptr<const Grammar> MakeGrammar(
    const std::string& param, const std::function<std::shared_ptr<const Grammar>()>& make);

}  // namespace hillstar
