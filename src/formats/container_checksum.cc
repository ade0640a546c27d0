#include "formats/container_checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <charconv>
#include <new>

#include "core/check.h"

namespace hillstar {

uint64_t Checksum(const void* data, size_t num_bytes) { return XXH3_64bits(data, num_bytes); }

void ChecksumStream::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

ChecksumStream::ChecksumStream() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  Reset();
}

void ChecksumStream::Reset() { CHECK(XXH3_64bits_reset(state_.get()) == XXH_OK); }

void ChecksumStream::Add(const void* data, size_t num_bytes) {
  CHECK(XXH3_64bits_update(state_.get(), data, num_bytes) == XXH_OK);
}

uint64_t ChecksumStream::value() const { return XXH3_64bits_digest(state_.get()); }

std::string Sha256Hex(std::string_view data) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_Digest(data.data(), data.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string ChecksumHex(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

std::optional<uint64_t> ParseChecksumHex(std::string_view text) {
  constexpr size_t kDigits = 16;
  if (text.size() != kDigits) return std::nullopt;
  for (char c : text) {
    if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return std::nullopt;
  }
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace hillstar
