// Any bytes as a saved session, plain or as head and commit whose checksums agree: either an Error,
// or a session whose numbers are in range and that can be saved and read again.
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "hillstar/error.h"
#include "kv/session_file.h"
#include "kv/session_test_disk.h"

namespace {

using namespace hillstar;

constexpr const char* kName = "session";
// More than this of a record is not made up; the rest of a longer one is missing.
constexpr uint64_t kMaxRecordBytes = 32 * kSessionSectorBytes;

SessionIdentity Identity() {
  SessionIdentity identity;
  identity.kv_format = "q15";
  identity.page_bytes = 96;
  identity.page_tokens = 4;
  identity.num_layers = 2;
  return identity;
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  std::string Take(size_t n) {
    n = std::min(n, left_);
    std::string bytes(reinterpret_cast<const char*>(data_), n);
    data_ += n;
    left_ -= n;
    return bytes;
  }
  uint8_t Byte() {
    const std::string byte = Take(1);
    return byte.empty() ? uint8_t{0} : uint8_t(byte[0]);
  }
  bool empty() const { return left_ == 0; }

 private:
  const uint8_t* data_;
  size_t left_;
};

template <typename T>
void Put(std::string* bytes, size_t at, T value) {
  std::memcpy(bytes->data() + at, &value, sizeof(T));
}

uint64_t Checksum(const std::string& bytes, size_t from, size_t n) {
  return XXH3_64bits(bytes.data() + from, n);
}

// A head, or one with some of its bytes changed and its checksum made right.
std::string Head(const SessionHead& head, Input* input) {
  std::string sector = EncodeHead(head);
  for (int changes = input->Byte() % 4; changes > 0; --changes) {
    sector[input->Byte() % 96] = char(input->Byte());
  }
  const size_t end = kSessionSectorBytes - 8;
  Put(&sector, end, Checksum(sector, 0, end));
  return sector;
}

// One copy of a commit at the end of `file`: sizes and content from the input, the rest as it
// should be.
void AppendCommit(const SessionHead& head, Input* input, std::string* file) {
  std::string record(kCommitHeaderBytes, '\0');
  std::memcpy(record.data(), "HSCOMMIT", 8);
  Put(&record, 8, head.file_id);
  Put(&record, 16, uint64_t(file->size()));
  Put(&record, 24, uint64_t{input->Byte()});
  CommitHeader header;
  header.num_tokens = input->Byte();
  header.num_pages = input->Byte() % 80;
  header.meta_bytes = input->Byte();
  if (input->Byte() % 8 == 0) {
    header.num_tokens <<= input->Byte() % 56;
    header.meta_bytes <<= input->Byte() % 56;
  }
  Put(&record, 32, header.num_tokens);
  Put(&record, 40, header.num_pages);
  Put(&record, 48, header.meta_bytes);
  Put(&record, 56, uint64_t{input->Byte() % 3u});
  record += input->Take(input->Byte() * 16);
  record.resize(std::min(header.record_bytes(), kMaxRecordBytes), '\0');
  Put(&record, 64, Checksum(record, kCommitHeaderBytes, record.size() - kCommitHeaderBytes));
  Put(&record, 72, Checksum(record, 0, 72));
  *file += record;
}

std::string MakeFile(Input* input) {
  const SessionHead head = {Identity(), 0x0123456789abcdef};
  std::string file = Head(head, input) + Head(head, input);
  while (!input->empty()) {
    if (input->Byte() % 2) {
      AppendCommit(head, input, &file);
    } else {
      file += input->Take(input->Byte() * 16);
      if (input->Byte() % 4) file.resize(RoundUpToSector(file.size()), '\0');
    }
  }
  return file;
}

void TryOpen(const std::string& file) {
  TestDisk disk;
  disk.Put(kName, file);
  std::optional<SessionFile> opened;
  try {
    opened = SessionFile::OpenAt(disk.Place(kName), Identity());
  } catch (const Error&) {
    return;
  }
  // Nothing that follows may fail.
  SessionFile& session = *opened;
  const int64_t num_tokens = int64_t(session.ids().size());
  CHECK(session.num_leading_rows() <= num_tokens);
  std::vector<uint8_t> page(session.identity().page_bytes);
  for (int64_t i = 0; i * 4 < num_tokens + 8; ++i) {
    CHECK(i * 4 + session.page_rows(i) <= std::max(num_tokens, i * 4));
    const bool is_read = session.ReadPage(i, page);  // which may find it damaged
    CHECK(is_read == (session.page_rows(i) > 0));
  }
  std::vector<int32_t> ids = session.ids();
  const std::string meta = session.meta() + "!";
  ids.push_back(7);
  const auto source = [](int64_t i, std::span<uint8_t> out) {
    std::fill(out.begin(), out.end(), uint8_t(i));
  };
  session.Save(ids, int64_t(ids.size()), meta, source);
  session.CompactIfDue(0);
  SessionFile again = SessionFile::OpenAt(disk.Place(kName), Identity());
  for (int64_t i = 0; i * 4 < int64_t(ids.size()); ++i) CHECK(again.ReadPage(i, page));
  CHECK(again.ids() == ids && again.meta() == meta && again.findings().empty());
  CHECK(again.num_leading_rows() == int64_t(ids.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TryOpen(std::string(reinterpret_cast<const char*>(data), size));
  Input input(data, size);
  TryOpen(MakeFile(&input));
  return 0;
}
