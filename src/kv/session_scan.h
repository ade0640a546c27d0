// What a session's file holds: its head and its last whole commit. Reads only; a file whose bytes
// change meanwhile gives an older commit or an Error, never wrong content.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/session_records.h"
#include "kv/session_storage.h"

namespace hillstar {

struct SessionScan {
  SessionHead head;
  SessionState state;
  uint64_t commit_number = 0;
  uint64_t end = 0;                // of the commit; what follows it does not count
  bool head_copy_damaged[2] = {};  // one at most
  std::vector<std::string> findings;
};

// Errors: kBadFile if there is no head or no commit, kUnsupported for a newer version, kIo where a
// part of the file that may hold a later commit cannot be read.
SessionScan ScanSession(const SessionStorage& storage, const std::string& name);

// Only the head, see above.
struct FoundHead {
  SessionHead head;
  bool copy_damaged[2] = {};
};
FoundHead ReadSessionHead(const SessionStorage& storage, const std::string& name);

}  // namespace hillstar
