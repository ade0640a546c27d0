// The oracle's cases on a GPU: all logits are the CPU's, by memcmp and by sha256, in every KV
// format, alone and in mixed batches, from graphs and kernel by kernel, cold and behind adopted
// prefixes. With the built-in model and, where it is given, the demo checkpoint. On the emulated
// device a few tokens of some cases.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "formats/container_checksum.h"
#include "hillstar/engine.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

using Logits = std::vector<float>;

constexpr bool kEmulated = HILLSTAR_CUDA_IS_EMULATED;
// Of the two cases on the emulated device.
constexpr size_t kFewTokens[] = {68, 16};
constexpr size_t kMostInABatch = 64, kBatchSteps = kEmulated ? 2 : 6;
// Of a batch's sequence: shorter than the longest cases, so that 64 of them fit.
constexpr size_t kMostBatchTokens = 700;

std::string BuiltIn() { return std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket"; }
std::string DemoFolder() { return HILLSTAR_DEMO_CHECKPOINT; }

struct Case {
  std::string name;
  std::vector<int32_t> ids;
  Logits want;  // of every token, by the CPU
};

// Prompts and answers of oracle.json, where it is given; else pieces of a text.
std::vector<Case> AllCases(const Tokenizer& tokenizer) {
  std::vector<Case> cases;
  std::ifstream oracle(DemoFolder() + "/oracle.json");
  if (!DemoFolder().empty() && oracle) {
    const nlohmann::json parsed = nlohmann::json::parse(oracle);
    for (const auto& c : parsed["cases"]) {
      std::vector<int32_t> ids = c["prompt_ids"];
      const std::vector<int32_t> greedy = c["greedy_ids"];
      ids.insert(ids.end(), greedy.begin(), greedy.end());
      cases.push_back({c["name"], ids, {}});
    }
  } else {
    std::ifstream file(std::string(HILLSTAR_SOURCE_DIR) + "/docs/numerics.md");
    std::stringstream text;
    text << file.rdbuf();
    const std::vector<int32_t> ids = tokenizer.Encode(text.str(), AddedTokens::kAsText);
    CHECK(ids.size() >= 2 * 1547);
    for (const int64_t n : {70, 30, 62, 246, 491, 1547}) {
      cases.push_back({"text-" + std::to_string(n), {ids.begin() + n, ids.begin() + 2 * n}, {}});
    }
  }
  if (!kEmulated) return cases;
  // One with more than a page, and a short one.
  std::ranges::stable_sort(cases, std::greater<>(), [](const Case& c) { return c.ids.size(); });
  std::swap(cases[1], cases.back());
  cases.resize(std::size(kFewTokens));
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].ids.resize(std::min(cases[i].ids.size(), kFewTokens[i]));
  }
  return cases;
}

struct Setting {
  bool of_checkpoint;
  const char* kv_format;
};

class CudaOracle : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const Setting& setting = GetParam();
    try {
      gpu_ = Engine::Open(Options("cuda", false));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDevice || kEmulated) throw;
      GTEST_SKIP() << error.what();
    }
    vocab_ = size_t(gpu_->config().vocab_size);
    static std::map<std::string, std::vector<Case>> of_settings;  // found once
    cases_ = &of_settings[Model() + setting.kv_format];
    if (cases_->empty()) *cases_ = WithLogits();
  }

  static std::string Model() {
    return GetParam().of_checkpoint ? DemoFolder() + "/checkpoint" : BuiltIn();
  }
  static EngineOptions Options(const char* device, bool eager) {
    EngineOptions options;
    options.model = Model();
    options.device = device;
    options.cuda_library = HILLSTAR_CUDA_LIBRARY;
    options.eager = eager;
    options.kv_format = GetParam().kv_format;
    options.max_sequences = kMostInABatch;
    options.context_tokens = 4096;
    options.kv_tokens = kEmulated ? 8192 : 49152;
    options.load_mtp = false;
    return options;
  }
  static std::vector<Case> WithLogits() {
    const auto cpu = Engine::Open(Options("cpu", false));
    std::vector<Case> cases = AllCases(cpu->tokenizer());
    for (Case& c : cases) {
      const auto sequence = cpu->NewSequence({.shares_prefixes = false});
      const auto logits = sequence->Append(c.ids, LogitsMode::kAll);
      c.want.assign(logits.begin(), logits.end());
    }
    return cases;
  }

  // `got`: of token `t` of a case and those behind it.
  void ExpectSame(const Case& c, size_t t, std::span<const float> got, const std::string& what) {
    ASSERT_FALSE(got.empty()) << c.name << ", " << what;
    ASSERT_LE(t * vocab_ + got.size(), c.want.size()) << c.name << ", " << what;
    EXPECT_EQ(std::memcmp(&c.want[t * vocab_], got.data(), got.size_bytes()), 0)
        << c.name << ", token " << t << ", " << what;
  }
  void ExpectSameBatch(Engine& engine, size_t size);
  // Calls test(engine, what) with graphs and kernel by kernel, which takes too long for the
  // emulated device.
  template <typename Test>
  void ForGraphsAndEager(const Test& test) {
    test(*gpu_, "by graphs");
    if (!kEmulated) test(*Engine::Open(Options("cuda", true)), "eager");
  }

  std::unique_ptr<Engine> gpu_;
  std::vector<Case>* cases_ = nullptr;
  size_t vocab_ = 0;
};

std::string Sha256Of(std::span<const float> logits) {
  return Sha256Hex({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
}

TEST_P(CudaOracle, EveryCaseHasTheCpusSha256) {
  ForGraphsAndEager([&](Engine& engine, const char* what) {
    for (const Case& c : *cases_) {
      const auto sequence = engine.NewSequence({.shares_prefixes = false});
      const auto logits = sequence->Append(c.ids, LogitsMode::kAll);
      ExpectSame(c, 0, logits, what);
      ASSERT_EQ(logits.size(), c.want.size()) << c.name;
      const std::string want = Sha256Of(c.want), got = Sha256Of(logits);
      EXPECT_EQ(got, want) << c.name << ", " << what;
      std::printf("%s, %s, %s, %zu tokens: sha256 %s on the CPU, %s %s\n",
                  GetParam().of_checkpoint ? "checkpoint" : "built-in", GetParam().kv_format,
                  c.name.c_str(), c.ids.size(), want.c_str(),
                  got == want ? "the same" : got.c_str(), what);
    }
  });
}

// What another sequence computed is taken over; what follows has the bits of a cold run.
TEST_P(CudaOracle, BehindAdoptedPrefixes) {
  if (kEmulated && std::string(GetParam().kv_format) != "q15") return;  // cuda_bits_test has these
  ForGraphsAndEager([&](Engine& engine, const char* what) {
    for (const Case& c : *cases_) {
      const auto first = engine.NewSequence();
      first->Append(c.ids, LogitsMode::kNone);
      const auto second = engine.NewSequence();
      const auto adopted = size_t(second->AdoptPrefix(c.ids));
      ASSERT_GE(adopted, (c.ids.size() - 1) / 64 * 64) << c.name;
      const auto logits = second->Append(std::span(c.ids).subspan(adopted), LogitsMode::kAll);
      ExpectSame(c, adopted, logits, what);
    }
  });
}

// `size` sequences, each somewhere in its case, every other one behind an adopted prefix if there
// is one; one of them takes several tokens a step.
void CudaOracle::ExpectSameBatch(Engine& engine, size_t size) {
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<const Case*> of;
  for (size_t i = 0; i < size; ++i) {
    const Case& c = (*cases_)[i % cases_->size()];
    ASSERT_GT(c.ids.size(), 3 * kBatchSteps) << c.name;
    const size_t room = std::min(c.ids.size(), kMostBatchTokens) - 3 * kBatchSteps;
    of.push_back(&c);
    owners.push_back(engine.NewSequence({.shares_prefixes = i / cases_->size() % 2 == 0}));
    const auto prompt = std::span(c.ids).first(1 + i * 37 % room);
    owners.back()->AdoptPrefix(prompt);
    owners.back()->Append(prompt.subspan(size_t(owners.back()->num_tokens())), LogitsMode::kNone);
  }
  for (size_t step = 0; step < kBatchSteps; ++step) {
    std::vector<StepPart> parts;
    std::vector<size_t> last;  // token whose logits are asked for
    for (size_t i = 0; i < size; ++i) {
      const auto at = size_t(owners[i]->num_tokens());
      const size_t n = i == step && size > 1 ? 3 : 1;
      parts.push_back({owners[i].get(), std::span(of[i]->ids).subspan(at, n), true, nullptr});
      last.push_back(at + n - 1);
    }
    std::vector<StepResult> results(size);
    engine.Step(parts, results);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_FALSE(results[i].error) << results[i].error->what();
      ExpectSame(*of[i], last[i], results[i].logits,
                 "sequence " + std::to_string(i) + " of " + std::to_string(size));
    }
  }
}

TEST_P(CudaOracle, MixedBatches) {
  std::vector<size_t> sizes = {1, 2, 3, 7, 8, 9, 33, kMostInABatch};
  if (kEmulated) sizes = {3};
  ForGraphsAndEager([&](Engine& engine, const char* what) {
    SCOPED_TRACE(what);
    for (const size_t size : sizes) ExpectSameBatch(engine, size);
  });
}

#if !HILLSTAR_CUDA_IS_EMULATED  // there EveryCaseHasTheCpusSha256 has it
// What compute-sanitizer's racecheck runs, for which the others take too long (tools/gpu.sh).
TEST_P(CudaOracle, Sanitized) {
  const Case& c =
      *std::ranges::min_element(*cases_, {}, [](const Case& each) { return each.ids.size(); });
  const auto sequence = gpu_->NewSequence({.shares_prefixes = false});
  ExpectSame(c, 0, sequence->Append(c.ids, LogitsMode::kAll), "sanitized");
}
#endif

std::vector<Setting> Settings() {
  std::vector<Setting> all = {{false, "q15"}, {false, "q8"}, {false, "fp8"}};
  if (kEmulated) return all;
  if (std::filesystem::exists(DemoFolder() + "/checkpoint/model.safetensors")) {
    all.insert(all.end(), {{true, "q15"}, {true, "q8"}, {true, "fp8"}});
  } else {
    std::printf("HILLSTAR_DEMO_CHECKPOINT has no checkpoint: with the built-in model only\n");
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaOracle, testing::ValuesIn(Settings()),
                         [](const auto& setting) {
                           return std::string(setting.param.of_checkpoint ? "checkpoint_"
                                                                          : "built_in_") +
                                  setting.param.kv_format;
                         });

}  // namespace
}  // namespace hillstar
