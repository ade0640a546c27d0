// The built-in model on a GPU against the CPU: prompts, batches, formats, and hundreds of greedy
// steps. Skips without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/sampler.h"
#include "formats/container_checksum.h"
#include "hillstar/engine.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

EngineOptions Options(const char* device, const char* kv_format) {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.device = device;
  options.cuda_library = HILLSTAR_CUDA_LIBRARY;
  options.kv_format = kv_format;
  options.max_sequences = 64;
  options.context_tokens = 4096;
  options.kv_tokens = 65536;
  options.load_mtp = false;
  return options;
}

class CudaModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    try {
      gpu_ = Engine::Open(Options("cuda", GetParam()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDevice) throw;
      GTEST_SKIP() << error.what();
    }
    cpu_ = Engine::Open(Options("cpu", GetParam()));
    std::ifstream file(std::string(HILLSTAR_SOURCE_DIR) + "/docs/numerics.md");
    std::stringstream text;
    text << file.rdbuf();
    text_ = cpu_->tokenizer().Encode(text.str(), AddedTokens::kAsText);
  }
  std::span<const int32_t> Text(size_t first, size_t n) const {
    return std::span(text_).subspan(first, n);
  }

  std::unique_ptr<Engine> cpu_, gpu_;
  std::vector<int32_t> text_;
};
INSTANTIATE_TEST_SUITE_P(KvFormats, CudaModel, testing::Values("q15", "q8", "fp8"));

void ExpectSame(std::span<const float> want, std::span<const float> got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  ASSERT_FALSE(want.empty()) << what;
  EXPECT_EQ(std::memcmp(want.data(), got.data(), got.size_bytes()), 0) << what;
}

TEST_P(CudaModel, PromptsOfManyLengths) {
  for (const size_t n : {1, 2, 63, 64, 65, 257, 1300}) {
    const auto on_cpu = cpu_->NewSequence(), on_gpu = gpu_->NewSequence();
    const auto want = on_cpu->Append(Text(n, n), LogitsMode::kAll);
    ExpectSame(want, on_gpu->Append(Text(n, n), LogitsMode::kAll), std::to_string(n) + " tokens");
  }
}

TEST_P(CudaModel, BatchesOfManyLengths) {
  for (const size_t size : {2, 3, 4, 7, 8, 9, 33, 64}) {
    std::vector<std::unique_ptr<Sequence>> owners[2];
    Engine* engines[] = {cpu_.get(), gpu_.get()};
    for (size_t step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> logits[2];
      for (const int e : {0, 1}) {
        std::vector<StepPart> parts;
        for (size_t i = 0; i < size; ++i) {
          const size_t length = 1 + (i * 29 + size) % 330;
          if (step == 0) {
            owners[e].push_back(engines[e]->NewSequence({.shares_prefixes = false}));
            owners[e].back()->Append(Text(i, length), LogitsMode::kNone);
          }
          parts.push_back({owners[e][i].get(), Text(i + length + step, 1), true, nullptr});
        }
        std::vector<StepResult> results(parts.size());
        engines[e]->Step(parts, results);
        for (const StepResult& r : results)
          logits[e].emplace_back(r.logits.begin(), r.logits.end());
      }
      for (size_t i = 0; i < size; ++i) {
        ExpectSame(logits[0][i], logits[1][i],
                   std::to_string(size) + " sequences, number " + std::to_string(i));
      }
    }
  }
}

// In pages that an earlier sequence has used, against the CPU's own tokens.
TEST_P(CudaModel, HundredsOfGreedySteps) {
  constexpr size_t kSteps = 512;
  std::vector<int32_t> tokens[2];
  Engine* engines[] = {cpu_.get(), gpu_.get()};
  for (const int e : {0, 1}) {
    const auto sequence = engines[e]->NewSequence({.shares_prefixes = false});
    sequence->Append(Text(500, 900), LogitsMode::kNone);
    sequence->Truncate(0);
    int32_t next = Argmax(sequence->Append(Text(0, 200), LogitsMode::kLast));
    for (size_t i = 0; i < kSteps; ++i) {
      tokens[e].push_back(next);
      next = Argmax(sequence->Append(std::span(&next, 1), LogitsMode::kLast));
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

TEST_P(CudaModel, AHundredRepeatsAreOneResult) {
  std::vector<float> first;
  for (int repeat = 0; repeat < 100; ++repeat) {
    const auto sequence = gpu_->NewSequence({.shares_prefixes = false});
    const auto logits = sequence->Append(Text(7, 600), LogitsMode::kLast);
    if (repeat == 0) first.assign(logits.begin(), logits.end());
    ExpectSame(first, logits, "repeat " + std::to_string(repeat));
  }
}

// Sequences of one token to hundreds in one step, again and again.
TEST_P(CudaModel, AHundredRepeatsOfABatchHaveOneHash) {
  constexpr size_t kSequences = 37;
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<size_t> lengths;
  for (size_t i = 0; i < kSequences; ++i) {
    lengths.push_back(1 + i * i * 41 % 900);
    owners.push_back(gpu_->NewSequence({.shares_prefixes = false}));
    owners.back()->Append(Text(i, lengths[i]), LogitsMode::kNone);
  }
  std::string hash;
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::vector<StepPart> parts;
    for (size_t i = 0; i < kSequences; ++i) {
      owners[i]->Truncate(int64_t(lengths[i]));
      const size_t count = i % 10 == 3 ? 17 : 1;
      parts.push_back({owners[i].get(), Text(i + lengths[i], count), true, nullptr});
    }
    std::vector<StepResult> results(kSequences);
    gpu_->Step(parts, results);
    std::string all;
    for (const StepResult& r : results) {
      ASSERT_FALSE(r.error) << r.error->what();
      all.append(reinterpret_cast<const char*>(r.logits.data()), r.logits.size_bytes());
    }
    if (repeat == 0) hash = Sha256Hex(all);
    ASSERT_EQ(Sha256Hex(all), hash) << "repeat " << repeat;
  }
}

}  // namespace
}  // namespace hillstar
