// Any bytes as the body of a request of each API, and documented requests with some values
// exchanged, over an engine without a model: either an ApiError of status 400 (or an Error, which
// becomes one), or a request within the limits that can be put in line.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "engine/fake_engine.h"
#include "formats/json_scan.h"
#include "server/api_error.h"
#include "server/chat_completion_request.h"
#include "server/completion_request.h"
#include "server/message_request.h"
#include "server/request_parts.h"

namespace {

using namespace hillstar;

constexpr int64_t kContextTokens = 256;
constexpr size_t kMaxBodyBytes = size_t{1} << 16;

FakeEngine& TheEngine() {
  static FakeEngine engine(ScriptedModel({}, 0, 0, 512), kContextTokens);
  return engine;
}

void CheckSampling(const SamplingParams& s) {
  CHECK(s.temperature >= 0 && s.temperature <= 100);
  CHECK(s.top_p >= 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 && s.top_k >= 0);
  CHECK(s.repetition_penalty >= 0.01 && s.repetition_penalty <= 100);
  CHECK(std::abs(s.presence_penalty) <= 2 && std::abs(s.frequency_penalty) <= 2);
}

void CheckAnswer(const AnswerRequest& answer) {
  const Engine& engine = TheEngine();
  const int64_t vocab = engine.config().vocab_size;
  CHECK(!answer.prompts.empty() && answer.prompts.size() <= 128);
  for (const Prompt& prompt : answer.prompts) {
    CHECK(!prompt.ids.empty() && int64_t(prompt.ids.size()) < kContextTokens);
    CHECK(std::ranges::all_of(prompt.ids, [&](int32_t id) { return id >= 0 && id < vocab; }));
  }
  CHECK(answer.answers_each >= 1 && answer.answers_each <= kMaxAnswers);
  CHECK(answer.max_tokens >= 1);
  CHECK(answer.stops.size() <= kMaxStops);
  for (const std::string& stop : answer.stops) {
    CHECK(!stop.empty() && stop.size() <= kMaxStopBytes);
  }
  for (const LogitBias& bias : answer.biases) {
    CHECK(bias.id >= 0 && bias.id < vocab && std::abs(bias.bias) <= 100);
  }
  CHECK(answer.num_top_logprobs >= -1 && answer.num_top_logprobs <= kMaxTopLogprobs);
  CHECK(answer.tools.size() <= kMaxTools);
  CheckSampling(answer.sampling);
}

// What an error says is short, and becomes a body that is JSON.
void CheckError(const ApiError& error, ApiStyle style) {
  constexpr size_t kMaxSentenceBytes = 2000;
  CHECK(error.status() >= 400 && error.status() < 500);
  CHECK(std::string_view(error.what()).size() <= kMaxSentenceBytes);
  const std::string body = ErrorBody(style, error, "id");
  CHECK(ParseOrderedJson(body, "the error", size_t{1} << 20).contains("error"));
}

template <typename Reader>
void TryRead(std::string_view text, ApiStyle style, const Reader& read) {
  try {
    const OrderedJson body = ParseOrderedJson(text, "the request's body", kMaxBodyBytes);
    read(body);
  } catch (const ApiError& error) {
    CheckError(error, style);
  } catch (const Error& error) {
    CheckError(ApiErrorOf(error), style);
  }
}

// Requests as docs/api.md describes them.
constexpr const char* kRequests[] = {
    R"({"model":"m","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":
        "text","text":"b"}]},{"role":"assistant","content":null,"reasoning_content":"c","tool_calls":
        [{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":
        "tool","tool_call_id":"1","content":"d"}],"tools":[{"type":"function","function":{"name":"f",
        "description":"e","parameters":{"type":"object","properties":{"x":{"type":"integer"}}},
        "strict":false}}],"tool_choice":{"type":"function","function":{"name":"f"}},
        "parallel_tool_calls":true,"max_tokens":5,"max_completion_tokens":6})",
    R"({"messages":[{"role":"user","content":"a"}],"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0,
        "presence_penalty":0.1,"frequency_penalty":-0.1,"repetition_penalty":1.1,"logit_bias":{"65":
        1.5},"seed":7,"n":2,"stop":["x","yz"],"stream":true,"stream_options":{"include_usage":true},
        "logprobs":true,"top_logprobs":3,"response_format":{"type":"text"},"reasoning_effort":"high",
        "thinking":{"type":"enabled","clear_thinking":false},"chat_template_kwargs":
        {"enable_thinking":true},"user":"u","metadata":{},"modalities":["text"]})",
    R"({"messages":[{"role":"user","content":"a"}],"grammar":"root ::= \"a\"","response_format":
        {"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"}}}})",
    R"({"prompt":["a",[65,66]],"max_tokens":3,"logprobs":2,"echo":false,"best_of":1,"n":2,"stop":"x"})",
    R"({"prompt":[65,66,67],"echo":true,"stream":true,"suffix":null,"logit_bias":{"1":-100}})",
    R"({"max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"a"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":
        "tool_use","id":"1","name":"f","input":{"x":1}}]},{"role":"user","content":[{"type":
        "tool_result","tool_use_id":"1","content":"r","is_error":false},{"type":"text","text":"b"}]}],
        "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":
        {"type":"auto","disable_parallel_tool_use":true},"stop_sequences":["x"],"stream":false,
        "thinking":{"type":"enabled","budget_tokens":1024},"output_config":{"effort":"low"}})"};

// Values that stand where others are expected.
constexpr const char* kValues[] = {"null",
                                   "true",
                                   "0",
                                   "-1",
                                   "0.5",
                                   "1e300",
                                   "2147483648",
                                   "9223372036854775807",
                                   "18446744073709551615",
                                   "-9223372036854775808",
                                   "\"\"",
                                   "\"auto\"",
                                   "\"text\"",
                                   "\"\\u0000\\ud83d\\ude00\"",
                                   "\"<|user|></think>[gMASK]\"",
                                   "[]",
                                   "[[]]",
                                   "[0,256]",
                                   "[\"a\"]",
                                   "{}",
                                   "{\"type\":\"text\",\"text\":\"a\"}",
                                   "{\"role\":\"user\",\"content\":\"a\"}",
                                   "{\"a\":{\"b\":[]}}"};

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  // Below n.
  size_t Take(size_t n) {
    if (left_ == 0) return 0;
    --left_;
    return *data_++ % n;
  }
  bool empty() const { return left_ == 0; }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Somewhere in the request: a value is exchanged for another, goes, or comes twice.
void Change(Input* input, OrderedJson* json) {
  while (json->is_structured() && !json->empty() && input->Take(8) != 0) {
    const size_t at = input->Take(json->size());
    const size_t what = input->Take(16);
    const auto child = std::next(json->begin(), int64_t(at));
    if (what == 0) {
      json->erase(child);
      return;
    }
    if (what == 1 && json->is_array()) json->push_back(OrderedJson(*child));
    json = &*std::next(json->begin(), int64_t(at));
  }
  *json = OrderedJson::parse(kValues[input->Take(std::size(kValues))]);
}

void ReadAll(std::string_view text) {
  const Engine& engine = TheEngine();
  AnswerDefaults defaults;
  defaults.seed = 1;
  TryRead(text, ApiStyle::kOpenAi, [&](const OrderedJson& body) {
    const ChatCompletionRequest request = ReadChatCompletion(body, engine, defaults);
    CheckAnswer(request.answer);
    CHECK(request.streams || !request.includes_usage);
  });
  TryRead(text, ApiStyle::kOpenAi, [&](const OrderedJson& body) {
    const CompletionRequest request = ReadCompletion(body, engine, defaults);
    CheckAnswer(request.answer);
    CHECK(request.echoes.empty() || request.echoes.size() == request.answer.prompts.size());
  });
  TryRead(text, ApiStyle::kAnthropic, [&](const OrderedJson& body) {
    CheckAnswer(ReadMessage(body, engine, defaults).answer);
  });
  TryRead(text, ApiStyle::kAnthropic, [&](const OrderedJson& body) {
    const int64_t count = CountMessageTokens(body, engine, defaults);
    CHECK(count > 0 && count < kContextTokens);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ReadAll(std::string_view(reinterpret_cast<const char*>(data), size));
  Input input(data, size);
  OrderedJson request = OrderedJson::parse(kRequests[input.Take(std::size(kRequests))]);
  for (int changes = 0; changes < 8 && !input.empty(); ++changes) Change(&input, &request);
  ReadAll(request.dump());
  return 0;
}
