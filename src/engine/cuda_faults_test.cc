// What a GPU can do to an engine: too little memory at any allocation, a device that is lost at any
// launch, a driver that is missing or too old, a GPU that is. On the emulated device, which fails
// on request.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "device/cuda/emulated/emulated_api.h"
#include "hillstar/engine.h"
#include "model/tiny_checkpoint_test_files.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

class CudaFaults : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    temp_ = new TempFolder;
    WriteTinyModel(temp_->path());
  }
  static void TearDownTestSuite() { delete temp_; }
  void SetUp() override {
    void* library = dlopen(HILLSTAR_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    using DeviceFn = emulated::Device* (*)();
    reset_ = reinterpret_cast<DeviceFn>(dlsym(library, "hillstar_emulated_device"));
    ASSERT_NE(reset_, nullptr) << dlerror();
    device_ = reset_();
    *device_ = {};
  }
  void TearDown() override { *reset_() = {}; }

  static EngineOptions Options() {
    EngineOptions options;
    options.model = temp_->path().string();
    options.device = "cuda";
    options.cuda_library = HILLSTAR_CUDA_LIBRARY;
    options.context_tokens = 128;
    options.prefill_chunk = 16;
    options.num_threads = 2;
    return options;
  }
  // The sentence of the error that opening ends with, or "".
  static std::string OpenError(ErrorCode code, const EngineOptions& options = Options()) {
    try {
      Engine::Open(options);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
  }

  size_t UsedBytes() const { return reset_()->used_bytes(); }

  static TempFolder* temp_;
  emulated::Device* (*reset_)() = nullptr;
  emulated::Device* device_ = nullptr;
};
TempFolder* CudaFaults::temp_ = nullptr;

TEST_F(CudaFaults, WhatIsMissingIsSaid) {
  device_->has_driver = false;
  EXPECT_NE(OpenError(ErrorCode::kDevice).find("no NVIDIA driver is installed"), std::string::npos);
  *device_ = {};
  device_->driver_version = 12040;
  EXPECT_NE(OpenError(ErrorCode::kDevice).find("serves CUDA 12.4 at most, and 13.0 is needed"),
            std::string::npos);
  *device_ = {};
  device_->num_devices = 0;
  EXPECT_NE(OpenError(ErrorCode::kDevice).find("no CUDA-capable device"), std::string::npos);
  *device_ = {};
  device_->major = 7;
  device_->minor = 5;
  EXPECT_NE(OpenError(ErrorCode::kDevice).find("compute capability is 7.5, and 8.0 is needed"),
            std::string::npos);
  *device_ = {};
  EngineOptions options = Options();
  options.device = "cuda:1";
  EXPECT_NE(OpenError(ErrorCode::kDevice, options).find("there is no cuda:1"), std::string::npos);
}

TEST_F(CudaFaults, AutoTakesTheCpuInstead) {
  EngineOptions options = Options();
  options.device = "auto";
  EXPECT_EQ(Engine::Open(options)->device().id, "cuda:0");
  device_->has_driver = false;
  EXPECT_EQ(Engine::Open(options)->device().id, "cpu");
}

// Whichever allocation fails: an error that says what for, and nothing stays allocated.
TEST_F(CudaFaults, MemoryThatEndsWhileLoadingLeavesNothingBehind) {
  int64_t fails_at = 0;
  for (;; ++fails_at) {
    device_->allocations_until_failure = fails_at;
    const std::string sentence = OpenError(ErrorCode::kBudget);
    if (sentence.empty()) break;
    EXPECT_NE(sentence.find("on cuda:0"), std::string::npos) << sentence;
    EXPECT_TRUE(sentence.ends_with("; --device cpu computes without the GPU")) << sentence;
    EXPECT_EQ(UsedBytes(), 0u) << "allocation " << fails_at;
  }
  EXPECT_GT(fails_at, 30);  // weights and workspace
  device_->allocations_until_failure = -1;
  EXPECT_EQ(OpenError(ErrorCode::kBudget), "");
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(CudaFaults, AModelThatDoesNotFitIsRefusedWithNumbers) {
  device_->total_bytes = 100'000;
  const std::string sentence = OpenError(ErrorCode::kBudget);
  EXPECT_NE(sentence.find("of memory on cuda:0 are available"), std::string::npos) << sentence;
}

// What the plan says lies on the GPU lies there: no more, and not much less.
TEST_F(CudaFaults, ThePlanIsWhatIsTaken) {
  const auto engine = Engine::Open(Options());
  const auto sequence = engine->NewSequence();
  sequence->Append(std::vector<int32_t>(128, 3), LogitsMode::kLast);  // every page
  const uint64_t planned = engine->memory().on_device();
  EXPECT_LE(UsedBytes(), planned);
  EXPECT_GE(UsedBytes(), planned * 9 / 10);
}

// Pages that find no memory end the request that wanted them; what there is goes on.
TEST_F(CudaFaults, MemoryThatEndsWhilePagesGrow) {
  const auto engine = Engine::Open(Options());
  const auto sequence = engine->NewSequence();
  const std::vector<int32_t> ids(20, 3);
  device_->allocations_until_failure = 0;
  try {
    sequence->Append(ids, LogitsMode::kLast);
    ADD_FAILURE() << "there was no memory for a page";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudget) << error.what();
  }
  EXPECT_EQ(sequence->num_tokens(), 0);
}

// A GPU that is lost at some launch: every call from then on is an error that says so; none hangs,
// none gives logits.
TEST_F(CudaFaults, ALostDeviceIsAnErrorOfEveryCall) {
  const std::vector<int32_t> ids(5, 3);
  constexpr int64_t kMany = 1000;
  {
    const auto engine = Engine::Open(Options());
    device_->launches_until_lost = kMany;
    engine->NewSequence()->Append(ids, LogitsMode::kLast);
  }
  const int64_t num_launches = kMany - device_->launches_until_lost;
  ASSERT_GT(num_launches, 20);
  for (const int64_t launch : {int64_t{0}, int64_t{5}, num_launches / 2, num_launches - 1}) {
    *device_ = {};
    reset_();
    const auto engine = Engine::Open(Options());
    const auto sequence = engine->NewSequence();
    device_->launches_until_lost = launch;
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        sequence->Append(ids, LogitsMode::kLast);
        ADD_FAILURE() << "the GPU was lost at launch " << launch;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDevice) << error.what();
        EXPECT_NE(std::string(error.what()).find("GPU"), std::string::npos) << error.what();
      }
      EXPECT_EQ(sequence->num_tokens(), 0);
    }
  }
}

// Steps of several sequences and decoding too; sequences stay as they were.
TEST_F(CudaFaults, ALostDeviceIsAnErrorOfStepsAndDecoding) {
  const std::vector<int32_t> ids(5, 3), one(1, 4);
  const std::atomic<bool> is_cancelled = true;
  for (const int64_t launch : {0, 3, 40, 75, 131}) {
    for (const char* how : {"step", "decode", "decode, cancelled"}) {
      const bool cancels = how == std::string("decode, cancelled");
      if (cancels && launch > 3) continue;  // ends before
      SCOPED_TRACE(std::string(how) + ", lost at launch " + std::to_string(launch));
      *device_ = {};
      reset_();
      EngineOptions options = Options();
      options.max_sequences = 4;
      options.kv_tokens = 1024;
      options.eager = launch % 2 == 1;
      const auto engine = Engine::Open(options);
      const auto a = engine->NewSequence(), b = engine->NewSequence();
      a->Append(ids, LogitsMode::kNone);
      b->Append(ids, LogitsMode::kNone);
      device_->launches_until_lost = launch;
      for (int attempt = 0; attempt < 2; ++attempt) {
        int num_steps = 0;
        try {
          if (how == std::string("step")) {
            for (; num_steps < 20; ++num_steps) {
              const StepPart parts[] = {{a.get(), one, true, nullptr},
                                        {b.get(), one, true, nullptr}};
              StepResult results[2];
              engine->Step(parts, results);
            }
          } else {
            DecodePart parts[] = {{a.get(), 3}, {b.get(), 4}};
            if (cancels) parts[1].cancel = &is_cancelled;
            engine->Decode(parts, [&](std::span<const int32_t>) { return ++num_steps < 20; });
          }
          ADD_FAILURE() << "the GPU was lost";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kDevice) << error.what();
        }
        EXPECT_THROW(a->Append(one, LogitsMode::kNone), Error);
        EXPECT_EQ(a->num_tokens(), b->num_tokens());
        a->Truncate(5);
        b->Truncate(5);
      }
    }
  }
}

}  // namespace
}  // namespace hillstar
