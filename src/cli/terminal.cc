#include "cli/terminal.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "core/check.h"

namespace hillstar {
namespace {

// A signal handler can reach static data only.
std::atomic<bool> g_interrupted{false};
struct sigaction g_previous;
bool g_guard_lives = false;

void OnInterrupt(int) {
  if (g_interrupted.exchange(true)) _exit(kInterruptedExitCode);
}

}  // namespace

bool StandardInputIsTerminal() { return isatty(STDIN_FILENO) == 1; }
bool StandardOutputIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StandardErrorIsTerminal() { return isatty(STDERR_FILENO) == 1; }

InterruptGuard::InterruptGuard() {
  CHECK(!g_guard_lives);
  g_guard_lives = true;
  g_interrupted = false;
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &g_previous);
  if (g_previous.sa_handler == SIG_IGN) sigaction(SIGINT, &g_previous, nullptr);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &g_previous, nullptr);
  g_guard_lives = false;
}

const std::atomic<bool>* InterruptGuard::flag() const { return &g_interrupted; }
void InterruptGuard::Clear() { g_interrupted = false; }

ProgressLine::ProgressLine(std::string what, Unit unit)
    : what_(std::move(what)), unit_(unit), start_(std::chrono::steady_clock::now()) {}

ProgressLine::~ProgressLine() {
  if (is_shown_) std::fputs("\r\x1b[K", stderr);
}

std::string ProgressLine::HowFar(uint64_t done, uint64_t total) const {
  switch (unit_) {
    case Unit::kBytes: return fmt::format("{} of {}", BytesText(done), BytesText(total));
    case Unit::kItems: return fmt::format("{} of {}", done, total);
    case Unit::kShare: return fmt::format("{:.0f} %", 100 * double(done) / double(total));
  }
  return "";
}

void ProgressLine::Update(uint64_t done, uint64_t total) {
  static const bool is_terminal = StandardErrorIsTerminal();
  const auto now = std::chrono::steady_clock::now();
  constexpr std::chrono::milliseconds kPeriod(100);
  if (!is_terminal || total == 0 || (is_shown_ && now - last_ < kPeriod)) return;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::string line = fmt::format("{} {}", what_, HowFar(done, total));
  if (done > 0 && done < total && seconds > 1) {
    line += fmt::format(", {} left", DurationText(seconds * double(total - done) / double(done)));
  }
  std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  std::fflush(stderr);
  is_shown_ = true;
  last_ = now;
}

std::string BytesText(uint64_t bytes) {
  if (bytes >= 1000000000) return fmt::format("{:.2f} GB", double(bytes) / 1e9);
  if (bytes >= 1000000) return fmt::format("{:.2f} MB", double(bytes) / 1e6);
  if (bytes >= 1000) return fmt::format("{:.2f} kB", double(bytes) / 1e3);
  return fmt::format("{} bytes", bytes);
}

std::string DurationText(double seconds) {
  const auto whole = int64_t(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string CountText(int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string EscapeControls(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace hillstar
