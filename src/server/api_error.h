// What is wrong with a request or an answer, as the two APIs say it. Plain values; any thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "hillstar/error.h"

namespace hillstar {

// Whose shapes an answer has.
enum class ApiStyle { kOpenAi, kAnthropic };

// `what()` is a sentence for people; `param` names the member that is at fault, e.g.
// "messages[2].content".
class ApiError : public std::exception {
 public:
  ApiError(int status, std::string sentence, std::string param = {}, std::string code = {})
      : sentence_(std::move(sentence)),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  const char* what() const noexcept override { return sentence_.c_str(); }
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  std::string sentence_;
  int status_;
  std::string param_, code_;
};

// A request that cannot be served as it stands.
inline ApiError BadRequest(const std::string& sentence, std::string param = {},
                           std::string code = {}) {
  return {400, sentence, std::move(param), std::move(code)};
}

// What the engine or a parser said.
ApiError ApiErrorOf(const Error& error);

// The body of an answer that tells of the error, as JSON.
std::string ErrorBody(ApiStyle style, const ApiError& error, const std::string& request_id);

// Anthropic's for /v1/messages and what lies below, else OpenAI's.
ApiStyle StyleOfPath(std::string_view path);

}  // namespace hillstar
