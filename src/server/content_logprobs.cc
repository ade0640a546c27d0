#include "server/content_logprobs.h"

namespace hillstar {

ContentLogprobs::ContentLogprobs(const Tokenizer& tokenizer, bool starts_thinking, bool reads_calls)
    : think_close_(tokenizer.AddedTokenId("</think>").value_or(-1)),
      call_open_(reads_calls ? tokenizer.AddedTokenId("<tool_call>").value_or(-1) : -1),
      call_close_(reads_calls ? tokenizer.AddedTokenId("</tool_call>").value_or(-1) : -1),
      is_thinking_(starts_thinking) {}

void ContentLogprobs::Push(const TokenLogprobs& token) {
  const int32_t id = token.drawn.id;
  if (is_thinking_) {
    is_thinking_ = id != think_close_;
  } else if (is_in_call_) {
    is_in_call_ = id != call_close_;
  } else if (id == call_open_) {
    is_in_call_ = true;
    ++num_calls_;
  } else {
    content_.emplace_back(num_calls_, token);
  }
}

std::vector<TokenLogprobs> ContentLogprobs::Take(int64_t num_calls) {
  std::vector<TokenLogprobs> taken;
  while (!content_.empty() && content_.front().first <= num_calls) {
    if (content_.front().first == num_calls) taken.push_back(std::move(content_.front().second));
    content_.pop_front();
  }
  return taken;
}

}  // namespace hillstar
