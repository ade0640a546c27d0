// The checksums of a container: XXH3-64 for tensors and images (fast enough to check every read),
// sha256 for side files and identities. Free functions; a stream belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace hillstar {

// XXH3-64 with seed 0.
uint64_t Checksum(const void* data, size_t num_bytes);

// The same over bytes that come in pieces.
class ChecksumStream {
 public:
  ChecksumStream();
  void Reset();
  void Add(const void* data, size_t num_bytes);
  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// 64 lower-case hexadecimal digits.
std::string Sha256Hex(std::string_view data);

// 16 lower-case hexadecimal digits, and back; nothing for any other text.
std::string ChecksumHex(uint64_t checksum);
std::optional<uint64_t> ParseChecksumHex(std::string_view text);

}  // namespace hillstar
