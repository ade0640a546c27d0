// What the commands know of the terminal: whether there is one, dim text, progress on one line, and
// Ctrl-C. Main thread only, except that the flag of an InterruptGuard may be read anywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace hillstar {

bool StandardInputIsTerminal();
bool StandardOutputIsTerminal();
bool StandardErrorIsTerminal();

inline constexpr const char* kDim = "\x1b[2m";
inline constexpr const char* kPlain = "\x1b[0m";

// Of a program that Ctrl-C has ended: 128 and the signal's number, as shells have it.
inline constexpr int kInterruptedExitCode = 130;

// While one lives, Ctrl-C sets its flag instead of ending the program; a second Ctrl-C before the
// flag is cleared ends it. At most one at a time. A program that was started to ignore Ctrl-C, as
// shells start jobs in the background, goes on ignoring it.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  const std::atomic<bool>* flag() const;
  bool interrupted() const { return flag()->load(); }
  void Clear();
};

// One line on standard error that says how far a long operation is and how long it will still take;
// nothing where standard error is no terminal. Disappears when done.
class ProgressLine {
 public:
  // `what` begins the line; bytes are shown in kB, MB or GB, items as they are, a share in percent.
  enum class Unit { kBytes, kItems, kShare };
  ProgressLine(std::string what, Unit unit);
  ~ProgressLine();
  void Update(uint64_t done, uint64_t total);

 private:
  std::string HowFar(uint64_t done, uint64_t total) const;

  std::string what_;
  Unit unit_;
  bool is_shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

// "3.20 GB", "41.00 MB", "512 bytes"; powers of ten.
std::string BytesText(uint64_t bytes);
// "12 s", "3 min 5 s", "2 h 10 min".
std::string DurationText(double seconds);
// "1 thread", "2 threads".
std::string CountText(int64_t count, const char* noun);
// `text` with control characters as \n, \t or \x1b, for names that stand in a table.
std::string EscapeControls(std::string_view text);

}  // namespace hillstar
