// Reads one answer of /v1/chat/completions as it streams, and says where it is not what OpenAI's
// interface promises. For the load generator; one thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace hillstar {

class ChatStreamCheck {
 public:
  explicit ChatStreamCheck(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // The next bytes of the body. True if a piece of the answer's text was among them.
  bool Push(std::string_view bytes);
  // The body has ended.
  void Finish();

  // The first deviation, as a sentence; "" where there is none.
  const std::string& fault() const { return fault_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t answer_tokens() const { return answer_tokens_; }

 private:
  bool TakeLine(std::string_view line);
  bool TakeData(std::string_view data);
  bool TakeChoice(const nlohmann::json& choice);
  void TakeUsage(const nlohmann::json& usage);
  void Fail(std::string sentence);

  const int64_t max_tokens_;
  std::string rest_;  // of a line that has not ended
  std::string fault_;
  std::string id_;      // of the first chunk
  std::string finish_;  // "" until it came
  bool has_role_ = false, is_done_ = false;
  int64_t prompt_tokens_ = -1, answer_tokens_ = -1;
};

}  // namespace hillstar
