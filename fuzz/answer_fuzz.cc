// Makes an answer's text of the input and reads it whole, in pieces and byte by byte: what comes
// out has to be the same, and the arguments of every call a JSON object. The first two bytes say
// how it is read and cut; low bytes stand for tags, so that the fuzzer need not find their letters.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "tokenizer/answer_reader.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

using Kind = AnswerDelta::Kind;

constexpr std::string_view kParts[] = {
    "<think>",    "</think>",    "<tool_call>",     "</tool_call>",   "<arg_key>",
    "</arg_key>", "<arg_value>", "</arg_value>",    "tool",           "text",
    "number",     "maybe",       "{\"name\":\"f\"", "\"arguments\":", "中"};

const std::vector<ToolDefinition> kTools = {
    {"tool", R"({"properties":{"text":{"type":"string"},"number":{"type":"number"},
                               "maybe":{"type":["string","null"]}}})"}};

std::string TextOf(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto which = static_cast<unsigned char>(c);
    if (which < std::size(kParts)) {
      text += kParts[which];
    } else {
      text += c;
    }
  }
  return text;
}

std::vector<AnswerDelta> Read(std::string_view text, const AnswerReaderOptions& options,
                              size_t piece_bytes) {
  AnswerReader reader(options);
  std::vector<AnswerDelta> all;
  const auto add = [&all](const std::vector<AnswerDelta>& deltas) {
    for (const AnswerDelta& delta : deltas) {
      CHECK(ValidUtf8Prefix(delta.text) == delta.text.size());
      AppendDelta(delta.kind, delta.call, delta.text, &all);
    }
  };
  for (size_t pos = 0; pos < text.size(); pos += piece_bytes) {
    add(reader.Push(text.substr(pos, piece_bytes)));
  }
  add(reader.Finish());
  int64_t num_calls = 0;
  for (const AnswerDelta& delta : all) {
    if (delta.kind == Kind::kCallBegin) CHECK(delta.call == num_calls++ && IsToolName(delta.text));
    CHECK(delta.call == -1 || delta.call + 1 == num_calls);
  }
  CHECK(num_calls == reader.num_calls());
  return all;
}

void CheckCalls(const std::vector<AnswerDelta>& deltas) {
  Answer answer;
  for (const AnswerDelta& delta : deltas) answer.Apply(delta);
  for (const ToolCall& call : answer.tool_calls) {
    CHECK(nlohmann::json::parse(call.arguments_json, nullptr, false).is_object());
  }
}

}  // namespace
}  // namespace hillstar

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hillstar;
  if (size < 2) return 0;
  const AnswerReaderOptions options = {
      .starts_thinking = (data[0] & 1) != 0, .reads_calls = (data[0] & 2) == 0, .tools = kTools};
  const std::string text = TextOf({reinterpret_cast<const char*>(data) + 2, size - 2});
  const std::vector<AnswerDelta> whole = Read(text, options, text.size() + 1);
  CheckCalls(whole);
  CHECK(Read(text, options, 1) == whole);
  CHECK(Read(text, options, size_t{data[1]} + 2) == whole);
  return 0;
}
