// Text that remembers which of its bytes others wrote: messages, tool definitions and tool results.
// What is marked never becomes a control token. A plain value type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text_range.h"

namespace hillstar {

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view text, bool marked) { Append(text, marked); }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  bool IsMarked(size_t pos) const { return marks_[pos] != 0; }
  bool AnyMarked() const { return marks_.find('\1') != std::string::npos; }

  void Append(std::string_view text, bool marked) {
    text_ += text;
    marks_.append(text.size(), marked ? '\1' : '\0');
  }
  void Append(const MarkedText& other) {
    text_ += other.text_;
    marks_ += other.marks_;
  }
  MarkedText Slice(size_t begin, size_t end) const {
    MarkedText out;
    out.text_ = text_.substr(begin, end - begin);
    out.marks_ = marks_.substr(begin, end - begin);
    return out;
  }
  // The marked stretches, ascending.
  std::vector<TextRange> MarkedRanges() const;

 private:
  std::string text_;
  std::string marks_;  // a byte for each of text_: 1 where it is marked
};

}  // namespace hillstar
