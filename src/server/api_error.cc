#include "server/api_error.h"

#include <fmt/format.h>

#include "server/api_json.h"

namespace hillstar {
namespace {

struct ErrorType {
  int status;
  const char* open_ai;
  const char* anthropic;
};

// OpenAI's types: platform.openai.com/docs/guides/error-codes; Anthropic's:
// docs.anthropic.com/en/api/errors.
constexpr ErrorType kTypes[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {405, "invalid_request_error", "invalid_request_error"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {500, "server_error", "api_error"},
    {503, "server_error", "overloaded_error"},
};

const ErrorType& TypeOf(int status) {
  const ErrorType* found = status < 500 ? &kTypes[0] : &kTypes[7];
  for (const ErrorType& type : kTypes) {
    if (type.status == status) found = &type;
  }
  return *found;
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

}  // namespace

ApiError ApiErrorOf(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kUsage:
    case ErrorCode::kBadFile:
    case ErrorCode::kUnsupported:
    case ErrorCode::kBadRequest:
    case ErrorCode::kBudget: return {400, error.what()};
    case ErrorCode::kBusy: return {429, error.what(), {}, "queue_full"};
    case ErrorCode::kCancelled: return {503, error.what(), {}, "shutting_down"};
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kNonFinite:
    case ErrorCode::kDevice: break;
  }
  return {500, error.what(), {}, ErrorName(error.code())};
}

std::string ErrorBody(ApiStyle style, const ApiError& error, const std::string& request_id) {
  const ErrorType& type = TypeOf(error.status());
  OrderedJson body;
  if (style == ApiStyle::kAnthropic) {
    const std::string_view sentence = error.what();
    const bool names_it = sentence.starts_with(error.param());
    OrderedJson object{{"type", type.anthropic},
                       {"message", fmt::format("{}{}{}", names_it ? "" : error.param(),
                                               names_it ? "" : ": ", sentence)}};
    if (!error.code().empty()) object["details"] = {{"error_code", error.code()}};
    body = {
        {"type", "error"}, {"error", std::move(object)}, {"request_id", TextOrNull(request_id)}};
  } else {
    body = {{"error",
             {{"message", error.what()},
              {"type", type.open_ai},
              {"param", TextOrNull(error.param())},
              {"code", TextOrNull(error.code())}}}};
  }
  return JsonText(body);
}

ApiStyle StyleOfPath(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/") ? ApiStyle::kAnthropic
                                                                     : ApiStyle::kOpenAi;
}

}  // namespace hillstar
