// Turns an answer's tokens into text that may be shown: whole UTF-8 characters, no control tokens,
// nothing from a stop string on. One per answer, one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/stop_strings.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {

class TextStream {
 public:
  // `tokenizer` outlives the object. Errors: kBadRequest for an empty stop string.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), stops_(std::move(stops)) {}

  // Text that is certain to be shown now.
  std::string Push(int32_t id);
  // What was held back; nothing after a stop string.
  std::string Finish();

  bool matched() const { return stops_.matched(); }
  const std::string& match() const { return stops_.match(); }

 private:
  const Tokenizer& tokenizer_;
  Utf8Stream utf8_;
  StopStrings stops_;
};

// True if the token may be shown: it has text and is no control token, or it is one of the tags
// that later stages read (<think>, <tool_call> and their kin), which some tokenizers mark as
// special.
bool IsShownToken(const Tokenizer& tokenizer, int32_t id);

}  // namespace hillstar
