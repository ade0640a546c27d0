#include "tokenizer/utf8.h"

#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

// What may follow a lead byte: the number of bytes after it and the range of the first of them
// (later ones are 0x80..0xBF). The narrow ranges rule out overlong forms, surrogates and codes
// beyond U+10FFFF.
struct Lead {
  uint32_t num_following;
  uint8_t low, high;
};

Lead LeadOf(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  return {0, 0, 0};
}

}  // namespace

Utf8Step ScanUtf8(std::string_view text, size_t pos) {
  const auto first = static_cast<uint8_t>(text[pos]);
  if (first < 0x80) return {Utf8Status::kCharacter, 1, first};
  const Lead lead = LeadOf(first);
  if (lead.num_following == 0) return {Utf8Status::kInvalid, 1, 0};
  uint32_t code = first & (0x3FU >> lead.num_following);
  for (uint32_t i = 1; i <= lead.num_following; ++i) {
    if (pos + i >= text.size()) return {Utf8Status::kUnfinished, i, 0};
    const auto byte = static_cast<uint8_t>(text[pos + i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {Utf8Status::kInvalid, i, 0};
    code = code << 6 | (byte & 0x3FU);
  }
  return {Utf8Status::kCharacter, lead.num_following + 1, code};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Step step = ScanUtf8(text, pos);
    if (step.status != Utf8Status::kCharacter) break;
    pos += step.length;
  }
  return pos;
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  Utf8Stream stream;
  std::string out = stream.Push(text);
  out += stream.Finish();
  return out;
}

std::string Utf8Stream::Push(std::string_view bytes) {
  const std::string text = tail_ + std::string(bytes);
  tail_.clear();
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Step step = ScanUtf8(text, pos);
    if (step.status == Utf8Status::kUnfinished) {
      tail_ = text.substr(pos);
      break;
    }
    if (step.status == Utf8Status::kCharacter) {
      out.append(text, pos, step.length);
    } else {
      out += kReplacementCharacter;
    }
    pos += step.length;
  }
  return out;
}

std::string Utf8Stream::Finish() {
  if (tail_.empty()) return {};
  tail_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace hillstar
