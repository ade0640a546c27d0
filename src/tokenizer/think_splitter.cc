#include <algorithm>
#include <string_view>

#include "tokenizer/chat_format.h"

namespace hillstar {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

// Bytes at the end of `text` that may be the beginning of `tag`.
size_t HeldBytes(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (tag.starts_with(text.substr(text.size() - length))) return length;
  }
  return 0;
}

}  // namespace

ThinkSplitter::Piece ThinkSplitter::Push(std::string_view text) {
  held_ += text;
  Piece piece;
  std::string_view rest = held_;
  while (true) {
    std::string& out = thinking_ ? piece.reasoning : piece.content;
    const auto take = [&](size_t num_bytes) {
      out += rest.substr(0, num_bytes);
      if (!thinking_ && num_bytes > 0) is_in_line_ = rest[num_bytes - 1] != '\n';
    };
    size_t found = rest.find('<');
    const auto is_at = [&](std::string_view tag) { return rest.substr(found).starts_with(tag); };
    while (found != std::string_view::npos && !is_at(kClose) && (thinking_ || !is_at(kOpen))) {
      found = rest.find('<', found + 1);
    }
    if (found == std::string_view::npos) {
      const size_t held = std::max(HeldBytes(rest, kClose), thinking_ ? 0 : HeldBytes(rest, kOpen));
      take(rest.size() - held);
      held_ = std::string(rest.substr(rest.size() - held));
      return piece;
    }
    take(found);
    const bool opens = !is_at(kClose);
    if (!thinking_ && !opens && is_in_line_) {
      out += '\n';
      is_in_line_ = false;
    }
    thinking_ = opens;
    rest.remove_prefix(found + (thinking_ ? kOpen : kClose).size());
  }
}

ThinkSplitter::Piece ThinkSplitter::Finish() {
  Piece piece;
  (thinking_ ? piece.reasoning : piece.content) = std::move(held_);
  held_.clear();
  return piece;
}

bool EndsThinking(std::string_view rendered_prompt) {
  const size_t last = rendered_prompt.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && rendered_prompt.substr(0, last + 1).ends_with("<think>");
}

}  // namespace hillstar
