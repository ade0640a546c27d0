#include "model/convert.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "formats/container_test_files.h"
#include "model/container_build.h"
#include "model/tiny_checkpoint_test_files.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

class ConvertTest : public testing::Test {
 protected:
  ConvertTest()
      : checkpoint_(root_.path() / "checkpoint"),
        out_(root_.path() / "out"),
        whole_(root_.path() / "whole"),
        tensors_(MakeTinyTensors(ListTensors(TinyModel(), {}, true, true), 7)) {
    WriteTinyCheckpoint(checkpoint_, tensors_);
  }

  ConvertJob Job(const std::filesystem::path& out) const {
    ConvertJob job;
    job.checkpoint = checkpoint_;
    job.out = out;
    job.num_threads = 2;
    return job;
  }
  void Convert(const std::filesystem::path& out) const {
    ConversionPlan plan = PlanConversion(Job(out));
    RunConversion(&plan);
  }
  // Bytes of items that a run wrote, told from its progress.
  uint64_t ConvertCounting() const {
    ConversionPlan plan = PlanConversion(Job(out_));
    const uint64_t finished = plan.finished_bytes();
    uint64_t last = 0, total = 0;
    RunConversion(&plan, [&](uint64_t done, uint64_t all) {
      EXPECT_GE(done, last);
      last = done;
      total = all;
    });
    EXPECT_EQ(last, total);
    return total - finished;
  }
  void ExpectWhole() {
    if (!std::filesystem::exists(whole_)) Convert(whole_);
    EXPECT_EQ(FolderContent(out_), FolderContent(whole_));
  }
  void ExpectRefused(ErrorCode code, std::initializer_list<std::string_view> parts,
                     const ConvertJob& job) const {
    ExpectError(code, parts, [&] { PlanConversion(job); });
  }
  // The tiny configuration with one field changed.
  static std::string Config(const char* key, const Json& value) {
    Json config = Json::parse(kTinyConfig);
    config[key] = value;
    return config.dump();
  }

  TempFolder root_;
  std::filesystem::path checkpoint_, out_, whole_;
  TinyTensors tensors_;
};

TEST_F(ConvertTest, TheContainerHoldsWhatTheTableSays) {
  Convert(out_);
  const auto container = Container::Open(out_);
  const TensorTable table = ListTensors(TinyModel(), {}, true, true);
  TinyCheckpoint checkpoint(tensors_);
  ExpectAll(table, checkpoint);
  ASSERT_EQ(container->tensors().size(), table.dense.size());
  const auto serially = [](int64_t n, const std::function<void(int64_t)>& job) {
    for (int64_t i = 0; i < n; ++i) job(i);
  };
  for (const TensorSpec& spec : table.dense) {
    const ContainerTensor* tensor = container->Find(spec.name);
    ASSERT_NE(tensor, nullptr) << spec.name;
    ASSERT_EQ(tensor->num_bytes, spec.num_bytes());
    std::vector<uint8_t> expected(spec.num_bytes()), got(spec.num_bytes());
    PackTensor(checkpoint, spec, serially, expected.data());
    container->ReadTensor(*tensor, got.data());
    EXPECT_EQ(got, expected) << spec.name;
  }
  ASSERT_EQ(container->experts().size(), table.experts.size());
  for (size_t l = 0; l < table.experts.size(); ++l) {
    const ContainerExperts& layer = container->experts()[l];
    std::vector<uint8_t> expected(layer.image_bytes), got(layer.image_bytes);
    for (int64_t e = 0; e < layer.num_experts; ++e) {
      PackExpert(checkpoint, table.experts[l], e, expected.data());
      container->ReadExperts(layer, e, 1, got.data());
      EXPECT_EQ(got, expected);
    }
  }
  EXPECT_EQ(container->SideFile("config.json"), kTinyConfig);
}

TEST_F(ConvertTest, ThePlanSaysWhatWillBeWritten) {
  const ConversionPlan plan = PlanConversion(Job(out_));
  EXPECT_FALSE(std::filesystem::exists(out_)) << "planning writes nothing";
  for (const char* part : {"experts w4", "other matrices w8", "MTP layer  converted", "in F32",
                           "indexer    on 2 of the layers and on the MTP layer", "free in"}) {
    EXPECT_NE(plan.summary.find(part), std::string::npos) << part << " is not in\n" << plan.summary;
  }
  Convert(out_);
  uint64_t written = 0;
  for (const auto& [name, content] : FolderContent(out_)) written += content.size();
  EXPECT_EQ(plan.total_bytes(), written) << "the size is exact, to the byte";
}

TEST_F(ConvertTest, AnyNumberOfThreadsWritesTheSameBytes) {
  for (int threads : {1, 3, 8}) {
    ConvertJob job = Job(out_);
    job.num_threads = threads;
    ConversionPlan plan = PlanConversion(job);
    RunConversion(&plan);
    ExpectWhole();
    std::filesystem::remove_all(out_);
  }
}

TEST_F(ConvertTest, StoppedAtAnyPointItContinues) {
  ConversionPlan first = PlanConversion(Job(whole_));
  int num_reports = 0;
  RunConversion(&first, [&](uint64_t, uint64_t) { ++num_reports; });
  ASSERT_GT(num_reports, 60);
  for (int stop = 1; stop < num_reports; stop += 7) {
    SCOPED_TRACE(stop);
    ConversionPlan plan = PlanConversion(Job(out_));
    std::atomic<bool> cancel{false};
    int reports = 0;
    uint64_t done = 0;
    try {
      RunConversion(
          &plan,
          [&](uint64_t bytes, uint64_t) {
            done = bytes;
            if (++reports == stop) cancel = true;
          },
          &cancel);
      ADD_FAILURE() << "not stopped";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCancelled) << e.what();
    }
    const uint64_t total = plan.total_bytes();
    plan.writer.reset();
    EXPECT_FALSE(Container::IsContainer(out_));
    EXPECT_LE(ConvertCounting() + done, total + (uint64_t{1} << 20));
    ExpectWhole();
    std::filesystem::remove_all(out_);
  }
}

// A child that dies by SIGKILL in its `reports`-th progress report; true if it came that far.
bool KillAtReport(const ConvertJob& job, int reports) {
  const pid_t child = ::fork();
  if (child == 0) {
    ConversionPlan plan = PlanConversion(job);
    RunConversion(&plan, [&](uint64_t, uint64_t) {
      if (--reports == 0) ::kill(::getpid(), SIGKILL);
    });
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST_F(ConvertTest, KilledAgainAndAgainItGetsDone) {
  int kills = 0;
  while (KillAtReport(Job(out_), 9)) {
    ++kills;
    ASSERT_LT(kills, 100) << "every run must finish something";
  }
  EXPECT_GT(kills, 3);
  ExpectWhole();
}

TEST_F(ConvertTest, KilledAtAnyMomentItLosesAtMostTheItemsInWork) {
  const auto start = std::chrono::steady_clock::now();
  Convert(out_.string() + ".timed");  // how long it takes here and now
  const std::chrono::duration<double, std::micro> whole_us =
      std::chrono::steady_clock::now() - start;
  std::mt19937 random(3);
  int kills = 0;
  for (int i = 0; i < 12; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ConversionPlan plan = PlanConversion(Job(out_));
      RunConversion(&plan);
      ::_exit(0);
    }
    // The first kill comes early, whatever the machine does meanwhile.
    const double share = i == 0 ? 0.1 : double(random() % 1000) / 1000;
    ::usleep(useconds_t(share * whole_us.count()));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status)) break;
    ++kills;
    if (Container::IsContainer(out_)) break;
  }
  EXPECT_GT(kills, 0);
  if (!Container::IsContainer(out_)) ConvertCounting();
  // A kill between the manifest and the last clean-up leaves journals behind; they are no part of
  // the container.
  Convert(whole_);
  for (const auto& [name, content] : FolderContent(whole_)) {
    EXPECT_EQ(ReadFile(out_ / name), content) << name;
  }
}

TEST_F(ConvertTest, AFullDiskIsAnErrorAndTheNextRunContinues) {
  const pid_t child = ::fork();
  if (child == 0) {
    // Files cannot grow beyond the limit: a write fails as on a full disk (EFBIG, not a signal).
    ::signal(SIGXFSZ, SIG_IGN);
    ConversionPlan plan = PlanConversion(Job(out_));
    const rlimit limit = {30000, 30000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      RunConversion(&plan);
    } catch (const Error& e) {
      const bool named = std::string_view(e.what()).find("dense.bin") != std::string_view::npos;
      ::_exit(e.code() == ErrorCode::kIo && named ? 42 : 1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
  const ConversionPlan plan = PlanConversion(Job(out_));
  EXPECT_TRUE(plan.continues());
  EXPECT_GT(plan.finished_bytes(), 0u);
  EXPECT_NE(plan.summary.find("are written"), std::string::npos);
  ConvertCounting();
  ExpectWhole();
}

TEST_F(ConvertTest, AFinishedContainerIsNeverTouched) {
  Convert(out_);
  const auto before = FolderContent(out_);
  ExpectRefused(ErrorCode::kUsage, {"finished container"}, Job(out_));
  EXPECT_EQ(FolderContent(out_), before);
}

TEST_F(ConvertTest, AnUnfinishedFolderTakesTheSameJobOnly) {
  ASSERT_TRUE(KillAtReport(Job(out_), 20));
  ConvertJob job = Job(out_);
  job.formats.experts = WeightFormat::kW8;
  ExpectRefused(ErrorCode::kUsage, {"another experts", "w4", "w8"}, job);
  job = Job(out_);
  job.formats.dense = WeightFormat::kW15;
  ExpectRefused(ErrorCode::kUsage, {"another dense", "w8", "w15"}, job);
  job = Job(out_);
  job.with_mtp = false;
  ExpectRefused(ErrorCode::kUsage, {"another mtp"}, job);
  // A fine-tuned sister of equal shapes.
  const auto sister = root_.path() / "sister";
  TinyTensors tensors = tensors_;
  tensors["model.layers.1.mlp.experts.4.down_proj.weight"].values[0] += 1;
  WriteTinyCheckpoint(sister, tensors);
  job = Job(out_);
  job.checkpoint = sister;
  ExpectRefused(ErrorCode::kUsage, {"another checkpoint"}, job);
  ConvertCounting();
  ExpectWhole();
}

TEST_F(ConvertTest, TheCheckpointsOwnFolderIsRefused) {
  ExpectRefused(ErrorCode::kUsage, {"not empty"}, Job(checkpoint_));
}

TEST_F(ConvertTest, WhatCannotBeServedIsRefusedBeforeAnythingIsWritten) {
  const auto refuse_config = [&](ErrorCode code, const char* part, const char* key,
                                 const Json& value) {
    WriteTinyCheckpoint(checkpoint_, tensors_, Config(key, value));
    ExpectRefused(code, {part}, Job(out_));
  };
  refuse_config(ErrorCode::kUnsupported, "llama", "model_type", "llama");
  refuse_config(ErrorCode::kUnsupported, "n_group", "n_group", 2);
  refuse_config(ErrorCode::kBadFile, "embed_tokens", "vocab_size", 51);
  refuse_config(ErrorCode::kBadFile, "mlp.gate.weight", "n_routed_experts", 6);
  TinyTensors less = tensors_;
  less.erase("model.layers.2.mlp.experts.4.down_proj.weight");
  WriteTinyCheckpoint(checkpoint_, less);
  ExpectRefused(ErrorCode::kNotFound, {"layers.2.mlp.experts.4.down_proj"}, Job(out_));
  WriteTinyCheckpoint(checkpoint_, tensors_);
  ConvertJob job = Job(out_);
  job.formats.dense = WeightFormat::kF32;
  ExpectRefused(ErrorCode::kUsage, {"f32"}, job);
  job = Job(out_);
  job.checkpoint = root_.path() / "absent";
  ExpectRefused(ErrorCode::kNotFound, {"absent"}, job);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(ConvertTest, TheMtpLayerIsLeftOutOnlyIfAsked) {
  TinyTensors without = tensors_;
  std::erase_if(without, [](const auto& t) { return t.first.find("layers.3.") != t.first.npos; });
  WriteTinyCheckpoint(checkpoint_, without);
  ExpectRefused(ErrorCode::kNotFound, {"eh_proj", "--no-mtp"}, Job(out_));
  ConvertJob job = Job(out_);
  job.with_mtp = false;
  ConversionPlan plan = PlanConversion(job);
  RunConversion(&plan);
  const auto container = Container::Open(out_);
  EXPECT_EQ(container->Find("layers.3.eh_proj"), nullptr);
  EXPECT_EQ(container->experts().size(), 2u);
}

TEST_F(ConvertTest, UnusedTensorsAreReported) {
  TinyTensors more = tensors_;
  const std::string extra = "model.layers.1.self_attn.indexer.wq_b.weight";  // a shared layer's
  more[extra] = {{1, 1}, {0.f}};
  WriteTinyCheckpoint(checkpoint_, more);
  const ConversionPlan plan = PlanConversion(Job(out_));
  EXPECT_NE(plan.summary.find("ignored    1 tensors"), std::string::npos) << plan.summary;
  EXPECT_NE(plan.summary.find(extra), std::string::npos);
}

TEST_F(ConvertTest, AWeightThatIsNotFiniteIsNamed) {
  TinyTensors bad = tensors_;
  const std::string name = "model.layers.2.mlp.experts.1.up_proj.weight";
  bad[name].values[100] = std::numeric_limits<float>::quiet_NaN();
  WriteTinyCheckpoint(checkpoint_, bad);
  ConversionPlan plan = PlanConversion(Job(out_));
  ExpectError(ErrorCode::kBadFile, {name}, [&] { RunConversion(&plan); });
  EXPECT_FALSE(Container::IsContainer(out_));
}

// How far the weights of a converted model are from the checkpoint's, relative, root mean square.
TEST(ConvertDemo, TheFormatsKeepTheWeights) {
  const std::filesystem::path demo = HILLSTAR_DEMO_CHECKPOINT;
  if (demo.empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const TempFolder root;
  ConvertJob job;
  job.checkpoint = demo / "checkpoint";
  job.out = root.path() / "out";
  job.num_threads = 2;
  ConversionPlan plan = PlanConversion(job);
  RunConversion(&plan);
  const auto container = Container::Open(job.out);
  const auto error = [&](const std::string& source, const WeightView& view) {
    std::vector<float> row(size_t(view.cols)), expected(size_t(view.cols));
    double difference = 0, norm = 0;
    for (int64_t r = 0; r < view.rows; ++r) {
      plan.checkpoint->ReadRows(source, r, 1, expected.data());
      DequantiseRow(view, r, row.data());
      for (size_t i = 0; i < row.size(); ++i) {
        difference += std::pow(double(row[i]) - double(expected[i]), 2);
        norm += std::pow(double(expected[i]), 2);
      }
    }
    return std::sqrt(difference / norm);
  };
  for (const char* name : {"embed", "layers.3.o", "layers.6.eh_proj"}) {
    const ContainerTensor& tensor = *container->Find(name);
    std::vector<uint8_t> bytes(tensor.num_bytes);
    container->ReadTensor(tensor, bytes.data());
    const auto spec = std::find_if(plan.table.dense.begin(), plan.table.dense.end(),
                                   [&](const TensorSpec& s) { return s.name == name; });
    // A step is amax / 127; normal values in groups of 64 have amax near 2.7 sigma, and the error
    // of rounding is a step / sqrt(12): 0.6 %. Twice that allows for rows with outliers.
    EXPECT_LT(error(spec->source, DenseView(tensor.format, tensor.rows, tensor.cols, bytes.data())),
              0.012)
        << name;
  }
  const ContainerExperts& layer = container->experts()[2];
  std::vector<uint8_t> image(layer.image_bytes);
  container->ReadExperts(layer, 17, 1, image.data());
  const ExpertViews views = ViewExpert(layer.shape, image.data());
  // Likewise with steps of amax / 7.5: 2.7 / 7.5 / sqrt(12) = 10.4 %.
  EXPECT_LT(error(plan.table.experts[2].down(17), views.down), 0.13);
  EXPECT_LT(error(plan.table.experts[2].gate(17), views.gate), 0.13);
  // The bound that the project sets for the built-in model.
  EXPECT_LE(plan.total_bytes(), 40000000u);
}

}  // namespace
}  // namespace hillstar
