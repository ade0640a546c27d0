#include "server/responses_writer.h"

#include <fmt/format.h>

#include "core/check.h"
#include "server/chat_completion_writer.h"
#include "server/responses_request.h"

namespace hillstar {
namespace {

OrderedJson ResponseUsage(const TokenUsage& usage) {
  return {{"input_tokens", usage.prompt},
          {"input_tokens_details", {{"cached_tokens", usage.cached}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning}}},
          {"total_tokens", usage.prompt + usage.completion}};
}

// The code that a failed response has for what happened: the API knows these only.
const char* FailureCode(const ApiError& error) {
  if (error.status() == 429) return "rate_limit_exceeded";
  return error.status() >= 500 ? "server_error" : "invalid_prompt";
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

}  // namespace

ResponsesWriter::ResponsesWriter(ReplyContext context, Options options)
    : context_(std::move(context)),
      options_(std::move(options)),
      logprobs_(*context_.tokenizer, options_.starts_thinking, options_.reads_calls) {}

void ResponsesWriter::Send(const char* type, OrderedJson members) {
  if (!context_.streams) return;
  OrderedJson event{{"type", type}, {"sequence_number", num_events_++}};
  for (auto& [name, value] : members.items()) event[name] = std::move(value);
  context_.reply->Write(StreamEvent(event, type));
}

void ResponsesWriter::SendOfItem(const char* type, OrderedJson members) {
  OrderedJson all{{"item_id", item_->id}, {"output_index", output_.size()}};
  for (auto& [name, value] : members.items()) all[name] = std::move(value);
  Send(type, std::move(all));
}

void ResponsesWriter::SendOfPart(const char* type, OrderedJson members) {
  OrderedJson all{{"content_index", 0}};
  for (auto& [name, value] : members.items()) all[name] = std::move(value);
  SendOfItem(type, std::move(all));
}

OrderedJson ResponsesWriter::PartJson() const {
  if (item_->kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", item_->text}};
  return {{"type", "output_text"},
          {"text", item_->text},
          {"annotations", OrderedJson::array()},
          {"logprobs", item_->logprobs}};
}

// An item in progress has no part yet: the event of the part brings it.
OrderedJson ResponsesWriter::ItemJson(const char* status) const {
  const Item& item = *item_;
  if (item.kind == Kind::kCallBegin) {
    return {{"id", item.id},     {"type", "function_call"}, {"status", status},
            {"name", item.name}, {"call_id", item.call_id}, {"arguments", item.text}};
  }
  const bool is_reasoning = item.kind == Kind::kReasoning;
  OrderedJson json{
      {"id", item.id}, {"type", is_reasoning ? "reasoning" : "message"}, {"status", status}};
  if (is_reasoning) json["summary"] = OrderedJson::array();
  if (!is_reasoning) json["role"] = "assistant";
  OrderedJson& content = json["content"] = OrderedJson::array();
  if (std::string_view(status) != "in_progress") content.push_back(PartJson());
  return json;
}

OrderedJson ResponsesWriter::TakeLogprobs() {
  OrderedJson taken = OrderedJson::array();
  for (const TokenLogprobs& token : logprobs_.Take(num_calls_)) {
    OrderedJson entry = LogprobToken(*context_.tokenizer, token.drawn);
    OrderedJson& top = entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& other : token.top) {
      top.push_back(LogprobToken(*context_.tokenizer, other));
    }
    item_->logprobs.push_back(entry);
    taken.push_back(std::move(entry));
  }
  return taken;
}

void ResponsesWriter::Open(Kind kind, const std::string& name) {
  Close("completed");
  const char* prefix = kind == Kind::kReasoning ? "rs_" : kind == Kind::kContent ? "msg_" : "fc_";
  has_answered_ |= kind != Kind::kReasoning;
  item_.emplace();
  item_->kind = kind;
  item_->id = prefix + ItemIdEnd(options_.id, std::to_string(output_.size()));
  if (kind == Kind::kCallBegin) {
    item_->name = name;
    item_->call_id = "call_" + ItemIdEnd(options_.id, std::to_string(num_calls_++));
  }
  Send("response.output_item.added",
       {{"output_index", output_.size()}, {"item", ItemJson("in_progress")}});
  if (kind != Kind::kCallBegin) SendOfPart("response.content_part.added", {{"part", PartJson()}});
}

void ResponsesWriter::Append(const std::string& text) {
  item_->text += text;
  switch (item_->kind) {
    case Kind::kReasoning: return SendOfPart("response.reasoning_text.delta", {{"delta", text}});
    case Kind::kContent: {
      OrderedJson logprobs = TakeLogprobs();
      return SendOfPart("response.output_text.delta",
                        {{"delta", text}, {"logprobs", std::move(logprobs)}});
    }
    default: return SendOfItem("response.function_call_arguments.delta", {{"delta", text}});
  }
}

void ResponsesWriter::Close(const char* status) {
  if (!item_) return;
  if (item_->kind == Kind::kCallBegin) {
    SendOfItem("response.function_call_arguments.done",
               {{"name", item_->name}, {"arguments", item_->text}});
  } else {
    const bool is_reasoning = item_->kind == Kind::kReasoning;
    OrderedJson members{{"text", item_->text}};
    if (!is_reasoning) members["logprobs"] = item_->logprobs;
    SendOfPart(is_reasoning ? "response.reasoning_text.done" : "response.output_text.done",
               std::move(members));
    SendOfPart("response.content_part.done", {{"part", PartJson()}});
  }
  OrderedJson json = ItemJson(status);
  Send("response.output_item.done", {{"output_index", output_.size()}, {"item", json}});
  output_.push_back(std::move(json));
  item_.reset();
}

OrderedJson ResponsesWriter::Response(const char* status) const {
  OrderedJson response{{"id", options_.id},
                       {"object", "response"},
                       {"created_at", context_.created},
                       {"status", status},
                       {"completed_at", nullptr},
                       {"error", nullptr},
                       {"incomplete_details", nullptr},
                       {"model", context_.model},
                       {"output", output_},
                       {"usage", nullptr}};
  for (const auto& [name, value] : options_.settings.items()) response[name] = value;
  return response;
}

void ResponsesWriter::Begin() {
  if (!context_.streams) return;
  has_started_ = true;
  StartStream(*context_.reply, ": keep-alive\n\n");
  Send("response.created", {{"response", Response("in_progress")}});
  Send("response.in_progress", {{"response", Response("in_progress")}});
}

void ResponsesWriter::Progress(int64_t done, int64_t total) {
  if (context_.streams) context_.reply->Write(fmt::format(": prompt {}/{}\n\n", done, total));
}

// A call ends with what follows it, for only then it is known whether the answer was cut inside.
void ResponsesWriter::Take(const AnswerDelta& delta) {
  switch (delta.kind) {
    case Kind::kReasoning:
    case Kind::kContent:
      if (delta.text.empty()) return;
      if (!item_ || item_->kind != delta.kind) Open(delta.kind, "");
      return Append(delta.text);
    case Kind::kCallBegin: return Open(delta.kind, delta.text);
    case Kind::kCallArguments:
      CHECK(item_ && item_->kind == Kind::kCallBegin);
      return Append(delta.text);
    case Kind::kCallEnd: return;
  }
}

void ResponsesWriter::Write(const AnswerPiece& piece) {
  for (const TokenLogprobs& token : piece.logprobs) logprobs_.Push(token);
  for (const AnswerDelta& delta : piece.deltas) Take(delta);
}

void ResponsesWriter::End(int64_t, const AnswerEnd& end) {
  end_ = end;
  const bool is_cut = end.reason == AnswerEndReason::kLength;
  if (!is_cut && !has_answered_) Open(Kind::kContent, "");  // clients look for a message or a call
  Close(is_cut ? "incomplete" : "completed");
}

void ResponsesWriter::Done(const TokenUsage& usage) {
  const bool is_cut = end_.reason == AnswerEndReason::kLength;
  OrderedJson response = Response(is_cut ? "incomplete" : "completed");
  if (is_cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (!is_cut) response["completed_at"] = options_.clock();
  response["usage"] = ResponseUsage(usage);
  if (options_.keep) options_.keep(response);
  if (!context_.streams) return SendJson(*context_.reply, 200, response);
  Send(is_cut ? "response.incomplete" : "response.completed", {{"response", std::move(response)}});
  context_.reply->End();
}

void ResponsesWriter::Fail(const ApiError& error) {
  if (!has_started_) return FailOpenAi(context_, false, error);
  Close("incomplete");
  Send("error", {{"code", error.code().empty() ? FailureCode(error) : error.code()},
                 {"message", error.what()},
                 {"param", TextOrNull(error.param())}});
  OrderedJson response = Response("failed");
  response["error"] = {{"code", FailureCode(error)}, {"message", error.what()}};
  Send("response.failed", {{"response", std::move(response)}});
  context_.reply->End();
}

}  // namespace hillstar
