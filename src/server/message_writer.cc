#include "server/message_writer.h"

#include <fmt/format.h>

namespace hillstar {
namespace {

OrderedJson Usage(const TokenUsage& usage) {
  return {{"input_tokens", usage.prompt - usage.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached},
          {"output_tokens", usage.completion},
          {"output_tokens_details", {{"thinking_tokens", usage.reasoning}}}};
}

const char* StopReason(AnswerEndReason reason) {
  switch (reason) {
    case AnswerEndReason::kStop: return "end_turn";
    case AnswerEndReason::kStopString: return "stop_sequence";
    case AnswerEndReason::kLength: return "max_tokens";
    case AnswerEndReason::kToolCalls: return "tool_use";
  }
  return "end_turn";
}

OrderedJson StopSequence(const AnswerEnd& end) {
  return end.reason == AnswerEndReason::kStopString ? OrderedJson(end.stop) : OrderedJson(nullptr);
}

}  // namespace

MessageWriter::MessageWriter(ReplyContext context, int64_t prompt_tokens)
    : context_(std::move(context)), prompt_tokens_(prompt_tokens) {}

OrderedJson MessageWriter::Head() const {
  return {{"id", ObjectId("msg_", context_.request_id)},
          {"type", "message"},
          {"role", "assistant"},
          {"model", context_.model},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr}};
}

void MessageWriter::SendEvent(const char* type, OrderedJson members) {
  OrderedJson event{{"type", type}};
  for (auto& [name, value] : members.items()) event[name] = std::move(value);
  context_.reply->Write(StreamEvent(event, type));
}

void MessageWriter::Begin() {
  if (!context_.streams) return;
  has_started_ = true;
  StartStream(*context_.reply, "event: ping\ndata: {\"type\": \"ping\"}\n\n");
  OrderedJson message = Head();
  message["usage"] = Usage({.prompt = prompt_tokens_});
  SendEvent("message_start", {{"message", std::move(message)}});
}

void MessageWriter::Progress(int64_t done, int64_t total) {
  if (context_.streams) context_.reply->Write(fmt::format(": prompt {}/{}\n\n", done, total));
}

OrderedJson MessageWriter::UseBlock(int64_t call, const std::string& name,
                                    OrderedJson input) const {
  return {{"type", "tool_use"},
          {"id", fmt::format("toolu_{}_{}", context_.request_id, call)},
          {"name", name},
          {"input", std::move(input)}};
}

void MessageWriter::OpenBlock(Kind kind, OrderedJson block) {
  CloseBlock();
  has_block_ = true;
  block_ = kind;
  SendEvent("content_block_start", {{"index", num_blocks_}, {"content_block", std::move(block)}});
}

void MessageWriter::CloseBlock() {
  if (!has_block_) return;
  if (block_ == Kind::kReasoning) {
    SendEvent("content_block_delta", {{"index", num_blocks_},
                                      {"delta", {{"type", "signature_delta"}, {"signature", ""}}}});
  }
  SendEvent("content_block_stop", {{"index", num_blocks_}});
  has_block_ = false;
  ++num_blocks_;
}

void MessageWriter::SendDelta(const AnswerDelta& delta) {
  const bool goes_on = has_block_ && block_ == delta.kind;
  OrderedJson json;
  switch (delta.kind) {
    case Kind::kReasoning:
      if (!goes_on)
        OpenBlock(delta.kind, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      json = {{"type", "thinking_delta"}, {"thinking", delta.text}};
      break;
    case Kind::kContent:
      if (!goes_on) OpenBlock(delta.kind, {{"type", "text"}, {"text", ""}});
      json = {{"type", "text_delta"}, {"text", delta.text}};
      break;
    case Kind::kCallBegin:
      return OpenBlock(delta.kind, UseBlock(delta.call, delta.text, OrderedJson::object()));
    case Kind::kCallArguments:
      json = {{"type", "input_json_delta"}, {"partial_json", delta.text}};
      break;
    case Kind::kCallEnd: return CloseBlock();
  }
  SendEvent("content_block_delta", {{"index", num_blocks_}, {"delta", std::move(json)}});
}

void MessageWriter::Write(const AnswerPiece& piece) {
  for (const AnswerDelta& delta : piece.deltas) {
    if (context_.streams) {
      SendDelta(delta);
    } else {
      answer_.Apply(delta);
    }
  }
}

void MessageWriter::End(int64_t, const AnswerEnd& end) { end_ = end; }

OrderedJson MessageWriter::Content() const {
  OrderedJson content = OrderedJson::array();
  if (!answer_.reasoning.empty()) {
    content.push_back({{"type", "thinking"}, {"thinking", answer_.reasoning}, {"signature", ""}});
  }
  if (!answer_.content.empty()) {
    content.push_back({{"type", "text"}, {"text", answer_.content}});
  }
  for (size_t i = 0; i < answer_.tool_calls.size(); ++i) {
    const ToolCall& call = answer_.tool_calls[i];
    OrderedJson input = OrderedJson::parse(call.arguments_json, nullptr, false);
    if (!input.is_object()) input = OrderedJson::object();  // the answer was cut
    content.push_back(UseBlock(int64_t(i), call.name, std::move(input)));
  }
  return content;
}

void MessageWriter::Done(const TokenUsage& usage) {
  if (context_.streams) {
    CloseBlock();
    SendEvent("message_delta",
              {{"delta",
                {{"stop_reason", StopReason(end_.reason)}, {"stop_sequence", StopSequence(end_)}}},
               {"usage", Usage(usage)}});
    SendEvent("message_stop", OrderedJson::object());
    return context_.reply->End();
  }
  OrderedJson body = Head();
  body["content"] = Content();
  body["stop_reason"] = StopReason(end_.reason);
  body["stop_sequence"] = StopSequence(end_);
  body["usage"] = Usage(usage);
  SendJson(*context_.reply, 200, body);
}

void MessageWriter::Fail(const ApiError& error) {
  const std::string body = ErrorBody(ApiStyle::kAnthropic, error, context_.request_id);
  if (!has_started_) {
    return context_.reply->Send(error.status(), {{"Content-Type", "application/json"}}, body);
  }
  context_.reply->Write("event: error\ndata: " + body + "\n\n");
  context_.reply->End();
}

}  // namespace hillstar
