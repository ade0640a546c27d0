#include "tokenizer/byte_alphabet.h"

#include <array>

#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

// Printable Latin-1 characters stand for themselves; the other 68 bytes get the characters from
// U+0100 on, in ascending order.
bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr uint32_t kFirstSubstitute = 0x100;
constexpr uint32_t kNumSubstitutes = 68;
constexpr int16_t kNoByte = -1;

struct Alphabet {
  std::array<uint32_t, 256> code_of_byte{};
  std::array<int16_t, kFirstSubstitute + kNumSubstitutes> byte_of_code{};

  Alphabet() {
    byte_of_code.fill(kNoByte);
    uint32_t next = kFirstSubstitute;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t code = StandsForItself(byte) ? byte : next++;
      code_of_byte[byte] = code;
      byte_of_code[code] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

std::string ByteSymbol(uint8_t byte) {
  std::string out;
  AppendUtf8(TheAlphabet().code_of_byte[byte], &out);
  return out;
}

std::optional<std::string> BytesOfSymbols(std::string_view symbols) {
  const auto& byte_of_code = TheAlphabet().byte_of_code;
  std::string bytes;
  bytes.reserve(symbols.size());
  for (size_t pos = 0; pos < symbols.size();) {
    const Utf8Step step = ScanUtf8(symbols, pos);
    if (step.status != Utf8Status::kCharacter || step.code >= byte_of_code.size()) return {};
    const int16_t byte = byte_of_code[step.code];
    if (byte == kNoByte) return {};
    bytes.push_back(static_cast<char>(byte));
    pos += step.length;
  }
  return bytes;
}

}  // namespace hillstar
