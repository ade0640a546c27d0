// The alphabet in which byte-level vocabularies are written: each of the 256 bytes as one printable
// character (byte 0x20 is "Ġ", for instance). Pure functions; any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hillstar {

// The character of `byte` as UTF-8.
std::string ByteSymbol(uint8_t byte);

// The bytes that a vocabulary entry stands for; nothing if it has a character outside the alphabet.
std::optional<std::string> BytesOfSymbols(std::string_view symbols);

}  // namespace hillstar
