// The one exception type for what the world or a caller did wrong. Our own bugs use CHECK
// (core/check.h). Any thread may throw; nothing throws inside a step's parallel sections.
#pragma once

#include <stdexcept>
#include <string>

namespace hillstar {

enum class ErrorCode {
  kUsage,        // a flag or an argument is wrong
  kNotFound,     // a file, a folder or a name does not exist
  kBadFile,      // a file's content is damaged or contradicts itself
  kUnsupported,  // well-formed, but nothing that this program serves
  kBadRequest,   // a request asks for what cannot be (too long, malformed)
  kBudget,       // it does not fit the memory, disk or context given
  kIo,           // the operating system refused a read or a write
  kNonFinite,    // a computation left the finite numbers
  kCancelled,    // the caller asked to stop
  kDevice,       // a GPU is missing, too old, or was lost
  kBusy,         // more requests wait already than may
};

// `message` is a sentence with names and numbers and, where there is one, the flag to change.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// 2 for wrong use, 1 for everything else that failed.
int ExitCode(ErrorCode code);
// The stable lower-case name of a code, e.g. "bad_file".
const char* ErrorName(ErrorCode code);

}  // namespace hillstar
