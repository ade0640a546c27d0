// The bytes of a saved session: the head of its file and its commits. docs/session.md describes
// them. Pure functions over memory; every length is checked before it is believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

// Everything in a file begins at a multiple of this, the unit in which drives write: nothing that
// was acknowledged shares a sector with what is written later.
inline constexpr uint64_t kSessionSectorBytes = 4096;
inline constexpr uint32_t kSessionVersion = 1;
inline constexpr std::string_view kSessionMagic = "HSSESSN\n";  // a file's first bytes
// Two copies of the head, a sector each.
inline constexpr uint64_t kSessionHeadBytes = 2 * kSessionSectorBytes;

// Limits that a reader may rely on.
inline constexpr int64_t kMaxSessionTokens = int64_t{1} << 24;
inline constexpr uint64_t kMaxSessionMetaBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxSessionPageBytes = uint64_t{1} << 30;
inline constexpr uint32_t kMaxSessionPageTokens = 4096;

constexpr uint64_t RoundUpToSector(uint64_t num_bytes) {
  return (num_bytes + kSessionSectorBytes - 1) / kSessionSectorBytes * kSessionSectorBytes;
}

// Whose rows a session holds. Rows of another model or KV format are of no use.
struct SessionIdentity {
  std::array<uint8_t, 32> model{};  // sha256 of the container
  std::string kv_format;            // "q15"; 1 to 15 printable ASCII characters
  uint64_t page_bytes = 0;          // of all layers, 1 to kMaxSessionPageBytes
  uint32_t page_tokens = 0;         // 1 to kMaxSessionPageTokens
  uint32_t num_layers = 0;          // at least 1
  bool selects_keys = false;        // an indexer chooses what a token attends to

  bool operator==(const SessionIdentity&) const = default;
};

// Whether the fields keep to their ranges.
bool IsValid(const SessionIdentity& identity);
// What `saved` has and `wanted` has not, in words: "model 0011aabbccdd instead of ...". Empty for
// equal ones.
std::string DescribeDifference(const SessionIdentity& saved, const SessionIdentity& wanted);

struct SessionHead {
  SessionIdentity identity;
  uint64_t file_id =
      0;  // random, so that a sector of another session's file is never taken for own

  bool operator==(const SessionHead&) const = default;
};

// One sector. REQUIRES IsValid(head.identity).
std::string EncodeHead(const SessionHead& head);
enum class HeadState { kWhole, kDamaged, kNoSession, kNewerVersion };
struct DecodedHead {
  HeadState state = HeadState::kNoSession;
  SessionHead head;      // if kWhole
  uint32_t version = 0;  // if kWhole or kNewerVersion
};
// `sector` may be shorter than a sector: a file that ends early.
DecodedHead DecodeHead(std::string_view sector);

// Where a page lies in the file and what it must contain.
struct SavedPage {
  uint64_t offset = 0;    // a multiple of the sector
  uint64_t checksum = 0;  // XXH3-64 of the page and its padding
  uint32_t rows = 0;      // its leading rows that belong to the session; 0: there is no page

  bool operator==(const SavedPage&) const = default;
};

// A session without the content of its pages. A commit holds all of it.
struct SessionState {
  std::vector<int32_t> ids;
  std::string meta;
  std::vector<SavedPage> pages;  // pages[i]: tokens i * page_tokens ..; at most up to the last id

  bool operator==(const SessionState&) const = default;
};

// Bytes of one of the two copies of a commit, a multiple of the sector.
uint64_t CommitBytes(const SessionState& state);
// Both copies, to be written at `offset`. `number` counts the commits of a file.
std::string EncodeCommit(const SessionState& state, const SessionHead& head, uint64_t number,
                         uint64_t offset);

// The beginning of one copy of a commit.
inline constexpr size_t kCommitHeaderBytes = 80;
struct CommitHeader {
  uint64_t number = 0;
  uint64_t num_tokens = 0;
  uint64_t num_pages = 0;
  uint64_t meta_bytes = 0;
  bool is_second = false;
  uint64_t payload_checksum = 0;

  uint64_t record_bytes() const;
};
// Nothing unless it is the header of a commit of this file at this offset, within the limits.
std::optional<CommitHeader> DecodeCommitHeader(std::string_view bytes, const SessionHead& head,
                                               uint64_t offset);
// `record`: all header.record_bytes() of the copy at `offset`. Nothing if it is damaged.
std::optional<SessionState> DecodeCommit(std::string_view record, const CommitHeader& header,
                                         const SessionHead& head, uint64_t offset);

// Bytes of a page in the file, and their checksum.
inline uint64_t StoredPageBytes(const SessionIdentity& identity) {
  return RoundUpToSector(identity.page_bytes);
}
uint64_t PageChecksum(std::span<const uint8_t> stored);

}  // namespace hillstar
