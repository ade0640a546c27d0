#include "tokenizer/marked_text.h"

#include <algorithm>

namespace hillstar {

std::vector<TextRange> MarkedText::MarkedRanges() const {
  std::vector<TextRange> ranges;
  size_t begin = marks_.find('\1');
  while (begin != std::string::npos) {
    const size_t end = std::min(marks_.find('\0', begin), marks_.size());
    ranges.push_back({begin, end});
    begin = marks_.find('\1', end);
  }
  return ranges;
}

}  // namespace hillstar
