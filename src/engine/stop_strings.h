// Finds stop strings in text that arrives in pieces, and holds back what may become one. The text
// that comes out does not depend on how the input was cut. One thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

class StopStrings {
 public:
  // Empty strings are refused: kBadRequest.
  explicit StopStrings(std::vector<std::string> stops);

  // Text that is certain to be shown. The stop string that ends first in the text counts, of
  // several that end at the same byte the longest; nothing is shown from its start on.
  std::string Push(std::string_view text);
  // What was held back and did not become a stop string; empty after a match.
  std::string Finish();

  bool matched() const { return matched_; }
  const std::string& match() const { return match_; }

 private:
  // Length of the longest end of held_ that begins a stop string without completing it.
  size_t OpenLength() const;

  std::vector<std::string> stops_;  // longest first
  std::string held_;
  bool matched_ = false;
  std::string match_;
};

}  // namespace hillstar
