#include "chat_stream_check.h"

#include <fmt/format.h>

namespace hillstar {
namespace {

using Json = nlohmann::json;

// What a message may show of a text that the server sent.
std::string Shown(std::string_view text) {
  return fmt::format("\"{}\"{}", text.substr(0, 120), text.size() > 120 ? "..." : "");
}

bool IsNull(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_null();
}

// The text of a member that has to be one, or "" where it is absent or null.
std::string TextOf(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

void ChatStreamCheck::Fail(std::string sentence) {
  if (fault_.empty()) fault_ = std::move(sentence);
}

bool ChatStreamCheck::Push(std::string_view bytes) {
  bool has_text = false;
  rest_ += bytes;
  size_t begin = 0;
  for (size_t end; (end = rest_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (TakeLine(std::string_view(rest_).substr(begin, end - begin))) has_text = true;
  }
  rest_.erase(0, begin);
  return has_text;
}

bool ChatStreamCheck::TakeLine(std::string_view line) {
  if (line.empty() || line.starts_with(':')) return false;
  if (line.starts_with("data: ")) return TakeData(line.substr(6));
  Fail(fmt::format("the line {} is neither data nor a comment", Shown(line)));
  return false;
}

bool ChatStreamCheck::TakeData(std::string_view data) {
  if (is_done_) Fail(fmt::format("{} came after [DONE]", Shown(data)));
  if (data == "[DONE]") {
    is_done_ = true;
    return false;
  }
  const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!chunk.is_object() || chunk.contains("error") ||
      TextOf(chunk, "object") != "chat.completion.chunk" || !chunk.contains("choices") ||
      !chunk["choices"].is_array()) {
    Fail(fmt::format("{} is no chunk", Shown(data)));
    return false;
  }
  const std::string id = TextOf(chunk, "id");
  if (id_.empty()) id_ = id;
  if (id.empty() || id != id_) Fail(fmt::format("the chunk {} has another id", Shown(data)));
  const Json& choices = chunk["choices"];
  if (choices.empty()) {
    if (chunk.contains("usage")) TakeUsage(chunk["usage"]);
    return false;
  }
  if (!IsNull(chunk, "usage")) Fail("a chunk before the last has a usage that is not null");
  if (choices.size() != 1) Fail(fmt::format("a chunk has {} choices", choices.size()));
  return TakeChoice(choices[0]);
}

bool ChatStreamCheck::TakeChoice(const Json& choice) {
  if (!choice.is_object() || choice.value("index", -1) != 0 || !choice.contains("delta") ||
      !choice["delta"].is_object() || !choice.contains("finish_reason")) {
    Fail("a choice lacks index, delta or finish_reason");
    return false;
  }
  if (!finish_.empty()) Fail("a choice came after its finish_reason");
  const Json& delta = choice["delta"];
  if (!has_role_) {
    has_role_ = TextOf(delta, "role") == "assistant";
    if (!has_role_) Fail("the first chunk has no role");
  }
  if (!choice["finish_reason"].is_null()) {
    finish_ = TextOf(choice, "finish_reason");
    if (finish_ != "stop" && finish_ != "length") {
      Fail(fmt::format("finish_reason is {}", Shown(finish_)));
    }
  }
  return !TextOf(delta, "content").empty() || !TextOf(delta, "reasoning_content").empty();
}

void ChatStreamCheck::TakeUsage(const Json& usage) {
  if (!usage.is_object()) return Fail("the last chunk's usage is no object");
  if (prompt_tokens_ >= 0) Fail("usage came twice");
  if (finish_.empty()) Fail("usage came before the finish_reason");
  prompt_tokens_ = usage.value("prompt_tokens", int64_t{-1});
  answer_tokens_ = usage.value("completion_tokens", int64_t{-1});
  const int64_t total = usage.value("total_tokens", int64_t{-1});
  if (prompt_tokens_ < 1 || answer_tokens_ < 0 || total != prompt_tokens_ + answer_tokens_) {
    Fail(fmt::format("usage is {}", usage.dump()));
  }
}

void ChatStreamCheck::Finish() {
  if (!rest_.empty()) Fail("the stream ends within a line");
  if (!is_done_) Fail("the stream ends without [DONE]");
  if (finish_.empty()) Fail("the stream ends without a finish_reason");
  if (answer_tokens_ < 0) return Fail("the stream ends without a usage");
  if (answer_tokens_ > max_tokens_ || (finish_ == "length" && answer_tokens_ < max_tokens_)) {
    Fail(fmt::format("an answer of {} tokens, {} at most, ended for the reason {}", answer_tokens_,
                     max_tokens_, Shown(finish_)));
  }
}

}  // namespace hillstar
