// kill -9 at random moments: a child process, this program once more, saves turn after turn and
// tells each one that Save has acknowledged; its parent kills it, opens the file, compares every
// bit, and lets the next child go on. --kills=N sets how often, --seed=N when: as in a run before.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <random>
#include <thread>

#include "formats/safetensors_test_files.h"
#include "kv/session_file.h"
#include "kv/session_test_files.h"

extern char** environ;

namespace hillstar {
namespace {

int num_kills = 12;
uint64_t seed = std::random_device{}();
constexpr std::string_view kKillsFlag = "--kills=", kSeedFlag = "--seed=", kChildFlag = "--child=";

// Pages of 128 KiB take long enough to be cut off in the middle.
SessionIdentity CrashIdentity() { return TestIdentity(64, 2048); }

// Turn `number` follows from the ids of the turn before it, so that every process knows it.
TestTurn TurnAfter(const TestTurn& before, uint64_t number) {
  std::mt19937_64 random(number * 7919);
  TestTurn turn = NextTurn(before, &random, 300);
  turn.meta = fmt::format("{} {}", number, turn.meta);
  return turn;
}

uint64_t NumberOf(const std::string& meta) {
  uint64_t number = 0;
  std::from_chars(meta.data(), meta.data() + meta.size(), number);
  return number;
}

SessionFile OpenOrCreate(const std::filesystem::path& path) {
  if (std::filesystem::exists(path)) return SessionFile::Open(path, CrashIdentity());
  return SessionFile::Create(path, CrashIdentity());
}

// Writes the number of every turn that is saved to standard output, forever.
[[noreturn]] void RunChild(const std::filesystem::path& path) {
  SessionFile session = OpenOrCreate(path);
  TestTurn turn = {session.ids(), 0, session.meta()};
  for (uint64_t number = NumberOf(session.meta());; ++number) {
    if (::write(STDOUT_FILENO, &number, sizeof(number)) != sizeof(number)) std::_Exit(1);
    turn = TurnAfter(turn, number + 1);
    SaveTurn(&session, turn);
    session.CompactIfDue(uint64_t{1} << 20);
  }
}

class Child {
 public:
  explicit Child(const std::filesystem::path& path) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, pipe[0]);
    posix_spawn_file_actions_addclose(&actions, pipe[1]);
    std::string program = std::filesystem::read_symlink("/proc/self/exe").native();
    std::string flag = std::string(kChildFlag) + path.native();
    char* arguments[] = {program.data(), flag.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    out_ = pipe[0];
  }
  ~Child() { ::close(out_); }

  // The next number that it wrote; false once it is dead and nothing is left.
  bool ReadNumber(uint64_t* number) const {
    return ::read(out_, number, sizeof(*number)) == ssize_t(sizeof(*number));
  }
  // Whether it was alive until then.
  bool Kill() const {
    ::kill(pid_, SIGKILL);
    int status = 0;
    return ::waitpid(pid_, &status, 0) == pid_ && WIFSIGNALED(status) &&
           WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

struct Tally {
  int cut_off = 0;          // the file had an unfinished end
  int partial = 0;          // there was an unfinished successor of the file
  int unacknowledged = 0;   // a turn was saved, but its number not told any more
  int before_anything = 0;  // the child had not opened the file yet
};

TEST(SessionCrash, AKilledProcessLosesNothingThatItAcknowledged) {
  const TempFolder folder;
  const auto path = folder.path() / "chat.session";
  std::mt19937_64 random(seed);
  fmt::print("--seed={}\n", seed);
  const auto below = [&random](uint64_t n) { return random() % n; };
  TestTurn turn;  // the one in the file
  uint64_t number = 0;
  Tally tally;
  for (int kill = 0; kill < num_kills; ++kill) {
    uint64_t acknowledged = number;
    {
      const Child child(path);
      const bool at_start = below(8) == 0;
      if (!at_start) {
        ASSERT_TRUE(child.ReadNumber(&acknowledged));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(below(at_start ? 8000 : 30000)));
      ASSERT_TRUE(child.Kill()) << "the child ended by itself";
      tally.before_anything += at_start && !child.ReadNumber(&acknowledged);
      while (child.ReadNumber(&acknowledged)) {
      }
    }
    ASSERT_GE(acknowledged, number);
    if (acknowledged == 0 && !std::filesystem::exists(path)) continue;
    tally.partial += std::filesystem::exists(path.native() + ".partial");
    SessionFile session = SessionFile::Open(path, CrashIdentity());
    const uint64_t found = NumberOf(session.meta());
    ASSERT_TRUE(found == acknowledged || found == acknowledged + 1)
        << "turn " << found << " in the file, " << acknowledged << " acknowledged";
    while (number < found) turn = TurnAfter(turn, ++number);
    ASSERT_TRUE(Holds(&session, turn)) << "turn " << number;
    for (const std::string& finding : session.findings()) {
      ASSERT_EQ(finding.find("page "), std::string::npos) << finding;
    }
    tally.cut_off += !session.findings().empty();
    tally.unacknowledged += found > acknowledged;
  }
  fmt::print(
      "{} kills over {} turns: {} left an unfinished end, {} an unfinished new file, {} a turn "
      "that was not told any more; {} came before the file was opened\n",
      num_kills, number, tally.cut_off, tally.partial, tally.unacknowledged, tally.before_anything);
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) {
  using namespace hillstar;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kChildFlag)) RunChild(argument.substr(kChildFlag.size()));
    if (argument.starts_with(kKillsFlag)) num_kills = std::atoi(argv[i] + kKillsFlag.size());
    if (argument.starts_with(kSeedFlag))
      seed = std::strtoull(argv[i] + kSeedFlag.size(), nullptr, 10);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
