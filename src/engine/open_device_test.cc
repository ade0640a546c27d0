// Which device is taken, and what is said where none serves: with libraries that stand in for the
// CUDA library, on the built-in model.
#include "engine/open_device.h"

#include <gtest/gtest.h>

#include "core/log.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

std::string Fake(const std::string& name) {
  return std::string(FAKE_CUDA_FOLDER) + "/libfake_cuda_" + name + ".so";
}

EngineOptions OptionsFor(const std::string& device, const std::string& library) {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.num_threads = 2;
  options.context_tokens = 256;
  options.load_mtp = false;
  options.device = device;
  options.cuda_library = library;
  return options;
}

// The sentence with which the device is refused.
std::string Refusal(const std::string& device, const std::string& library, ErrorCode code) {
  try {
    (void)Engine::Open(OptionsFor(device, library));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << device << " was not refused";
  return "";
}

struct Answer {
  std::string device, simd;
  std::vector<float> logits;
};
Answer AnswerOn(const std::string& device, const std::string& library) {
  const auto engine = Engine::Open(OptionsFor(device, library));
  const auto sequence = engine->NewSequence();
  std::vector<int32_t> ids;
  for (int i = 0; i < 100; ++i) ids.push_back(300 + i * 17);
  const auto logits = sequence->Append(ids, LogitsMode::kLast);
  return {engine->device().id, std::string(engine->simd_level()), {logits.begin(), logits.end()}};
}

TEST(OpenDevice, NamesAreChecked) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda0"}) {
    EXPECT_EQ(
        Refusal(name, "", ErrorCode::kUsage),
        "--device '" + std::string(name) + "' is none of auto, cpu, cuda and cuda:N (cuda:0)");
  }
}

TEST(OpenDevice, WithoutALibraryAGpuIsRefused) {
  EXPECT_EQ(Refusal("cuda", "/nowhere/lib.so", ErrorCode::kDevice),
            "--device cuda needs the CUDA library, and there is no /nowhere/lib.so; a build with "
            "CUDA makes it, --device cpu does without");
  const std::string abi = Refusal("cuda:0", Fake("wrong_abi"), ErrorCode::kDevice);
  EXPECT_NE(abi.find("has version 99 of the interface and this program version"), std::string::npos)
      << abi;
}

TEST(OpenDevice, WithoutADriverAGpuIsRefused) {
  for (const char* device : {"cuda", "cuda:0", "cuda:1"}) {
    EXPECT_EQ(Refusal(device, Fake("no_device"), ErrorCode::kDevice),
              "there is no GPU to compute on: the NVIDIA driver is not loaded (--device cpu does "
              "without)");
  }
}

TEST(OpenDevice, AGpuThatDoesNotServeIsRefused) {
  const std::string library = Fake("devices");
  EXPECT_EQ(Refusal("cuda:5", library, ErrorCode::kDevice),
            "there is no cuda:5: 5 GPUs are found, cuda:0 to cuda:4 (--device)");
  EXPECT_EQ(Refusal("cuda:0", library, ErrorCode::kDevice),
            "cuda:0, Old GPU, cannot compute: it is of compute capability 3.7, and 8.0 is needed "
            "(--device)");
  for (const char* device : {"cuda:1", "cuda:2"}) {  // too small, too full
    const std::string text = Refusal(device, library, ErrorCode::kBudget);
    EXPECT_TRUE(text.starts_with("0.00 GB of memory on " + std::string(device) +
                                 " are available, and the model needs 0."))
        << text;
  }
  EXPECT_EQ(Refusal("cuda:4", library, ErrorCode::kDevice), "cuda:4 was lost");
}

TEST(OpenDevice, TheFirstGpuThatServesIsTaken) {
  const Answer cpu = AnswerOn("cpu", "");
  EXPECT_EQ(cpu.device, "cpu");
  EXPECT_NE(cpu.simd, "cuda");
  for (const char* device : {"auto", "cuda", "cuda:3"}) {
    const Answer gpu = AnswerOn(device, Fake("devices"));
    EXPECT_EQ(gpu.device, "cuda:3");
    EXPECT_EQ(gpu.simd, "cuda");
    EXPECT_EQ(gpu.logits, cpu.logits);
  }
}

TEST(OpenDevice, AutoFallsBackToTheCpu) {
  const Answer cpu = AnswerOn("cpu", "");
  const auto told = [&](const std::string& library) {
    testing::internal::CaptureStderr();
    const Answer answer = AnswerOn("auto", library);
    EXPECT_EQ(answer.device, "cpu");
    EXPECT_EQ(answer.logits, cpu.logits);
    return testing::internal::GetCapturedStderr();
  };
  SetLogLevel("info");
  const std::string missing = told("/nowhere/lib.so"), abi = told(Fake("wrong_abi")),
                    no_device = told(Fake("no_device"));
  SetLogLevel("warn");
  EXPECT_EQ(missing, "");
  EXPECT_NE(abi.find("the CPU computes: " + Fake("wrong_abi") + " has version 99"),
            std::string::npos)
      << abi;
  EXPECT_NE(no_device.find("the CPU computes: there is no GPU to compute on: the NVIDIA driver is "
                           "not loaded\n"),
            std::string::npos)
      << no_device;
}

// At the log's level by default: a library that is broken is told of, a GPU that is not there is
// not.
TEST(OpenDevice, AutoWarnsOfALibraryThatCannotBeUsed) {
  const auto told = [](const std::string& library) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(Engine::Open(OptionsFor("auto", library))->device().id, "cpu");
    return testing::internal::GetCapturedStderr();
  };
  SetLogLevel("warn");
  const std::string no_library = std::string(HILLSTAR_SOURCE_DIR) + "/CMakeLists.txt";
  for (const auto& [library, why_not] :
       {std::pair{Fake("wrong_abi"), std::string(" has version 99")},
        {Fake("no_entry"), std::string(" is no CUDA library of Hillstar")},
        {no_library, std::string(" cannot be loaded: ")}}) {
    const std::string text = told(library);
    EXPECT_NE(text.find("the CPU computes: " + library + why_not), std::string::npos) << text;
  }
  EXPECT_EQ(told("/nowhere/lib.so"), "");
  EXPECT_EQ(told(Fake("no_device")), "");
}

}  // namespace
}  // namespace hillstar
