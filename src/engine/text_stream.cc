#include "engine/text_stream.h"

#include <algorithm>
#include <string_view>

namespace hillstar {
namespace {

constexpr std::string_view kShownTags[] = {
    "<think>",          "</think>",  "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<arg_key>", "</arg_key>",  "<arg_value>",  "</arg_value>"};

}  // namespace

bool IsShownToken(const Tokenizer& tokenizer, int32_t id) {
  if (id >= tokenizer.vocab_size()) return false;  // what a padded vocabulary has more
  if (!tokenizer.IsSpecial(id)) return true;
  return std::ranges::count(kShownTags, tokenizer.TokenBytes(id)) > 0;
}

std::string TextStream::Push(int32_t id) {
  if (!IsShownToken(tokenizer_, id)) return {};
  return stops_.Push(utf8_.Push(tokenizer_.TokenBytes(id)));
}

std::string TextStream::Finish() {
  std::string text = stops_.Push(utf8_.Finish());
  if (!stops_.matched()) text += stops_.Finish();
  return text;
}

}  // namespace hillstar
