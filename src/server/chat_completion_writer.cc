#include "server/chat_completion_writer.h"

#include <fmt/format.h>

#include <cmath>

namespace hillstar {
namespace {

OrderedJson Finite(double x) { return std::isfinite(x) ? OrderedJson(x) : OrderedJson(nullptr); }

}  // namespace

OrderedJson OpenAiUsage(const TokenUsage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning}}}};
}

const char* OpenAiFinish(AnswerEndReason reason) {
  switch (reason) {
    case AnswerEndReason::kStop:
    case AnswerEndReason::kStopString: return "stop";
    case AnswerEndReason::kLength: return "length";
    case AnswerEndReason::kToolCalls: return "tool_calls";
  }
  return "stop";
}

OrderedJson LogprobToken(const Tokenizer& tokenizer, const TokenLogprob& token) {
  const std::string_view bytes =
      token.id < tokenizer.vocab_size() ? tokenizer.TokenBytes(token.id) : std::string_view();
  OrderedJson list = OrderedJson::array();
  for (const char byte : bytes) list.push_back(int(static_cast<unsigned char>(byte)));
  return {{"token", std::string(bytes)},
          {"logprob", Finite(token.logprob)},
          {"bytes", std::move(list)}};
}

ChatCompletionWriter::ChatCompletionWriter(ReplyContext context, int64_t num_answers)
    : context_(std::move(context)), answers_(size_t(num_answers)) {}

OrderedJson ChatCompletionWriter::Head(const char* object) const {
  return {{"id", ObjectId("chatcmpl-", context_.request_id)},
          {"object", object},
          {"created", context_.created},
          {"model", context_.model},
          {"system_fingerprint", context_.fingerprint}};
}

std::string ChatCompletionWriter::CallId(int64_t answer, int64_t call) const {
  return fmt::format("call_{}_{}_{}", context_.request_id, answer, call);
}

void ChatCompletionWriter::SendChoice(int64_t answer, OrderedJson delta, OrderedJson logprobs,
                                      OrderedJson finish) {
  OrderedJson chunk = Head("chat.completion.chunk");
  chunk["choices"] = OrderedJson::array({{{"index", answer},
                                          {"delta", std::move(delta)},
                                          {"logprobs", std::move(logprobs)},
                                          {"finish_reason", std::move(finish)}}});
  if (context_.includes_usage) chunk["usage"] = nullptr;
  context_.reply->Write(StreamEvent(chunk));
}

void ChatCompletionWriter::Begin() {
  if (!context_.streams) return;
  has_started_ = true;
  StartStream(*context_.reply, ": keep-alive\n\n");
  for (size_t i = 0; i < answers_.size(); ++i) {
    SendChoice(int64_t(i), {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
  }
}

void ChatCompletionWriter::Progress(int64_t done, int64_t total) {
  if (context_.streams) context_.reply->Write(fmt::format(": prompt {}/{}\n\n", done, total));
}

OrderedJson ChatCompletionWriter::Logprobs(const std::vector<TokenLogprobs>& logprobs) const {
  if (logprobs.empty()) return nullptr;
  OrderedJson content = OrderedJson::array();
  for (const TokenLogprobs& token : logprobs) {
    OrderedJson entry = LogprobToken(*context_.tokenizer, token.drawn);
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& other : token.top) {
      top.push_back(LogprobToken(*context_.tokenizer, other));
    }
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson ChatCompletionWriter::Delta(const AnswerDelta& delta, int64_t answer) const {
  OrderedJson call{{"index", delta.call}};
  switch (delta.kind) {
    case AnswerDelta::Kind::kReasoning: return {{"reasoning_content", delta.text}};
    case AnswerDelta::Kind::kContent: return {{"content", delta.text}};
    case AnswerDelta::Kind::kCallBegin:
      call["id"] = CallId(answer, delta.call);
      call["type"] = "function";
      call["function"] = {{"name", delta.text}, {"arguments", ""}};
      break;
    case AnswerDelta::Kind::kCallArguments: call["function"] = {{"arguments", delta.text}}; break;
    case AnswerDelta::Kind::kCallEnd: return nullptr;
  }
  return {{"tool_calls", OrderedJson::array({std::move(call)})}};
}

void ChatCompletionWriter::Write(const AnswerPiece& piece) {
  WholeAnswer& whole = answers_[size_t(piece.answer)];
  if (!context_.streams) {
    for (const AnswerDelta& delta : piece.deltas) whole.answer.Apply(delta);
    whole.logprobs.insert(whole.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
    return;
  }
  OrderedJson logprobs = Logprobs(piece.logprobs);
  for (const AnswerDelta& delta : piece.deltas) {
    OrderedJson json = Delta(delta, piece.answer);
    if (json.is_null()) continue;
    SendChoice(piece.answer, std::move(json), std::exchange(logprobs, nullptr), nullptr);
  }
  if (!logprobs.is_null()) {
    SendChoice(piece.answer, OrderedJson::object(), std::move(logprobs), nullptr);
  }
}

void ChatCompletionWriter::End(int64_t answer, const AnswerEnd& end) {
  answers_[size_t(answer)].end = end;
  if (context_.streams) {
    SendChoice(answer, OrderedJson::object(), nullptr, OpenAiFinish(end.reason));
  }
}

OrderedJson ChatCompletionWriter::Message(int64_t answer) const {
  const Answer& whole = answers_[size_t(answer)].answer;
  OrderedJson message{{"role", "assistant"}};
  const bool has_calls = !whole.tool_calls.empty();
  message["content"] =
      has_calls && whole.content.empty() ? OrderedJson(nullptr) : OrderedJson(whole.content);
  message["refusal"] = nullptr;
  if (!whole.reasoning.empty()) message["reasoning_content"] = whole.reasoning;
  if (!has_calls) return message;
  OrderedJson& calls = message["tool_calls"] = OrderedJson::array();
  for (size_t i = 0; i < whole.tool_calls.size(); ++i) {
    const ToolCall& call = whole.tool_calls[i];
    calls.push_back({{"id", CallId(answer, int64_t(i))},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments_json}}}});
  }
  return message;
}

void ChatCompletionWriter::Done(const TokenUsage& usage) {
  if (context_.streams) {
    if (context_.includes_usage) {
      OrderedJson chunk = Head("chat.completion.chunk");
      chunk["choices"] = OrderedJson::array();
      chunk["usage"] = OpenAiUsage(usage);
      context_.reply->Write(StreamEvent(chunk));
    }
    context_.reply->Write("data: [DONE]\n\n");
    return context_.reply->End();
  }
  OrderedJson body = Head("chat.completion");
  OrderedJson& choices = body["choices"] = OrderedJson::array();
  for (size_t i = 0; i < answers_.size(); ++i) {
    choices.push_back({{"index", i},
                       {"message", Message(int64_t(i))},
                       {"logprobs", Logprobs(answers_[i].logprobs)},
                       {"finish_reason", OpenAiFinish(answers_[i].end.reason)}});
  }
  body["usage"] = OpenAiUsage(usage);
  SendJson(*context_.reply, 200, body);
}

void ChatCompletionWriter::Fail(const ApiError& error) {
  FailOpenAi(context_, has_started_, error);
}

}  // namespace hillstar
