#include "engine/generate.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/stopwatch.h"
#include "engine/text_stream.h"

namespace hillstar {
namespace {

constexpr const char* kRoleMarkers[] = {"<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>",
                                        "<|observation|>"};
// Gathers the answer's text and tells it.
class ToldText {
 public:
  ToldText(const Tokenizer& tokenizer, const GenerateRequest& request, GenerateResult& result)
      : request_(request), result_(result), stream_(tokenizer, request.stops) {}

  void Push(int32_t id) { Show(stream_.Push(id)); }
  void Finish() { Show(stream_.Finish()); }
  bool matched() const { return stream_.matched(); }
  const std::string& match() const { return stream_.match(); }

 private:
  void Show(const std::string& text) {
    if (text.empty()) return;
    result_.text += text;
    if (request_.on_text) request_.on_text(text);
  }

  const GenerateRequest& request_;
  GenerateResult& result_;
  TextStream stream_;
};

// An answer as it grows: what ends it is left in `result`.
class Answer {
 public:
  Answer(const GenerateRequest& request, int64_t room, ToldText& text, GenerateResult& result)
      : request_(request), room_(room), text_(text), result_(result) {}

  // Takes the next token; false if the answer has ended with it or before it.
  bool Take(int32_t id) {
    if (std::ranges::count(request_.end_ids, id) > 0) {
      result_.end_id = id;
      return End(FinishReason::kStop);
    }
    result_.ids.push_back(id);
    text_.Push(id);
    if (text_.matched()) return End(FinishReason::kStop);
    if (request_.on_token && !request_.on_token(id)) return End(FinishReason::kCancelled);
    if (int64_t(result_.ids.size()) >= room_) return End(FinishReason::kLength);
    return true;
  }
  bool End(FinishReason reason) {
    result_.finish_reason = reason;
    return false;
  }

 private:
  const GenerateRequest& request_;
  const int64_t room_;
  ToldText& text_;
  GenerateResult& result_;
};

// Draws and appends tokens until something ends the answer. Penalties know all tokens, so the
// logits come here.
void DecodeWithPenalties(Sequence& sequence, std::span<const float> logits,
                         const GenerateRequest& request, Answer& answer, GenerateResult& result) {
  Sampler sampler(request.sampling, request.prompt_ids, int64_t(logits.size()));
  while (true) {
    const int32_t id = sampler.Draw(logits, sequence.num_tokens());
    if (!answer.Take(id)) return;
    sampler.Accept(id);
    logits = sequence.Append(std::span(&id, 1), LogitsMode::kLast, request.cancel);
    ++result.steps;
  }
}

// The same tokens, drawn where the logits are.
void Decode(Sequence& sequence, std::span<const float> logits, const GenerateRequest& request,
            Answer& answer, GenerateResult& result) {
  Sampler sampler(request.sampling, {}, int64_t(logits.size()));
  const int32_t first = sampler.Draw(logits, sequence.num_tokens());
  if (!answer.Take(first)) return;
  const auto take = [&](int32_t id) {
    ++result.steps;
    return answer.Take(id);
  };
  sequence.Decode(first, request.sampling, take, request.cancel);
}

}  // namespace

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "unknown";
}

std::vector<int32_t> ChatEndIds(std::span<const int32_t> eos_ids, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids(eos_ids.begin(), eos_ids.end());
  for (const char* marker : kRoleMarkers) {
    const std::optional<int32_t> id = tokenizer.AddedTokenId(marker);
    if (id && std::ranges::count(ids, *id) == 0) ids.push_back(*id);
  }
  return ids;
}

std::vector<int32_t> RawPromptIds(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = tokenizer.Encode(text, AddedTokens::kParse);
  const auto mask = tokenizer.AddedTokenId("[gMASK]");
  const auto start = tokenizer.AddedTokenId("<sop>");
  if (!mask || !start) return ids;
  const bool has_prefix = ids.size() >= 2 && ids[0] == *mask && ids[1] == *start;
  if (!has_prefix) ids.insert(ids.begin(), {*mask, *start});
  return ids;
}

int64_t RoomForAnswer(int64_t prompt_tokens, int64_t max_tokens, int64_t context_tokens) {
  if (prompt_tokens == 0) throw Error(ErrorCode::kBadRequest, "the prompt is empty");
  if (max_tokens < 1) {
    throw Error(ErrorCode::kBadRequest,
                fmt::format("max-tokens is {}; it has to be 1 or more", max_tokens));
  }
  if (prompt_tokens >= context_tokens) {
    throw Error(ErrorCode::kBadRequest,
                fmt::format("the prompt is too long: it has {} tokens, and a context of {} tokens "
                            "leaves no room for an answer (--context)",
                            prompt_tokens, context_tokens));
  }
  return std::min(max_tokens, context_tokens - prompt_tokens);
}

GenerateResult Generate(Sequence& sequence, const Tokenizer& tokenizer,
                        const GenerateRequest& request) {
  CheckSamplingParams(request.sampling);
  const int64_t room =
      RoomForAnswer(int64_t(request.prompt_ids.size()), request.max_tokens, request.context_tokens);
  GenerateResult result;
  result.prompt_tokens = int64_t(request.prompt_ids.size());
  ToldText text(tokenizer, request, result);
  Stopwatch watch;
  bool is_prefill = true;
  try {
    result.reused_tokens = sequence.AdoptPrefix(request.prompt_ids);
    const auto rest = std::span(request.prompt_ids).subspan(size_t(result.reused_tokens));
    const std::span<const float> logits = sequence.Append(rest, LogitsMode::kLast, request.cancel);
    result.prefill_seconds = watch.seconds();
    if (request.cancel && request.cancel->load()) {
      throw Error(ErrorCode::kCancelled, "cancelled before the first token");
    }
    is_prefill = false;
    watch = Stopwatch();
    Answer answer(request, room, text, result);
    if (HasPenalties(request.sampling)) {
      DecodeWithPenalties(sequence, logits, request, answer, result);
    } else {
      Decode(sequence, logits, request, answer, result);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    result.finish_reason = FinishReason::kCancelled;
  }
  (is_prefill ? result.prefill_seconds : result.decode_seconds) = watch.seconds();
  text.Finish();
  result.stop = text.match();
  if (text.matched()) result.finish_reason = FinishReason::kStop;
  if (result.finish_reason == FinishReason::kLength && room < request.max_tokens) {
    result.notice = fmt::format(
        "the answer was limited to {} tokens instead of {}: the prompt has {} of the context's {}",
        room, request.max_tokens, result.prompt_tokens, request.context_tokens);
  }
  return result;
}

}  // namespace hillstar
