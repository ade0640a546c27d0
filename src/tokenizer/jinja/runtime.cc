#include "tokenizer/jinja/runtime.h"

#include <fmt/format.h>

#include "hillstar/error.h"

namespace hillstar::jinja {

void Runtime::Spend(size_t count) {
  if (count > steps_left_) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("The chat template, line {}: it needs more than {} steps.", line, kMaxSteps));
  }
  steps_left_ -= count;
}

void Runtime::Fail(const std::string& what) const {
  throw Error(ErrorCode::kBadRequest, fmt::format("The chat template, line {}: {}.", line, what));
}

}  // namespace hillstar::jinja
