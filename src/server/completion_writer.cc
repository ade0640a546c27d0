#include "server/completion_writer.h"

#include <fmt/format.h>

#include "server/chat_completion_writer.h"
#include "tokenizer/utf8.h"

namespace hillstar {

CompletionWriter::CompletionWriter(ReplyContext context, int64_t num_answers)
    : context_(std::move(context)),
      answers_(size_t(num_answers)),
      text_offsets_(size_t(num_answers)) {
  for (int64_t i = 0; i < num_answers; ++i) text_offsets_[size_t(i)] = int64_t(Echo(i).size());
}

OrderedJson CompletionWriter::Head() const {
  return {{"id", ObjectId("cmpl-", context_.request_id)},
          {"object", "text_completion"},
          {"created", context_.created},
          {"model", context_.model},
          {"system_fingerprint", context_.fingerprint}};
}

std::string CompletionWriter::Echo(int64_t answer) const {
  const auto prompt = size_t(answer / context_.answers_each);
  return prompt < context_.echoes.size() ? context_.echoes[prompt] : "";
}

OrderedJson CompletionWriter::Logprobs(int64_t answer, const std::vector<TokenLogprobs>& logprobs) {
  if (logprobs.empty()) return nullptr;
  OrderedJson tokens = OrderedJson::array(), values = tokens, tops = tokens, offsets = tokens;
  for (const TokenLogprobs& token : logprobs) {
    const OrderedJson drawn = LogprobToken(*context_.tokenizer, token.drawn);
    tokens.push_back(drawn["token"]);
    values.push_back(drawn["logprob"]);
    OrderedJson top = OrderedJson::object();
    for (const TokenLogprob& other : token.top) {
      const OrderedJson entry = LogprobToken(*context_.tokenizer, other);
      top[ReplaceInvalidUtf8(entry["token"].get<std::string>())] = entry["logprob"];
    }
    tops.push_back(std::move(top));
    int64_t& offset = text_offsets_[size_t(answer)];
    offsets.push_back(offset);
    offset += int64_t(drawn["bytes"].size());
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

OrderedJson CompletionWriter::Choice(int64_t answer, const std::string& text,
                                     const std::vector<TokenLogprobs>& logprobs,
                                     OrderedJson finish) {
  return {{"text", text},
          {"index", answer},
          {"logprobs", Logprobs(answer, logprobs)},
          {"finish_reason", std::move(finish)}};
}

void CompletionWriter::SendChoice(OrderedJson choice) {
  OrderedJson chunk = Head();
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (context_.includes_usage) chunk["usage"] = nullptr;
  context_.reply->Write(StreamEvent(chunk));
}

void CompletionWriter::Begin() {
  if (!context_.streams) return;
  has_started_ = true;
  StartStream(*context_.reply, ": keep-alive\n\n");
  for (int64_t i = 0; i < int64_t(answers_.size()); ++i) {
    const std::string echo = Echo(i);
    if (!echo.empty()) SendChoice(Choice(i, echo, {}, nullptr));
  }
}

void CompletionWriter::Progress(int64_t done, int64_t total) {
  if (context_.streams) context_.reply->Write(fmt::format(": prompt {}/{}\n\n", done, total));
}

void CompletionWriter::Write(const AnswerPiece& piece) {
  WholeAnswer& whole = answers_[size_t(piece.answer)];
  std::string text;
  for (const AnswerDelta& delta : piece.deltas) text += delta.text;
  if (context_.streams) {
    return SendChoice(Choice(piece.answer, text, piece.logprobs, nullptr));
  }
  whole.answer.content += text;
  whole.logprobs.insert(whole.logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
}

void CompletionWriter::End(int64_t answer, const AnswerEnd& end) {
  answers_[size_t(answer)].end = end;
  if (context_.streams) SendChoice(Choice(answer, "", {}, OpenAiFinish(end.reason)));
}

void CompletionWriter::Done(const TokenUsage& usage) {
  OrderedJson body = Head();
  if (context_.streams) {
    if (context_.includes_usage) {
      body["choices"] = OrderedJson::array();
      body["usage"] = OpenAiUsage(usage);
      context_.reply->Write(StreamEvent(body));
    }
    context_.reply->Write("data: [DONE]\n\n");
    return context_.reply->End();
  }
  OrderedJson& choices = body["choices"] = OrderedJson::array();
  for (size_t i = 0; i < answers_.size(); ++i) {
    const WholeAnswer& whole = answers_[i];
    choices.push_back(Choice(int64_t(i), Echo(int64_t(i)) + whole.answer.content, whole.logprobs,
                             OpenAiFinish(whole.end.reason)));
  }
  body["usage"] = OpenAiUsage(usage);
  SendJson(*context_.reply, 200, body);
}

void CompletionWriter::Fail(const ApiError& error) { FailOpenAi(context_, has_started_, error); }

}  // namespace hillstar
