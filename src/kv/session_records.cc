#include "kv/session_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "formats/container_checksum.h"

namespace hillstar {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::array<char, 8> kCommitMagic = {'H', 'S', 'C', 'O', 'M', 'M', 'I', 'T'};
constexpr size_t kMaxFormatChars = 15;

// The head up to its padding with zeros; the sector's last 8 bytes are the checksum of the others.
// A later version keeps magic, version and checksum where they are.
struct RawHead {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t page_tokens;
  uint64_t page_bytes;
  uint64_t file_id;
  std::array<uint8_t, 32> model;
  std::array<char, kMaxFormatChars + 1> kv_format;  // ends in zeros
  uint32_t num_layers;
  uint32_t selects_keys;  // 0 or 1
};
static_assert(sizeof(RawHead) == 88);
constexpr size_t kHeadChecksumAt = kSessionSectorBytes - sizeof(uint64_t);

struct RawCommit {
  std::array<char, 8> magic;
  uint64_t file_id;
  uint64_t offset;  // its own
  uint64_t number;
  uint64_t num_tokens;
  uint64_t num_pages;
  uint64_t meta_bytes;
  uint64_t copy;              // 0 or 1
  uint64_t payload_checksum;  // of all that follows the header, padding included
  uint64_t header_checksum;   // of the header before it
};
static_assert(sizeof(RawCommit) == kCommitHeaderBytes);
constexpr size_t kCommitChecksumAt = sizeof(RawCommit) - sizeof(uint64_t);

struct RawPage {
  uint64_t offset;
  uint64_t checksum;
  uint32_t rows;
  uint32_t zero;
};
static_assert(sizeof(RawPage) == 24);

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void Append(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

uint64_t RecordBytes(uint64_t num_tokens, uint64_t num_pages, uint64_t meta_bytes) {
  return RoundUpToSector(sizeof(RawCommit) + num_pages * sizeof(RawPage) +
                         num_tokens * sizeof(int32_t) + meta_bytes);
}

uint64_t MaxPages(const SessionIdentity& identity, uint64_t num_tokens) {
  return (num_tokens + identity.page_tokens - 1) / identity.page_tokens;
}

std::string ShortHex(const std::array<uint8_t, 32>& digest) {
  constexpr size_t kShownBytes = 6;
  std::string hex;
  for (size_t i = 0; i < kShownBytes; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace

bool IsValid(const SessionIdentity& identity) {
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };
  return !identity.kv_format.empty() && identity.kv_format.size() <= kMaxFormatChars &&
         std::all_of(identity.kv_format.begin(), identity.kv_format.end(), printable) &&
         identity.page_bytes >= 1 && identity.page_bytes <= kMaxSessionPageBytes &&
         identity.page_tokens >= 1 && identity.page_tokens <= kMaxSessionPageTokens &&
         identity.num_layers >= 1;
}

std::string DescribeDifference(const SessionIdentity& saved, const SessionIdentity& wanted) {
  std::string text;
  const auto compare = [&text](std::string_view what, const auto& theirs, const auto& ours) {
    if (theirs == ours) return;
    text += fmt::format("{}{} {} instead of {}", text.empty() ? "" : " and ", what, theirs, ours);
  };
  if (saved.model != wanted.model) {
    compare("model", ShortHex(saved.model), ShortHex(wanted.model));
    if (text.empty()) text = fmt::format("another model {}", ShortHex(saved.model));
  }
  compare("KV format", saved.kv_format, wanted.kv_format);
  const auto attention = [](bool selects) { return selects ? "by the indexer" : "to everything"; };
  compare("attention", attention(saved.selects_keys), attention(wanted.selects_keys));
  compare("number of layers", saved.num_layers, wanted.num_layers);
  compare("tokens a page", saved.page_tokens, wanted.page_tokens);
  // Else they follow from the format.
  if (text.empty()) compare("bytes a page", saved.page_bytes, wanted.page_bytes);
  return text;
}

std::string EncodeHead(const SessionHead& head) {
  const SessionIdentity& identity = head.identity;
  CHECK(IsValid(identity));
  RawHead raw{};
  std::copy(kSessionMagic.begin(), kSessionMagic.end(), raw.magic.begin());
  raw.version = kSessionVersion;
  raw.page_tokens = identity.page_tokens;
  raw.page_bytes = identity.page_bytes;
  raw.file_id = head.file_id;
  raw.model = identity.model;
  std::copy(identity.kv_format.begin(), identity.kv_format.end(), raw.kv_format.begin());
  raw.num_layers = identity.num_layers;
  raw.selects_keys = identity.selects_keys;
  std::string sector;
  Append(&sector, raw);
  sector.resize(kHeadChecksumAt, '\0');
  Append(&sector, Checksum(sector.data(), sector.size()));
  return sector;
}

DecodedHead DecodeHead(std::string_view sector) {
  DecodedHead decoded;
  if (!sector.starts_with(kSessionMagic)) return decoded;
  decoded.state = HeadState::kDamaged;
  if (sector.size() != kSessionSectorBytes ||
      Load<uint64_t>(sector.data() + kHeadChecksumAt) != Checksum(sector.data(), kHeadChecksumAt)) {
    return decoded;
  }
  const RawHead raw = Load<RawHead>(sector.data());
  decoded.version = raw.version;
  if (raw.version > kSessionVersion) {
    decoded.state = HeadState::kNewerVersion;
    return decoded;
  }
  SessionIdentity& identity = decoded.head.identity;
  identity.model = raw.model;
  const std::string_view format(raw.kv_format.data(), raw.kv_format.size());
  identity.kv_format = format.substr(0, format.find('\0'));
  identity.page_bytes = raw.page_bytes;
  identity.page_tokens = raw.page_tokens;
  identity.num_layers = raw.num_layers;
  identity.selects_keys = raw.selects_keys != 0;
  decoded.head.file_id = raw.file_id;
  // Only what EncodeHead would have written is a head.
  if (IsValid(identity) && EncodeHead(decoded.head) == sector) decoded.state = HeadState::kWhole;
  return decoded;
}

uint64_t CommitBytes(const SessionState& state) {
  return RecordBytes(state.ids.size(), state.pages.size(), state.meta.size());
}

std::string EncodeCommit(const SessionState& state, const SessionHead& head, uint64_t number,
                         uint64_t offset) {
  CHECK(state.ids.size() <= uint64_t(kMaxSessionTokens));
  CHECK(state.meta.size() <= kMaxSessionMetaBytes);
  CHECK(state.pages.size() <= MaxPages(head.identity, state.ids.size()));
  const size_t record_bytes = CommitBytes(state);
  std::string both;
  both.reserve(2 * record_bytes);
  both.resize(sizeof(RawCommit));
  for (const SavedPage& page : state.pages) {
    Append(&both, RawPage{page.offset, page.checksum, page.rows, 0});
  }
  both.append(reinterpret_cast<const char*>(state.ids.data()), state.ids.size() * sizeof(int32_t));
  both += state.meta;
  both.resize(record_bytes, '\0');
  RawCommit raw{};
  raw.magic = kCommitMagic;
  raw.file_id = head.file_id;
  raw.number = number;
  raw.num_tokens = state.ids.size();
  raw.num_pages = state.pages.size();
  raw.meta_bytes = state.meta.size();
  raw.payload_checksum =
      Checksum(both.data() + sizeof(RawCommit), record_bytes - sizeof(RawCommit));
  both.append(both, 0, record_bytes);
  for (raw.copy = 0; raw.copy < 2; ++raw.copy) {
    raw.offset = offset + raw.copy * record_bytes;
    raw.header_checksum = Checksum(&raw, kCommitChecksumAt);
    std::memcpy(both.data() + raw.copy * record_bytes, &raw, sizeof(raw));
  }
  return both;
}

uint64_t CommitHeader::record_bytes() const {
  return RecordBytes(num_tokens, num_pages, meta_bytes);
}

std::optional<CommitHeader> DecodeCommitHeader(std::string_view bytes, const SessionHead& head,
                                               uint64_t offset) {
  if (bytes.size() < sizeof(RawCommit)) return std::nullopt;
  const RawCommit raw = Load<RawCommit>(bytes.data());
  if (raw.magic != kCommitMagic || raw.file_id != head.file_id || raw.offset != offset ||
      raw.header_checksum != Checksum(bytes.data(), kCommitChecksumAt)) {
    return std::nullopt;
  }
  if (raw.num_tokens > uint64_t(kMaxSessionTokens) || raw.meta_bytes > kMaxSessionMetaBytes ||
      raw.num_pages > MaxPages(head.identity, raw.num_tokens) || raw.copy > 1) {
    return std::nullopt;
  }
  return CommitHeader{raw.number,     raw.num_tokens, raw.num_pages,
                      raw.meta_bytes, raw.copy == 1,  raw.payload_checksum};
}

namespace {

// Nothing if it reaches past its own tokens or past the commit that names it.
std::optional<SavedPage> DecodePage(const RawPage& raw, const SessionIdentity& identity,
                                    uint64_t num_tokens, uint64_t commit_offset) {
  if (raw.rows == 0) return SavedPage{};
  const uint64_t stored_bytes = StoredPageBytes(identity);
  if (raw.zero != 0 || raw.rows > num_tokens || raw.offset % kSessionSectorBytes != 0 ||
      raw.offset < kSessionHeadBytes || raw.offset > commit_offset ||
      commit_offset - raw.offset < stored_bytes) {
    return std::nullopt;
  }
  return SavedPage{raw.offset, raw.checksum, raw.rows};
}

}  // namespace

std::optional<SessionState> DecodeCommit(std::string_view record, const CommitHeader& header,
                                         const SessionHead& head, uint64_t offset) {
  CHECK(record.size() == header.record_bytes());
  const char* at = record.data() + sizeof(RawCommit);
  if (Checksum(at, record.size() - sizeof(RawCommit)) != header.payload_checksum) {
    return std::nullopt;
  }
  SessionState state;
  const uint64_t page_tokens = head.identity.page_tokens;
  for (uint64_t i = 0; i < header.num_pages; ++i, at += sizeof(RawPage)) {
    const uint64_t num_tokens = std::min(page_tokens, header.num_tokens - i * page_tokens);
    const auto page = DecodePage(Load<RawPage>(at), head.identity, num_tokens, offset);
    if (!page) return std::nullopt;
    state.pages.push_back(*page);
  }
  state.ids.resize(header.num_tokens);
  if (!state.ids.empty()) std::memcpy(state.ids.data(), at, state.ids.size() * sizeof(int32_t));
  state.meta.assign(at + state.ids.size() * sizeof(int32_t), header.meta_bytes);
  return state;
}

uint64_t PageChecksum(std::span<const uint8_t> stored) {
  return Checksum(stored.data(), stored.size());
}

}  // namespace hillstar
