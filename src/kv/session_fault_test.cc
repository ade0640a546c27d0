// A failing disk and a cut of the power at every single operation: nothing acknowledged is lost, no
// row is wrong, and the session can go on.
#include <gtest/gtest.h>

#include <optional>

#include "formats/safetensors_test_files.h"
#include "kv/session_file.h"
#include "kv/session_test_disk.h"
#include "kv/session_test_files.h"

namespace hillstar {
namespace {

constexpr const char* kName = "chat.session";

SessionFile Opened(TestDisk* disk) {
  SessionFile session = SessionFile::OpenAt(disk->Place(kName), TestIdentity());
  ReadAllPages(&session);
  return session;
}

// What a run of turns has reached. `acknowledged` counts the turns whose Save returned; the one
// after them may be in the file too once its Save was called.
struct Progress {
  size_t acknowledged = 0;
  size_t begun = 0;
};

// Saves the turns from the first one that is not acknowledged on, compacting wherever that makes
// sense. Every Error is followed by `recover` and another try.
template <typename Recover>
void RunTurns(std::optional<SessionFile>* session, const std::vector<TestTurn>& turns,
              Progress* progress, const Recover& recover) {
  int errors_left = 1000;
  while (progress->acknowledged < turns.size()) {
    try {
      progress->begun = progress->acknowledged + 1;
      SaveTurn(&**session, turns[progress->acknowledged]);
      ++progress->acknowledged;
      (*session)->CompactIfDue(0);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
      ASSERT_GT(--errors_left, 0);
      recover();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

std::optional<SessionFile> CreateOn(TestDisk* disk) {
  return SessionFile::CreateAt(disk->Place(kName), TestIdentity());
}

// The file has all of the acknowledged turn or all of the one after it. Returns which: the number
// of turns in it, nothing if it holds neither.
std::optional<size_t> TurnsIn(SessionFile* session, const std::vector<TestTurn>& turns,
                              const Progress& progress) {
  for (size_t n : {progress.begun, progress.acknowledged}) {
    if (n > 0 && Holds(session, turns[n - 1])) return n;
  }
  return std::nullopt;
}

// Opens what the disk has of the session, or begins a new one where none was acknowledged.
void Reopen(TestDisk* disk, const std::vector<TestTurn>& turns, int64_t at,
            std::optional<SessionFile>* session, Progress* progress) {
  if (progress->acknowledged == 0 && !disk->Exists(kName)) {
    *session = CreateOn(disk);
    return;
  }
  session->emplace(Opened(disk));
  const auto found = TurnsIn(&**session, turns, *progress);
  ASSERT_TRUE(found.has_value()) << at << ": " << (*session)->ids().size() << " tokens";
  progress->acknowledged = *found;
}

int64_t CountOperations(const std::vector<TestTurn>& turns) {
  TestDisk disk;
  disk.FailAt(-1, Fault::kNone);
  auto session = CreateOn(&disk);
  Progress progress;
  RunTurns(&session, turns, &progress, [] { FAIL(); });
  return disk.num_operations();
}

struct FaultCase {
  Fault fault;
  int64_t count;  // of operations that fail one after another
};

class SessionFault : public testing::TestWithParam<FaultCase> {};

TEST_P(SessionFault, AtEveryOperationLosesNothingAndIsSurvived) {
  const std::vector<TestTurn> turns = MakeTurns(11, 12);
  const int64_t num_operations = CountOperations(turns);
  ASSERT_GT(num_operations, 100);
  int num_errors = 0;
  for (int64_t at = 0; at < num_operations; ++at) {
    TestDisk disk(uint64_t(at) + 1);
    disk.FailAt(at, GetParam().fault, GetParam().count);
    auto session = CreateOn(&disk);
    Progress progress;
    RunTurns(&session, turns, &progress, [&] {
      ++num_errors;
      ASSERT_LT(num_errors, 5 * num_operations);
    });
    ASSERT_TRUE(disk.fault_happened());
    disk.FailAt(-1, Fault::kNone);
    ASSERT_TRUE(Holds(&*session, turns.back())) << at;
    // The disk has it, and not only the memory.
    disk.RestartAfterPowerCut();
    SessionFile again = Opened(&disk);
    ASSERT_TRUE(Holds(&again, turns.back())) << at;
    ASSERT_TRUE(again.findings().empty()) << at << ": " << again.findings()[0];
  }
  if (GetParam().fault == Fault::kShort) {
    EXPECT_EQ(num_errors, 0);
  } else {
    EXPECT_GT(num_errors, num_operations / 2);
  }
}

TEST_P(SessionFault, FollowedByACutOfThePowerLosesNothing) {
  const std::vector<TestTurn> turns = MakeTurns(12, 10);
  const int64_t num_operations = CountOperations(turns);
  for (int64_t at = 0; at < num_operations; ++at) {
    TestDisk disk(uint64_t(at) + 1);
    disk.FailAt(at, GetParam().fault, GetParam().count);
    auto session = CreateOn(&disk);
    Progress progress;
    const auto cut = [&] {
      disk.RestartAfterPowerCut();
      Reopen(&disk, turns, at, &session, &progress);
    };
    RunTurns(&session, turns, &progress, cut);
    ASSERT_TRUE(Holds(&*session, turns.back())) << at;
  }
}

TEST_P(SessionFault, FollowedByASaveAndACutOfThePowerLosesNothing) {
  const std::vector<TestTurn> turns = MakeTurns(12, 10);
  const int64_t num_operations = CountOperations(turns);
  for (int64_t at = 0; at < num_operations; ++at) {
    TestDisk disk(uint64_t(at) + 1);
    disk.FailAt(at, GetParam().fault, GetParam().count);
    auto session = CreateOn(&disk);
    // What the first Save after the fault acknowledges must be safe.
    size_t acknowledged = 0;
    bool has_failed = false, is_done = false;
    while (!is_done) {
      try {
        SaveTurn(&*session, turns[acknowledged]);
        ++acknowledged;
        is_done = has_failed || acknowledged == turns.size();
        if (!is_done) session->CompactIfDue(0);
      } catch (const Error&) {
        has_failed = true;
        disk.FailAt(-1, Fault::kNone);
        // The same turn once more, which may be in memory already.
        if (acknowledged > 0) --acknowledged;
      }
    }
    disk.RestartAfterPowerCut();
    SessionFile again = Opened(&disk);
    ASSERT_TRUE(Holds(&again, turns[acknowledged - 1])) << at;
  }
}

// The process is killed after the fault and another one takes over, without a loss of power: it may
// not build on what only the page cache holds.
TEST_P(SessionFault, FollowedByANewProcessAndACutLosesNothing) {
  const std::vector<TestTurn> turns = MakeTurns(13, 10);
  const int64_t num_operations = CountOperations(turns);
  for (int64_t at = 0; at < num_operations; ++at) {
    TestDisk disk(uint64_t(at) + 1);
    // What the killed process would have done after the fault fails, too.
    disk.FailAt(at, GetParam().fault, GetParam().fault == Fault::kShort ? 1 : 4);
    auto session = CreateOn(&disk);
    Progress progress;
    const auto reopen = [&] {
      disk.FailAt(-1, Fault::kNone);
      Reopen(&disk, turns, at, &session, &progress);
    };
    RunTurns(&session, turns, &progress, reopen);
    disk.RestartAfterPowerCut();
    SessionFile again = Opened(&disk);
    ASSERT_TRUE(Holds(&again, turns.back())) << at;
  }
}

TEST_P(SessionFault, ANewProcessAcknowledgesNothingThatIsInMemoryOnly) {
  const std::vector<TestTurn> turns = MakeTurns(15, 10);
  const int64_t num_operations = CountOperations(turns);
  int num_reopened = 0;
  for (int64_t at = 0; at < num_operations; ++at) {
    TestDisk disk(uint64_t(at) + 1);
    disk.FailAt(at, GetParam().fault, 4);
    auto session = CreateOn(&disk);
    Progress progress;
    const auto reopen = [&] {
      disk.FailAt(-1, Fault::kNone);
      if (progress.acknowledged == 0 && !disk.Exists(kName)) {
        session = CreateOn(&disk);
        return;
      }
      ++num_reopened;
      session.emplace(Opened(&disk));
      const auto found = TurnsIn(&*session, turns, progress);
      ASSERT_TRUE(found.has_value()) << at;
      SaveTurn(&*session, turns[*found - 1]);
      disk.RestartAfterPowerCut();
      session.emplace(Opened(&disk));
      ASSERT_TRUE(Holds(&*session, turns[*found - 1])) << at;
      progress.acknowledged = *found;
    };
    RunTurns(&session, turns, &progress, reopen);
  }
  if (GetParam().fault != Fault::kShort) {
    EXPECT_GT(num_reopened, num_operations / 2);
  }
}

TEST_P(SessionFault, WhileOpeningLosesNothing) {
  const std::vector<TestTurn> turns = MakeTurns(14, 6);
  std::string bytes;
  {
    TestDisk disk;
    auto session = CreateOn(&disk);
    for (const TestTurn& turn : turns) SaveTurn(&*session, turn);
    bytes = *disk.Content(kName) + std::string(5000, 'x');  // with something to cut off
  }
  const auto count = [&] {
    TestDisk disk;
    disk.Put(kName, bytes);
    SessionFile session = Opened(&disk);
    SaveTurn(&session, turns.back());
    return disk.num_operations();
  };
  const int64_t num_operations = count();
  ASSERT_GT(num_operations, 12);
  for (int64_t at = 0; at < num_operations; ++at) {
    TestDisk disk(uint64_t(at) + 1);
    disk.Put(kName, bytes);
    disk.FailAt(at, GetParam().fault, GetParam().count);
    try {
      SessionFile session = Opened(&disk);
      ASSERT_EQ(session.ids(), turns.back().ids) << at;
      ASSERT_EQ(session.meta(), turns.back().meta) << at;
      ASSERT_TRUE(RowsAreRight(&session));
      SaveTurn(&session, turns.back());
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();
    }
    ASSERT_TRUE(disk.fault_happened());
    disk.RestartAfterPowerCut();
    SessionFile session = Opened(&disk);
    ASSERT_TRUE(Holds(&session, turns.back())) << at;
  }
}

std::string CaseName(const testing::TestParamInfo<FaultCase>& info) {
  const Fault fault = info.param.fault;
  return std::string(fault == Fault::kShort     ? "Short"
                     : fault == Fault::kNoSpace ? "NoSpace"
                                                : "Io") +
         std::to_string(info.param.count);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SessionFault,
                         testing::Values(FaultCase{Fault::kShort, 1}, FaultCase{Fault::kShort, 5},
                                         FaultCase{Fault::kNoSpace, 1},
                                         FaultCase{Fault::kNoSpace, 3}, FaultCase{Fault::kIo, 1},
                                         FaultCase{Fault::kIo, 2}, FaultCase{Fault::kIo, 3}),
                         CaseName);

// Runs the turns, cutting the power at the operations `next_cut` names, counted from the start of
// each life, until all are saved. Checks each life against what was acknowledged before it.
template <typename NextCut>
void RunWithCuts(const std::vector<TestTurn>& turns, TestDisk* disk, const NextCut& next_cut) {
  Progress progress;
  std::optional<SessionFile> session;
  while (true) {
    try {
      disk->FailAt(next_cut(), Fault::kPowerCut);
      if (progress.acknowledged == 0 && !disk->Exists(kName)) {
        session = CreateOn(disk);
      } else {
        session.emplace(Opened(disk));
        const auto found = TurnsIn(&*session, turns, progress);
        ASSERT_TRUE(found.has_value()) << session->ids().size() << " tokens";
        progress.acknowledged = *found;
      }
      RunTurns(&session, turns, &progress, [] { FAIL(); });
      break;
    } catch (const PowerCut&) {
      disk->RestartAfterPowerCut();
    }
  }
  disk->RestartAfterPowerCut();
  SessionFile again = Opened(disk);
  ASSERT_TRUE(Holds(&again, turns.back()));
  ASSERT_TRUE(again.findings().empty());
}

TEST(SessionPowerCut, AtEveryOperationLosesNothing) {
  const std::vector<TestTurn> turns = MakeTurns(21, 10);
  const int64_t num_operations = CountOperations(turns);
  for (int64_t at = 0; at < num_operations; ++at) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      TestDisk disk(seed * 1000 + uint64_t(at));
      int64_t cut = at;
      RunWithCuts(turns, &disk, [&cut] { return std::exchange(cut, -1); });
      if (HasFatalFailure()) FAIL() << "operation " << at << ", seed " << seed;
    }
  }
}

TEST(SessionPowerCut, AgainAndAgainLosesNothing) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const std::vector<TestTurn> turns = MakeTurns(seed, 30);
    TestDisk disk(seed);
    std::mt19937_64 random(seed);
    int left = 60;
    RunWithCuts(turns, &disk, [&] { return left-- > 0 ? int64_t(random() % 60) : -1; });
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(SessionFullDisk, SavesFailUntilThereIsRoomAgain) {
  const std::vector<TestTurn> turns = MakeTurns(31, 40);
  TestDisk disk;
  auto session = CreateOn(&disk);
  uint64_t capacity = 10000;
  disk.set_capacity(capacity);
  int num_errors = 0;
  Progress progress;
  RunTurns(&session, turns, &progress, [&] {
    ++num_errors;
    if (progress.acknowledged > 0) {
      SessionFile seen = Opened(&disk);
      ASSERT_TRUE(Holds(&seen, turns[progress.acknowledged - 1]));
      ASSERT_TRUE(seen.findings().empty());  // what was cut short is gone at once
    }
    if (num_errors % 3 == 0) disk.set_capacity(capacity += 8192);
  });
  EXPECT_GT(num_errors, 10);
  SessionFile again = Opened(&disk);
  EXPECT_TRUE(Holds(&again, turns.back()));
}

}  // namespace
}  // namespace hillstar
