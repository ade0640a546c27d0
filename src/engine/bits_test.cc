// Same bits wherever and however: every SIMD level, thread count and cut of the prompt gives the
// logits of every other, compared with memcmp. Runs on the built-in model.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "hillstar/engine.h"
#include "model/config.h"
#include "ops/kernels.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

// Long enough that the indexer leaves keys out (index_topk is 256) and that pages, splits and
// chunks of 64 end inside.
constexpr size_t kLongTokens = 330;
// The reference kernels take about a second for these.
constexpr size_t kShortTokens = 70;

EngineOptions Options(const std::string& simd, int threads, int64_t chunk) {
  EngineOptions options;
  options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
  options.simd = simd;
  options.num_threads = threads;
  options.prefill_chunk = chunk;
  return options;
}

// The README's text as tokens: any text will do.
std::vector<int32_t> Tokens(const Engine& engine, size_t n) {
  std::ifstream file(std::string(HILLSTAR_SOURCE_DIR) + "/README.md");
  std::stringstream text;
  text << file.rdbuf();
  std::vector<int32_t> ids = engine.tokenizer().Encode(text.str(), AddedTokens::kAsText);
  EXPECT_GE(ids.size(), n);
  ids.resize(n);
  return ids;
}

std::vector<float> AllLogits(const EngineOptions& options, size_t n) {
  const auto engine = Engine::Open(options);
  const auto sequence = engine->NewSequence();
  const auto logits = sequence->Append(Tokens(*engine, n), LogitsMode::kAll);
  return {logits.begin(), logits.end()};
}

void ExpectSameBits(const std::vector<float>& want, std::span<const float> got,
                    const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0) << what;
}

TEST(Bits, EveryLevelEqualsTheReference) {
  const std::vector<float> want = AllLogits(Options("reference", 2, 512), kShortTokens);
  for (const CpuKernels* kernels : AvailableKernels()) {
    ExpectSameBits(want, AllLogits(Options(kernels->level, 2, 512), kShortTokens), kernels->level);
  }
}

// The levels' kernels meet every shape in attention_test.cc and forward_test.cc; here a whole
// model.
TEST(Bits, EveryKvFormatGivesTheSameBitsAtTwoLevels) {
  const auto levels = AvailableKernels();
  const std::string other = levels.size() > 2 ? levels[1]->level : "auto";
  std::vector<std::vector<float>> results;
  for (const char* format : {"q15", "q8", "fp8"}) {
    EngineOptions options = Options("auto", 2, 512);
    options.kv_format = format;
    results.push_back(AllLogits(options, kLongTokens));
    options.simd = other;
    options.prefill_chunk = 65;
    ExpectSameBits(results.back(), AllLogits(options, kLongTokens), format);
  }
  EXPECT_NE(results[0], results[1]);
  EXPECT_NE(results[0], results[2]);
  EXPECT_NE(results[1], results[2]);
}

TEST(Bits, LevelsAgreeBeyondTheIndexersTopK) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const std::set<std::string> slow = {"reference", "generic"};  // minutes under the sanitizers
#else
  const std::set<std::string> slow = {"reference"};
#endif
  const std::vector<float> want = AllLogits(Options("auto", 2, 512), kLongTokens);
  for (const CpuKernels* kernels : AvailableKernels()) {
    const std::string level = kernels->level;
    if (slow.contains(level)) continue;
    ExpectSameBits(want, AllLogits(Options(level, 2, 512), kLongTokens), level);
  }
}

TEST(Bits, ThreadsAndChunksChangeNothing) {
  const std::vector<float> want = AllLogits(Options("auto", 1, 512), kLongTokens);
  for (int threads : {1, 2, 5}) {
    for (int64_t chunk : {1, 63, 64, 65, 512}) {
      ExpectSameBits(want, AllLogits(Options("auto", threads, chunk), kLongTokens),
                     std::to_string(threads) + " threads, chunks of " + std::to_string(chunk));
    }
  }
}

TEST(Bits, DecodingEqualsPrefillAndSlotReuseLeavesNothingBehind) {
  const auto engine = Engine::Open(Options("auto", 2, 512));
  const std::vector<int32_t> ids = Tokens(*engine, kLongTokens);
  const size_t vocab = size_t(engine->config().vocab_size);
  const auto whole = engine->NewSequence();
  const auto all = whole->Append(ids, LogitsMode::kAll);
  const std::vector<float> want(all.begin(), all.end());

  // The same slot again, after a longer sequence, token by token.
  whole->Truncate(0);
  for (size_t t = 0; t < ids.size(); ++t) {
    const auto logits = whole->Append(std::span(ids).subspan(t, 1), LogitsMode::kLast);
    ASSERT_EQ(std::memcmp(want.data() + t * vocab, logits.data(), vocab * sizeof(float)), 0)
        << "position " << t;
  }
  // A prefix kept, the rest computed again; the last layer skips what nobody asked for.
  for (size_t prefix : {size_t{1}, size_t{64}, size_t{200}, ids.size() - 1}) {
    whole->Truncate(int64_t(prefix));
    const auto logits = whole->Append(std::span(ids).subspan(prefix), LogitsMode::kLast);
    EXPECT_EQ(
        std::memcmp(want.data() + (ids.size() - 1) * vocab, logits.data(), vocab * sizeof(float)),
        0)
        << "prefix " << prefix;
  }
}

TEST(Bits, ACancelledPromptLeavesNothingBehind) {
  const auto engine = Engine::Open(Options("auto", 2, 128));
  const std::vector<int32_t> ids = Tokens(*engine, kLongTokens);
  const auto fresh = engine->NewSequence();
  const auto logits = fresh->Append(ids, LogitsMode::kLast);
  const std::vector<float> want(logits.begin(), logits.end());

  const auto sequence = engine->NewSequence();
  std::atomic<bool> cancel{false};
  int64_t layers_seen = 0;
  engine->SetResidualTap([&](int64_t, int64_t, int64_t, const float*) {
    if (++layers_seen == 12) cancel = true;  // inside the second chunk
  });
  try {
    sequence->Append(ids, LogitsMode::kLast, &cancel);
    FAIL() << "was not cancelled";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(sequence->num_tokens(), 0);
  engine->SetResidualTap({});
  ExpectSameBits(want, sequence->Append(ids, LogitsMode::kLast), "after a cancelled prompt");
}

TEST(Bits, AHundredRepeatsAreOne) {
  const auto engine = Engine::Open(Options("auto", 2, 512));
  const std::vector<int32_t> ids = Tokens(*engine, kShortTokens);
  const auto sequence = engine->NewSequence();
  const auto first = sequence->Append(ids, LogitsMode::kLast);
  const std::vector<float> want(first.begin(), first.end());
  for (int i = 0; i < 100; ++i) {
    sequence->Truncate(0);
    ExpectSameBits(want, sequence->Append(ids, LogitsMode::kLast), std::to_string(i));
  }
}

}  // namespace
}  // namespace hillstar
