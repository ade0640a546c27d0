#include "kv/session_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <optional>
#include <thread>

#include "formats/safetensors_test_files.h"
#include "kv/session_test_disk.h"
#include "kv/session_test_files.h"

namespace hillstar {
namespace {

using Pages = std::vector<int64_t>;

constexpr const char* kName = "chat.session";

TestTurn MakeTurn(std::vector<int32_t> ids, int64_t num_rows, std::string meta) {
  return {std::move(ids), num_rows, std::move(meta)};
}

SessionFile OpenedUnread(TestDisk* disk) {
  return SessionFile::OpenAt(disk->Place(kName), TestIdentity());
}

// With everything found that is damaged.
SessionFile Opened(TestDisk* disk) {
  SessionFile session = OpenedUnread(disk);
  ReadAllPages(&session);
  return session;
}

SessionFile Created(TestDisk* disk) {
  return SessionFile::CreateAt(disk->Place(kName), TestIdentity());
}

// A file of three turns and the size that it had after each.
struct SmallSession {
  std::vector<TestTurn> turns = {
      MakeTurn({5, 6, 7, 8, 9, 10}, 5, "first"),
      MakeTurn({5, 6, 7, 8, 9, 10, 11, 12, 13}, 9, "second, longer" + std::string(5000, '-')),
      MakeTurn({5, 6, 7, 8, 9, 20, 21}, 7,
               "third, after a step back, and in two sectors" + std::string(5000, '.')),
  };
  std::vector<size_t> ends;
  std::string bytes;

  SmallSession() {
    TestDisk disk;
    SessionFile session = Created(&disk);
    for (const TestTurn& turn : turns) {
      SaveTurn(&session, turn);
      bytes = *disk.Content(kName);
      ends.push_back(bytes.size());
    }
  }
};

// Where the last commit says that a page lies.
uint64_t PageOffset(TestDisk* disk, size_t page) {
  const auto storage = disk->Place(kName)->OpenToRead();
  return ScanSession(*storage, kName).state.pages[page].offset;
}

TEST(SessionFile, WhatIsSavedIsReadAgain) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    TestDisk disk;
    std::optional<SessionFile> session = Created(&disk);
    EXPECT_TRUE(session->ids().empty());
    EXPECT_EQ(session->num_leading_rows(), 0);
    for (const TestTurn& turn : MakeTurns(seed, 20)) {
      SaveTurn(&*session, turn);
      EXPECT_TRUE(Holds(&*session, turn));
      session.reset();
      session = Opened(&disk);
      EXPECT_TRUE(Holds(&*session, turn));
      EXPECT_TRUE(session->findings().empty());
    }
  }
}

TEST(SessionFile, AnEmptySessionIsOne) {
  TestDisk disk;
  {
    SessionFile session = Created(&disk);
    EXPECT_FALSE(disk.Exists(kName));
    SaveTurn(&session, {});
  }
  SessionFile session = Opened(&disk);
  EXPECT_TRUE(Holds(&session, {}));
  EXPECT_EQ(session.page_rows(0), 0);
}

TEST(SessionFile, OnlyWhatTheFileLacksIsWritten) {
  TestDisk disk;
  SessionFile session = Created(&disk);
  const auto asked_by = [&session](const TestTurn& turn) {
    Pages asked;
    SaveTurn(&session, turn, &asked);
    EXPECT_TRUE(Holds(&session, turn));
    return asked;
  };
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 3, 4, 5, 6}, 5, "a")), (Pages{0, 1}));
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 3, 4, 5, 6}, 6, "a")), (Pages{1}));
  const size_t size = disk.Content(kName)->size();
  const int64_t operations = disk.num_operations();
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 3, 4, 5, 6}, 6, "a")), (Pages{}));
  EXPECT_EQ(disk.Content(kName)->size(), size);
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 3, 4, 5, 6}, 6, "b")), (Pages{}));
  EXPECT_GT(disk.Content(kName)->size(), size);
  EXPECT_GT(disk.num_operations(), operations);
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 3, 4, 5, 6, 7, 8, 9}, 9, "b")), (Pages{1, 2}));
  // The ids of pages 1 and 2 are as before, but their rows follow from an id of page 0 too.
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 9, 4, 5, 6, 7, 8, 9}, 9, "b")), (Pages{0, 1, 2}));
  // A step back costs nothing, and what was cut off must be written again.
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 9, 4, 5, 6}, 6, "b")), (Pages{}));
  EXPECT_EQ(session.page_rows(1), 2);
  EXPECT_EQ(session.page_rows(2), 0);
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 9, 4, 5, 6, 7}, 7, "b")), (Pages{1}));
  // Rows that a sequence has not got (yet) stay.
  EXPECT_EQ(asked_by(MakeTurn({1, 2, 9, 4, 5, 6, 7}, 1, "b")), (Pages{}));
  EXPECT_EQ(session.num_leading_rows(), 7);
}

TEST(SessionFile, EveryPrefixOpensAsTheLastWholeCommit) {
  const SmallSession small;
  for (size_t length = 0; length < small.bytes.size(); ++length) {
    TestDisk disk;
    disk.Put(kName, small.bytes.substr(0, length));
    // One of the two copies of a commit is enough.
    const auto commit_bytes = [&small](size_t turn) {
      SessionState state;
      state.ids = small.turns[turn].ids;
      state.meta = small.turns[turn].meta;
      return CommitBytes(state);
    };
    int last = -1;
    for (size_t turn = 0; turn < small.turns.size(); ++turn) {
      if (small.ends[turn] - commit_bytes(turn) <= length) last = int(turn);
    }
    if (last < 0) {
      ExpectError(ErrorCode::kBadFile, {kName}, [&disk] { Opened(&disk); });
      continue;
    }
    SessionFile session = OpenedUnread(&disk);  // Holds reads the pages
    ASSERT_TRUE(Holds(&session, small.turns[size_t(last)])) << length;
    ASSERT_EQ(session.findings().empty(), length == small.ends[size_t(last)]) << length;
    if (length % 97 != 0) continue;
    SaveTurn(&session, small.turns[2]);
    SessionFile again = Opened(&disk);
    ASSERT_TRUE(Holds(&again, small.turns[2]));
    ASSERT_TRUE(again.findings().empty());
  }
}

// Which bytes a session needs: the head, the last commit and the pages that it names.
std::vector<bool> NeededBytes(const SmallSession& small) {
  TestDisk disk;
  disk.Put(kName, small.bytes);
  const auto storage = disk.Place(kName)->OpenToRead();
  const SessionScan scan = ScanSession(*storage, kName);
  std::vector<bool> needed(small.bytes.size());
  const auto need = [&needed](uint64_t offset, uint64_t num_bytes) {
    std::fill_n(needed.begin() + ptrdiff_t(offset), num_bytes, true);
  };
  need(0, kSessionHeadBytes);
  for (const SavedPage& page : scan.state.pages) need(page.offset, kSessionSectorBytes);
  const uint64_t commit_bytes = 2 * CommitBytes(scan.state);
  need(scan.end - commit_bytes, commit_bytes);
  return needed;
}

// Every byte that the session needs, and some of the others.
TEST(SessionFile, AFlippedBitIsFoundAndHarmless) {
  const SmallSession small;
  const std::vector<bool> needed = NeededBytes(small);
  std::mt19937_64 random(1);
  for (size_t at = 0; at < small.bytes.size(); at += needed[at] ? 1 : 16) {
    TestDisk disk;
    std::string bytes = small.bytes;
    bytes[at] = char(bytes[at] ^ (1 << random() % 8));
    disk.Put(kName, bytes);
    SessionFile session = OpenedUnread(&disk);
    ASSERT_EQ(session.ids(), small.turns[2].ids) << at;
    ASSERT_EQ(session.meta(), small.turns[2].meta) << at;
    ASSERT_TRUE(RowsAreRight(&session)) << at;
    ASSERT_EQ(session.findings().size(), needed[at] ? 1u : 0u) << at;
    if (!needed[at]) {
      ASSERT_TRUE(Holds(&session, small.turns[2])) << at;
    }
    if (at % 89 != 0) continue;
    // Saving again heals it.
    SaveTurn(&session, small.turns[2]);
    SessionFile again = Opened(&disk);
    ASSERT_TRUE(Holds(&again, small.turns[2])) << at;
    ASSERT_TRUE(again.findings().empty()) << at << ": " << again.findings()[0];
  }
}

TEST(SessionFile, ManyDamagedBytesNeverGiveWrongOnes) {
  const SmallSession small;
  std::mt19937_64 random(2);
  int opened = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    TestDisk disk;
    std::string bytes = small.bytes;
    const size_t num_damaged = 1 + random() % 8;
    for (size_t i = 0; i < num_damaged; ++i) {
      const size_t at = random() % bytes.size() / 512 * 512;
      // A sector of zeros, of noise, or another one of the same file.
      const size_t from = random() % bytes.size() / 512 * 512;
      for (size_t b = 0, kind = random() % 3; b < 512; ++b) {
        bytes[at + b] = kind == 0 ? '\0' : kind == 1 ? char(random()) : small.bytes[from + b];
      }
    }
    disk.Put(kName, bytes);
    try {
      SessionFile session = Opened(&disk);
      const bool known =
          std::any_of(small.turns.begin(), small.turns.end(), [&session](const TestTurn& turn) {
            return session.ids() == turn.ids && session.meta() == turn.meta;
          });
      ASSERT_TRUE(known) << round;
      ASSERT_TRUE(RowsAreRight(&session)) << round;
      ++opened;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kBadFile) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 10);
}

TEST(SessionFile, ADamagedPageIsNamedWithItsTokensAndWrittenAgain) {
  const SmallSession small;
  TestDisk disk;
  disk.Put(kName, small.bytes);
  const uint64_t offset = PageOffset(&disk, 0);
  (*disk.Content(kName))[offset + 3] ^= 1;
  disk.Put(kName, *disk.Content(kName));
  {
    SessionFile session = OpenedUnread(&disk);
    EXPECT_TRUE(session.findings().empty());
    EXPECT_EQ(session.page_rows(0), 4);
    std::vector<uint8_t> page(session.identity().page_bytes);
    EXPECT_FALSE(session.ReadPage(0, page));
    ASSERT_EQ(session.findings().size(), 1u);
    EXPECT_EQ(session.findings()[0],
              "page 0 of chat.session is damaged: tokens 0 to 3 will be computed again");
    EXPECT_EQ(session.page_rows(0), 0);
    EXPECT_TRUE(session.ReadPage(1, page));
  }
  SessionFile session = Opened(&disk);
  ASSERT_EQ(session.findings().size(), 1u);
  EXPECT_EQ(session.num_leading_rows(), 0);
  EXPECT_EQ(session.page_rows(1), 3);
  Pages asked;
  SaveTurn(&session, small.turns[2], &asked);
  EXPECT_EQ(asked, (Pages{0}));
  SessionFile again = Opened(&disk);
  EXPECT_TRUE(again.findings().empty());
  EXPECT_TRUE(Holds(&again, small.turns[2]));
}

TEST(SessionFile, AnUnreadablePageIsLikeADamagedOne) {
  const SmallSession small;
  TestDisk disk;
  disk.Put(kName, small.bytes);
  const uint64_t offset = PageOffset(&disk, 1);
  disk.SetUnreadable(offset, offset + 1);
  SessionFile session = Opened(&disk);
  ASSERT_EQ(session.findings().size(), 1u);
  EXPECT_NE(session.findings()[0].find("page 1 of chat.session cannot be read"), std::string::npos);
  EXPECT_NE(session.findings()[0].find("tokens 4 to 6"), std::string::npos);
  EXPECT_EQ(session.num_leading_rows(), 4);
  EXPECT_TRUE(RowsAreRight(&session));
}

// An unreadable place must not make an older commit the last one: the next Save would write over
// what may be readable again tomorrow.
TEST(SessionFile, AnUnreadableEndIsNotTakenForAbsent) {
  const SmallSession small;
  const uint64_t copy_bytes = 2 * kSessionSectorBytes, end = small.bytes.size();
  for (uint64_t at = 0; at < end; at += 512) {
    TestDisk disk;
    disk.Put(kName, small.bytes);
    disk.SetUnreadable(at, at + 512);
    SessionFile session = Opened(&disk);
    EXPECT_EQ(session.ids(), small.turns[2].ids) << at;
    EXPECT_TRUE(RowsAreRight(&session)) << at;
  }
  for (uint64_t from : {end - 2 * copy_bytes, end - copy_bytes - 1, uint64_t{0}}) {
    TestDisk disk;
    disk.Put(kName, small.bytes);
    disk.SetUnreadable(from, end);
    ExpectError(ErrorCode::kIo, {kName, "Input/output error"}, [&disk] { Opened(&disk); });
    EXPECT_EQ(*disk.Content(kName), small.bytes);
  }
}

TEST(SessionFile, ASessionOfAnotherIdentityIsRefusedAndItsTokensCanBeRead) {
  const SmallSession small;
  struct Case {
    std::function<void(SessionIdentity*)> change;
    const char* words;
  };
  const Case cases[] = {
      {[](SessionIdentity* i) { i->model[0] = 0xaa; },
       "model 010203040506 instead of aa0203040506"},
      {[](SessionIdentity* i) { i->model[31] = 0xaa; }, "another model 010203040506"},
      {[](SessionIdentity* i) { i->kv_format = "fp8"; }, "KV format q15 instead of fp8"},
      {[](SessionIdentity* i) { i->page_bytes = 5000; }, "bytes a page 96 instead of 5000"},
      {[](SessionIdentity* i) { i->page_tokens = 64; }, "tokens a page 4 instead of 64"},
      {[](SessionIdentity* i) { i->num_layers = 79; }, "number of layers 3 instead of 79"},
  };
  for (const Case& c : cases) {
    TestDisk disk;
    disk.Put(kName, small.bytes);
    SessionIdentity other = TestIdentity();
    c.change(&other);
    ExpectError(ErrorCode::kUnsupported, {kName, c.words, "computed again"},
                [&] { SessionFile::OpenAt(disk.Place(kName), other); });
    EXPECT_EQ(*disk.Content(kName), small.bytes);
    const auto place = disk.Place(kName);
    const SessionContent content = ReadSessionAt(place.get());
    EXPECT_EQ(content.identity, TestIdentity());
    EXPECT_EQ(content.ids, small.turns[2].ids);
    EXPECT_EQ(content.meta, small.turns[2].meta);
    EXPECT_TRUE(content.findings.empty());
    // Its successor takes its place when it is saved.
    SessionFile session = SessionFile::CreateAt(disk.Place(kName), other);
    EXPECT_EQ(*disk.Content(kName), small.bytes);
    SaveTurn(&session, small.turns[2]);
    SessionFile again = SessionFile::OpenAt(disk.Place(kName), other);
    EXPECT_TRUE(Holds(&again, small.turns[2]));
  }
}

// Sectors of another file, or of another place of the same file, may turn up where a drive lost a
// write.
TEST(SessionFile, ACommitCountsInItsOwnPlaceOnly) {
  const SmallSession small, other;
  const size_t first_begin = small.ends[0] - 2 * kSessionSectorBytes;
  const std::string first_commit = small.bytes.substr(first_begin, 2 * kSessionSectorBytes);
  TestDisk disk;
  disk.Put(kName, small.bytes + first_commit);
  {
    SessionFile session = Opened(&disk);
    EXPECT_TRUE(Holds(&session, small.turns[2]));
    EXPECT_EQ(session.findings().size(), 1u);
  }
  // The same turns, so the offsets are right and only the file is another one.
  ASSERT_EQ(small.ends, other.ends);
  disk.Put(kName, small.bytes.substr(0, small.ends[1]) + other.bytes.substr(small.ends[1]));
  SessionFile session = Opened(&disk);
  EXPECT_TRUE(Holds(&session, small.turns[1]));
  EXPECT_EQ(session.findings().size(), 1u);
}

TEST(SessionFile, OtherFilesAndVersionsAreRefused) {
  const SmallSession small;
  TestDisk disk;
  ExpectError(ErrorCode::kNotFound, {kName}, [&disk] { Opened(&disk); });
  disk.Put(kName, "");
  ExpectError(ErrorCode::kBadFile, {"is not a saved session"}, [&disk] { Opened(&disk); });
  disk.Put(kName, std::string(20000, 'x'));
  ExpectError(ErrorCode::kBadFile, {"is not a saved session"}, [&disk] { Opened(&disk); });
  disk.Put(kName, small.bytes.substr(0, kSessionHeadBytes));
  ExpectError(ErrorCode::kBadFile, {"no whole commit"}, [&disk] { Opened(&disk); });
  std::string damaged = small.bytes;
  damaged[100] ^= 1;
  damaged[kSessionSectorBytes + 1000] ^= 1;
  disk.Put(kName, damaged);
  ExpectError(ErrorCode::kBadFile, {"both copies of the head", kName}, [&disk] { Opened(&disk); });
}

TEST(SessionFile, ANewerVersionIsNamed) {
  SmallSession small;
  for (size_t copy = 0; copy < 2; ++copy) {
    std::string sector = small.bytes.substr(copy * kSessionSectorBytes, kSessionSectorBytes);
    sector[8] = 7;
    const uint64_t checksum =
        PageChecksum({reinterpret_cast<const uint8_t*>(sector.data()), kSessionSectorBytes - 8});
    std::memcpy(sector.data() + kSessionSectorBytes - 8, &checksum, 8);
    small.bytes.replace(copy * kSessionSectorBytes, kSessionSectorBytes, sector);
  }
  TestDisk disk;
  disk.Put(kName, small.bytes);
  ExpectError(ErrorCode::kUnsupported, {kName, "version 7", "up to version 1"},
              [&disk] { Opened(&disk); });
}

TEST(SessionFile, WhatASourceThrowsLeavesWhatWasSaved) {
  const SmallSession small;
  TestDisk disk;
  disk.Put(kName, small.bytes);
  SessionFile session = Opened(&disk);
  TestTurn longer = small.turns[2];
  longer.ids.resize(20, 3);
  longer.num_rows = 20;
  EXPECT_THROW(session.Save(longer.ids, longer.num_rows, longer.meta,
                            [](int64_t, std::span<uint8_t>) { throw std::runtime_error("gone"); }),
               std::runtime_error);
  EXPECT_TRUE(Holds(&session, small.turns[2]));
  EXPECT_EQ(*disk.Content(kName), small.bytes);
  SaveTurn(&session, longer);
  SessionFile again = Opened(&disk);
  EXPECT_TRUE(Holds(&again, longer));
}

TEST(SessionFile, TooMuchIsRefused) {
  TestDisk disk;
  SessionFile session = Created(&disk);
  const std::string meta(kMaxSessionMetaBytes + 1, 'x');
  const auto no_page = [](int64_t, std::span<uint8_t>) { FAIL(); };
  ExpectError(ErrorCode::kBadRequest, {kName, "67108865"},
              [&] { session.Save({}, 0, meta, no_page); });
  const std::vector<int32_t> ids(kMaxSessionTokens + 1);
  ExpectError(ErrorCode::kBadRequest, {kName, "16777217"},
              [&] { session.Save(ids, 0, "", no_page); });
  EXPECT_FALSE(disk.Exists(kName));
}

TEST(SessionFile, CompactionDropsGarbageAndNothingElse) {
  TestDisk disk;
  SessionFile session = Created(&disk);
  EXPECT_FALSE(session.CompactIfDue(0));
  TestTurn turn;
  int compactions = 0;
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    turn = NextTurn(turn, &random);
    SaveTurn(&session, turn);
    const size_t before = disk.Content(kName)->size();
    const uint64_t garbage = session.garbage_bytes();
    EXPECT_FALSE(session.CompactIfDue(garbage + 1));
    if (session.CompactIfDue(0)) {
      ++compactions;
      EXPECT_EQ(session.garbage_bytes(), 0u);
      EXPECT_EQ(disk.Content(kName)->size(), before - garbage);
      EXPECT_GT(2 * garbage, before);
    } else {
      EXPECT_EQ(disk.Content(kName)->size(), before);
      EXPECT_LE(2 * garbage, before + 1);
    }
    ASSERT_TRUE(Holds(&session, turn));
    EXPECT_FALSE(disk.Exists(std::string(kName) + ".partial"));
    SessionFile again = Opened(&disk);
    ASSERT_TRUE(Holds(&again, turn));
    ASSERT_TRUE(again.findings().empty());
  }
  EXPECT_GT(compactions, 10);
}

TEST(SessionFile, ACompactionLeavesOutWhatIsDamagedAndStopsAtWhatCannotBeRead) {
  const SmallSession small;
  TestDisk disk;
  disk.Put(kName, small.bytes);
  SessionFile session = Opened(&disk);
  const uint64_t offset = PageOffset(&disk, 1);
  disk.SetUnreadable(offset, offset + 1);
  ExpectError(ErrorCode::kIo, {kName}, [&session] { session.CompactIfDue(0); });
  EXPECT_EQ(*disk.Content(kName), small.bytes);
  EXPECT_FALSE(disk.Exists(std::string(kName) + ".partial"));
  disk.SetUnreadable(0, 0);
  EXPECT_TRUE(Holds(&session, small.turns[2]));
  (*disk.Content(kName))[offset] ^= 1;
  EXPECT_TRUE(session.CompactIfDue(0));
  EXPECT_EQ(session.findings().size(), 1u);
  EXPECT_EQ(session.page_rows(1), 0);
  SessionFile again = Opened(&disk);
  EXPECT_TRUE(again.findings().empty());
  EXPECT_EQ(again.ids(), small.turns[2].ids);
  EXPECT_EQ(again.num_leading_rows(), 4);
  EXPECT_TRUE(RowsAreRight(&again));
}

// ---- On a real disk.

TEST(SessionOnDisk, SavedOpenedCompactedAndReadByOthers) {
  const TempFolder folder;
  const auto path = folder.path() / kName;
  const SmallSession small;
  {
    SessionFile session = SessionFile::Create(path, TestIdentity());
    EXPECT_FALSE(std::filesystem::exists(path));
    for (const TestTurn& turn : small.turns) SaveTurn(&session, turn);
    EXPECT_EQ(ReadSession(path).ids, small.turns[2].ids);
    EXPECT_EQ(std::filesystem::file_size(path), small.bytes.size());
    EXPECT_EQ(std::filesystem::status(path).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    EXPECT_TRUE(session.CompactIfDue(0));
    EXPECT_TRUE(Holds(&session, small.turns[2]));
  }
  EXPECT_LT(std::filesystem::file_size(path), small.bytes.size());
  folder.Write(std::string(kName) + ".partial", "HSSESSN\nleft by a crash");
  {
    SessionFile session = SessionFile::Open(path, TestIdentity());
    EXPECT_TRUE(Holds(&session, small.turns[2]));
    EXPECT_TRUE(session.findings().empty());
    SaveTurn(&session, small.turns[0]);
  }
  SessionFile session = SessionFile::Open(path, TestIdentity());
  EXPECT_TRUE(Holds(&session, small.turns[0]));
  // The session, its lock and nothing else.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
  const auto other = folder.path() / "other";
  ExpectError(ErrorCode::kNotFound, {"other"}, [&] { SessionFile::Open(other, TestIdentity()); });
  ExpectError(ErrorCode::kNotFound, {"other"}, [&] { ReadSession(other); });
  ExpectError(ErrorCode::kBadFile, {"not a regular file"},
              [&] { SessionFile::Open(folder.path(), TestIdentity()); });
}

TEST(SessionOnDisk, ASessionHasOneOwner) {
  const TempFolder folder;
  const auto path = folder.path() / kName;
  const SmallSession small;
  const auto expect_taken = [&path] {
    ExpectError(ErrorCode::kIo, {kName, "in use"},
                [&path] { SessionFile::Create(path, TestIdentity()); });
    if (!std::filesystem::exists(path)) return;
    ExpectError(ErrorCode::kIo, {kName, "in use"},
                [&path] { SessionFile::Open(path, TestIdentity()); });
  };
  {
    SessionFile session = SessionFile::Create(path, TestIdentity());
    expect_taken();
    for (const TestTurn& turn : small.turns) SaveTurn(&session, turn);
    expect_taken();
    EXPECT_TRUE(session.CompactIfDue(0));  // the file is another one now
    expect_taken();
    SessionFile moved = std::move(session);
    expect_taken();
    SaveTurn(&moved, small.turns[0]);
  }
  SessionIdentity other = TestIdentity();
  other.kv_format = "fp8";
  ExpectError(ErrorCode::kUnsupported, {}, [&] { SessionFile::Open(path, other); });
  SessionFile session = SessionFile::Open(path, TestIdentity());
  expect_taken();
  EXPECT_TRUE(Holds(&session, small.turns[0]));
}

TEST(SessionOnDisk, ASecondNameOfAFileIsNoSecondOwner) {
  const TempFolder folder;
  const auto path = folder.path() / kName, other_name = folder.path() / "other name";
  SessionFile session = SessionFile::Create(path, TestIdentity());
  const SmallSession small;
  SaveTurn(&session, small.turns[0]);
  const auto expect_taken = [&] {
    std::filesystem::create_hard_link(path, other_name);
    ExpectError(ErrorCode::kIo, {"other name", "in use"},
                [&] { SessionFile::Open(other_name, TestIdentity()); });
    ExpectError(ErrorCode::kIo, {"other name", "in use"},
                [&] { SessionFile::OpenOrCreate(other_name, TestIdentity()); });
    std::filesystem::remove(other_name);
  };
  expect_taken();
  session.Compact();
  expect_taken();
}

// What has the name of a lock or of an unfinished session and is none stays as it is.
TEST(SessionOnDisk, OtherPeoplesFilesStay) {
  const TempFolder folder;
  const SmallSession small;
  const auto path = folder.path() / kName;
  const auto lock = path.native() + ".lock", partial = path.native() + ".partial";
  const auto text_of = [](const std::string& file) { return ReadWholeFile(file, 1000); };
  folder.Write(std::string(kName) + ".lock", "name = \"precious\"");
  ExpectError(ErrorCode::kIo, {".lock is in the way", "not empty"},
              [&] { SessionFile::Create(path, TestIdentity()); });
  EXPECT_EQ(text_of(lock), "name = \"precious\"");
  std::filesystem::remove(lock);
  for (const std::string text : {"precious", "short"}) {
    folder.Write(std::string(kName) + ".partial", text);
    {
      SessionFile session = SessionFile::Create(path, TestIdentity());
      ExpectError(ErrorCode::kIo, {".partial is in the way"},
                  [&] { SaveTurn(&session, small.turns[0]); });
    }
    EXPECT_EQ(text_of(partial), text);
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  for (const std::string& text : {std::string(), std::string(5000, '\0')}) {
    folder.Write(std::string(kName) + ".partial", text);  // a crash may leave these
    { const SessionFile session = SessionFile::Create(path, TestIdentity()); }
    EXPECT_FALSE(std::filesystem::exists(partial));
  }
  // Sessions of such names are sessions.
  const auto named_lock = folder.path() / (std::string(kName) + ".lock");
  {
    SessionFile session = SessionFile::Create(named_lock, TestIdentity());
    SaveTurn(&session, small.turns[0]);
  }
  EXPECT_THROW(SessionFile::Create(path, TestIdentity()), Error);
  EXPECT_EQ(ReadSession(named_lock).ids, small.turns[0].ids);
}

TEST(SessionOnDisk, AFileThatIsGoneIsWrittenAnew) {
  const TempFolder folder;
  const SmallSession small;
  const auto path = folder.path() / kName, moved = folder.path() / "moved";
  SessionFile session = SessionFile::Create(path, TestIdentity());
  SaveTurn(&session, small.turns[0]);
  std::filesystem::rename(path, moved);
  SaveTurn(&session, small.turns[1]);
  EXPECT_EQ(ReadSession(moved).ids, small.turns[0].ids);
  EXPECT_EQ(ReadSession(path).ids, small.turns[1].ids);
  EXPECT_TRUE(Holds(&session, small.turns[1]));
  ASSERT_EQ(session.findings().size(), 1u);
  EXPECT_NE(session.findings()[0].find("was removed and is written anew"), std::string::npos);
  // Another file in its place is somebody's.
  std::filesystem::rename(moved, path);
  ExpectError(ErrorCode::kIo, {kName, "is another file"},
              [&] { SaveTurn(&session, small.turns[2]); });
  EXPECT_EQ(ReadSession(path).ids, small.turns[0].ids);
}

TEST(SessionOnDisk, OpenOrCreateGoesOnWithWhatThereIs) {
  const TempFolder folder;
  const SmallSession small;
  const auto path = folder.path() / kName;
  {
    SessionFile session = SessionFile::OpenOrCreate(path, TestIdentity());
    EXPECT_TRUE(session.ids().empty() && session.findings().empty());
    EXPECT_FALSE(std::filesystem::exists(path));
    SaveTurn(&session, small.turns[1]);
  }
  {
    SessionFile session = SessionFile::OpenOrCreate(path, TestIdentity());
    EXPECT_TRUE(Holds(&session, small.turns[1]));
  }
  SessionIdentity other = TestIdentity();
  other.selects_keys = !other.selects_keys;
  {
    SessionFile session = SessionFile::OpenOrCreate(path, other);
    EXPECT_EQ(session.ids(), small.turns[1].ids);
    EXPECT_EQ(session.num_leading_rows(), 0);
    ASSERT_EQ(session.findings().size(), 1u);
    EXPECT_NE(session.findings()[0].find("attention to everything instead of by the indexer"),
              std::string::npos)
        << session.findings()[0];
    EXPECT_THROW(SessionFile::OpenOrCreate(path, TestIdentity()), Error);  // it has the lock
  }
  {
    SessionFile session = SessionFile::OpenOrCreate(path, TestIdentity());  // nothing was changed
    EXPECT_TRUE(Holds(&session, small.turns[1]));
  }
  SessionFile session = SessionFile::OpenOrCreate(path, other);
  SaveTurn(&session, small.turns[2]);
  EXPECT_TRUE(Holds(&session, small.turns[2]));
  EXPECT_THROW(SessionFile::Open(path, TestIdentity()), Error);
}

TEST(SessionOnDisk, ALinkToNothingIsFollowed) {
  const TempFolder folder;
  const SmallSession small;
  const auto link = folder.path() / kName;
  std::filesystem::create_symlink("real", link);
  SessionFile session = SessionFile::Create(link, TestIdentity());
  SaveTurn(&session, small.turns[0]);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadSession(folder.path() / "real").ids, small.turns[0].ids);
}

// What cannot be looked at may be a session: a new one must not take its place.
TEST(SessionOnDisk, OnlyWhatIsAbsentIsBegun) {
  const TempFolder folder;
  const auto path = folder.path() / kName;
  std::filesystem::create_symlink(kName, path);  // leads to itself
  ExpectError(ErrorCode::kIo, {kName},
              [&path] { SessionFile::OpenOrCreate(path, TestIdentity()); });
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  // The lock is gone with the failure.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// Programs of two identities add a letter each time they get hold of the session; what each finds
// there is what the one before it saved.
TEST(SessionOnDisk, NothingIsLostBetweenLookingAndLocking) {
  const TempFolder folder;
  const auto path = folder.path() / kName;
  constexpr int kThreads = 4, kSaves = 50;
  const auto add = [&path](int thread) {
    SessionIdentity identity = TestIdentity();
    identity.num_layers = uint32_t(1 + thread % 2);
    for (int saved = 0; saved < kSaves;) {
      try {
        SessionFile session = SessionFile::OpenOrCreate(path, identity);
        session.Save({}, 0, session.meta() + "x", [](int64_t, std::span<uint8_t>) {});
        ++saved;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kIo) << error.what();  // in use
      }
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(add, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ReadSession(path).meta.size(), size_t(kThreads * kSaves));
}

// The system's own short writes and errors.
TEST(SessionOnDisk, AFileThatMayNotGrowCanBeSavedLater) {
  const TempFolder folder;
  const auto path = folder.path() / kName;
  const SmallSession small;
  SessionFile session = SessionFile::Create(path, TestIdentity());
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  int num_errors = 0;
  for (rlim_t limit = 1000; limit < small.bytes.size() + 3000; limit += 3000) {
    const rlimit limited = {limit, unlimited.rlim_max};
    for (size_t turn = 0; turn < small.turns.size(); ++turn) {
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
      try {
        SaveTurn(&session, small.turns[turn]);
      } catch (const Error& error) {
        ++num_errors;
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_NE(std::string(error.what()).find("File too large"), std::string::npos)
            << error.what();
      }
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &unlimited), 0);
      SaveTurn(&session, small.turns[turn]);
      ASSERT_TRUE(Holds(&session, small.turns[turn]));
      const SessionContent content = ReadSession(path);
      ASSERT_EQ(content.ids, small.turns[turn].ids);
      ASSERT_TRUE(content.findings.empty());
    }
  }
  EXPECT_GT(num_errors, 10);
}

TEST(SessionOnDisk, ALinkStaysALink) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() / "elsewhere");
  const auto target = folder.path() / "elsewhere" / "real", link = folder.path() / kName;
  const SmallSession small;
  {
    SessionFile session = SessionFile::Create(target, TestIdentity());
    SaveTurn(&session, small.turns[0]);
  }
  std::filesystem::create_symlink("elsewhere/real", link);
  SessionFile session = SessionFile::Open(link, TestIdentity());
  ExpectError(ErrorCode::kIo, {"in use"}, [&] { SessionFile::Open(target, TestIdentity()); });
  for (const TestTurn& turn : small.turns) SaveTurn(&session, turn);
  EXPECT_TRUE(session.CompactIfDue(0));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(ReadSession(target).ids, small.turns[2].ids);
}

}  // namespace
}  // namespace hillstar
