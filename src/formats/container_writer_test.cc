#include "formats/container_writer.h"

#include <gtest/gtest.h>

#include "core/version.h"
#include "formats/container_test_files.h"

namespace hillstar {
namespace {

class ContainerWriterTest : public testing::Test {
 protected:
  ContainerWriterTest() : whole_(root_.path() / "whole"), folder_(root_.path() / "out") {
    WriteSmallContainer(whole_);
  }

  // Writes the first `count` items and dies there.
  void WriteSome(int count) const {
    ContainerWriter writer(folder_, SmallJob());
    writer.Start();
    for (size_t p = 0; p < writer.num_parts(); ++p) {
      ContainerPart& part = writer.part(p);
      if (part.is_finished()) continue;
      part.Start([] { return false; });
      for (size_t i = 0; i < part.items().size(); ++i) {
        if (part.has(i)) continue;
        if (count-- == 0) return;
        FillItem(&part, p, i);
      }
      part.Finish();
    }
  }
  int Resume() const {
    ContainerWriter writer(folder_, SmallJob());
    writer.Start();
    return FillMissing(&writer);
  }
  void Damage(const char* file, size_t at) const {
    std::string content = ReadFile(folder_ / file);
    ASSERT_LT(at, content.size());
    content[at] = char(content[at] ^ 4);
    File::OpenForWriting(folder_ / file).WriteAt(0, content.data(), content.size());
  }
  void ExpectWhole() const { EXPECT_EQ(FolderContent(folder_), FolderContent(whole_)); }

  static constexpr int kNumItems = 3 + 3 + 3;
  TempFolder root_;
  std::filesystem::path whole_, folder_;
};

TEST_F(ContainerWriterTest, LeavesNothingButTheContainer) {
  std::vector<std::string> names;
  for (const auto& [name, content] : FolderContent(whole_)) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"config.json", "dense.bin", "experts-001.bin",
                                      "experts-002.bin", "hillstar.json", "tokenizer.json"}));
}

TEST_F(ContainerWriterTest, NamesTheProgramThatWroteIt) {
  const std::string manifest = ReadFile(whole_ / kManifestName);
  EXPECT_NE(manifest.find("\"creator\": \"" + std::string(ProgramVersion()) + "\""),
            std::string::npos);
}

TEST_F(ContainerWriterTest, AnUnfinishedFolderSaysHowToResume) {
  EXPECT_NO_THROW(RefuseUnfinished(folder_)) << "not there at all";
  EXPECT_NO_THROW(RefuseUnfinished(whole_));
  WriteSome(2);
  ExpectError(ErrorCode::kBadFile,
              {"the conversion into", folder_.native(), "run hillstar convert again to resume it"},
              [&] { RefuseUnfinished(folder_); });
  WriteFileAtomically(folder_ / kJobFileName, R"({"origin": {"operation": "synth"}})");
  ExpectError(ErrorCode::kBadFile, {"run hillstar synth again"},
              [&] { RefuseUnfinished(folder_); });
}

TEST_F(ContainerWriterTest, ContinuesAfterAnyItem) {
  for (int count = 0; count <= kNumItems; ++count) {
    SCOPED_TRACE(count);
    WriteSome(count);
    EXPECT_FALSE(Container::IsContainer(folder_));
    EXPECT_EQ(Resume(), kNumItems - count);
    ExpectWhole();
    std::filesystem::remove_all(folder_);
  }
}

TEST_F(ContainerWriterTest, ReportsWhatIsWrittenAlready) {
  WriteSome(4);
  const ContainerWriter writer(folder_, SmallJob());
  EXPECT_TRUE(writer.continues());
  EXPECT_TRUE(writer.part(0).is_finished());
  EXPECT_EQ(writer.finished_bytes(),
            writer.part(0).file_bytes() + writer.part(1).items()[0].num_bytes);
  EXPECT_GT(writer.total_bytes(), writer.part(0).file_bytes());
}

TEST_F(ContainerWriterTest, ATornJournalCostsOneItem) {
  WriteSome(5);
  const std::string journal = ReadFile(folder_ / "experts-001.bin.journal");
  const size_t last = journal.rfind('\n', journal.size() - 2) + 1;
  for (size_t size = last; size < journal.size(); ++size) {
    File::OpenForWriting(folder_ / "experts-001.bin.journal").Resize(size);
    ContainerWriter writer(folder_, SmallJob());
    EXPECT_TRUE(writer.part(1).has(0)) << size;
    EXPECT_FALSE(writer.part(1).has(1)) << size;
  }
  EXPECT_EQ(Resume(), kNumItems - 4);
  ExpectWhole();
}

TEST_F(ContainerWriterTest, DamagedPartialDataIsWrittenAgain) {
  WriteSome(5);
  Damage("experts-001.bin.partial", 10);  // in image 0
  EXPECT_EQ(Resume(), kNumItems - 4);
  ExpectWhole();
}

TEST_F(ContainerWriterTest, ADamagedOrForeignJournalIsNotBelieved) {
  WriteSome(5);
  Damage("experts-001.bin.journal", 3);  // its head: nothing of it counts
  EXPECT_EQ(Resume(), kNumItems - 3);
  ExpectWhole();
}

TEST_F(ContainerWriterTest, AMissingPartialFileIsWrittenAgain) {
  WriteSome(5);
  std::filesystem::remove(folder_ / "experts-001.bin.partial");
  EXPECT_EQ(Resume(), kNumItems - 3);
  ExpectWhole();
}

TEST_F(ContainerWriterTest, AFinishedPartIsNeverWrittenAgain) {
  WriteSome(4);
  const auto before = std::filesystem::last_write_time(folder_ / "dense.bin");
  std::filesystem::permissions(folder_ / "dense.bin", std::filesystem::perms::owner_read);
  EXPECT_EQ(Resume(), kNumItems - 4);
  EXPECT_EQ(std::filesystem::last_write_time(folder_ / "dense.bin"), before);
}

TEST_F(ContainerWriterTest, AFinishedPartThatDoesNotFitIsRefused) {
  WriteSome(4);
  File::OpenForWriting(folder_ / "dense.bin").Resize(100);
  ExpectError(ErrorCode::kBadFile, {"dense.bin", "100 of", "delete it"},
              [&] { ContainerWriter(folder_, SmallJob()); });
  std::filesystem::remove(folder_ / "dense.bin");
  EXPECT_EQ(Resume(), kNumItems - 1);
  ExpectWhole();
}

TEST_F(ContainerWriterTest, AFinishedContainerIsRefused) {
  ExpectError(ErrorCode::kUsage, {"whole", "finished container"},
              [&] { ContainerWriter(whole_, SmallJob()); });
}

TEST_F(ContainerWriterTest, ForeignFilesAreRefused) {
  std::filesystem::create_directories(folder_);
  WriteFileAtomically(folder_ / "thesis.txt", "mine");
  ExpectError(ErrorCode::kUsage, {"thesis.txt", "not empty"},
              [&] { ContainerWriter(folder_, SmallJob()); });
  ExpectError(ErrorCode::kUsage, {"thesis.txt", "not a folder"},
              [&] { ContainerWriter(folder_ / "thesis.txt", SmallJob()); });
  EXPECT_EQ(FolderContent(folder_).size(), 1u);
}

TEST_F(ContainerWriterTest, AnotherJobIsRefusedNamingTheDifference) {
  WriteSome(2);
  const auto before = FolderContent(folder_);
  const auto refuse = [&](std::initializer_list<std::string_view> parts, ContainerJob job) {
    ExpectError(ErrorCode::kUsage, parts, [&] { ContainerWriter(folder_, std::move(job)); });
  };
  ContainerJob job = SmallJob();
  job.origin[1].second = "w8";
  refuse({"another experts", "\"w4\" there", "\"w8\" now"}, job);
  job = SmallJob();
  job.origin.emplace_back("mtp", "yes");
  refuse({"another mtp", "null there", "\"yes\" now"}, job);
  job = SmallJob();
  job.side_files[0].second = "{}";
  refuse({"another config.json"}, job);
  job = SmallJob();
  job.tensors[0].rows = 41;
  refuse({"other tensors"}, job);
  EXPECT_EQ(FolderContent(folder_), before);
}

TEST_F(ContainerWriterTest, ADamagedJobFileIsRefused) {
  WriteSome(2);
  File::OpenForWriting(folder_ / kJobFileName).Resize(20);
  ExpectError(ErrorCode::kBadFile, {"hillstar.job.json", "damaged"},
              [&] { ContainerWriter(folder_, SmallJob()); });
}

TEST_F(ContainerWriterTest, OneWriterAFolder) {
  ContainerWriter first(folder_, SmallJob());
  ContainerWriter second(folder_, SmallJob());
  first.Start();
  ExpectError(ErrorCode::kIo, {"another process"}, [&] { second.Start(); });
}

TEST_F(ContainerWriterTest, ADiskThatIsTooSmallIsRefusedWithNumbers) {
  ContainerJob job = SmallJob();
  job.experts[0].num_experts = 65536;
  job.experts[0].shape = {WeightFormat::kW15, 1 << 20, 1 << 15};
  const ContainerWriter writer(folder_, std::move(job));
  ExpectError(ErrorCode::kBudget, {"needs", "GB more", "are free"}, [&] { writer.RequireSpace(); });
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

}  // namespace
}  // namespace hillstar
