// The GPU's bits are the CPU's: every script of steps runs on both and all logits, errors and pages
// are compared with memcmp. Compiled for the emulated device, on a very small model, and for a GPU,
// on the built-in model besides.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "formats/container_checksum.h"
#include "hillstar/engine.h"
#include "kv/kv_shape.h"
#include "model/tiny_checkpoint_test_files.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

using Logits = std::vector<float>;

EngineOptions OnCpu(const std::string& model) {
  EngineOptions options;
  options.model = model;
  options.device = "cpu";
  options.num_threads = 2;
  options.context_tokens = 512;
  options.max_sequences = 16;
  options.kv_tokens = 4096;
  return options;
}
EngineOptions OnGpu(EngineOptions options, bool eager = false) {
  options.device = "cuda";
  options.cuda_library = HILLSTAR_CUDA_LIBRARY;
  options.eager = eager;
  return options;
}

std::vector<int32_t> Tokens(int64_t seed, int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t((seed * 31 + i * (i % 7 + 3)) % 50));
  return ids;
}

class CudaBits : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    temp_ = new TempFolder;
    WriteTinyModel(temp_->path());
  }
  static void TearDownTestSuite() {
    delete temp_;
    temp_ = nullptr;
  }
  void SetUp() override {
    try {
      Engine::Open(OnGpu(OnCpu(Tiny())));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDevice || HILLSTAR_CUDA_IS_EMULATED) throw;
      GTEST_SKIP() << error.what();
    }
  }
  static std::string Tiny() { return temp_->path().string(); }

  static Logits Append(Sequence& sequence, std::span<const int32_t> ids, LogitsMode mode) {
    const auto logits = sequence.Append(ids, mode);
    return {logits.begin(), logits.end()};
  }

  static TempFolder* temp_;
};
TempFolder* CudaBits::temp_ = nullptr;

void ExpectSame(const Logits& want, std::span<const float> got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  ASSERT_FALSE(want.empty()) << what;
  EXPECT_EQ(std::memcmp(want.data(), got.data(), got.size_bytes()), 0) << what;
}

// A script of steps: an engine's logits of everything it is asked for.
using Script = std::vector<Logits> (*)(Engine& engine);

void ExpectSameScript(const EngineOptions& cpu, Script script, const std::string& what,
                      bool also_eager = true) {
  const std::vector<Logits> want = script(*Engine::Open(cpu));
  for (const bool eager : {false, true}) {
    if (eager && !also_eager) continue;
    const std::vector<Logits> got = script(*Engine::Open(OnGpu(cpu, eager)));
    ASSERT_EQ(want.size(), got.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) {
      ExpectSame(want[i], got[i],
                 what + (eager ? ", eager" : ", by graphs") + ", result " + std::to_string(i));
    }
  }
}

// A prompt with all its logits, then single tokens.
std::vector<Logits> OneSequence(Engine& engine) {
  const auto sequence = engine.NewSequence();
  std::vector<Logits> results;
  const auto ids = Tokens(1, 80);
  const auto all = sequence->Append(std::span(ids).first(66), LogitsMode::kAll);
  results.emplace_back(all.begin(), all.end());
  for (size_t i = 66; i < ids.size(); ++i) {
    const auto one = sequence->Append(std::span(ids).subspan(i, 1), LogitsMode::kLast);
    results.emplace_back(one.begin(), one.end());
  }
  return results;
}

// Sequences of many lengths take steps together, more of them than the tables of one step hold;
// some come and go, so that pages and table rows are used again.
std::vector<Logits> ManySequences(Engine& engine) {
  std::vector<Logits> results;
  std::vector<std::unique_ptr<Sequence>> all;
  std::vector<std::vector<int32_t>> ids;
  for (int64_t i = 0; i < 20; ++i) {
    ids.push_back(Tokens(i, 140));
    all.push_back(engine.NewSequence({.shares_prefixes = i % 2 == 0}));
    all.back()->Append(std::span(ids.back()).first(size_t(1 + 13 * i % 67)), LogitsMode::kNone);
  }
  for (size_t step = 0; step < 6; ++step) {
    std::vector<StepPart> parts;
    const size_t count = std::array<size_t, 6>{1, 2, 3, 5, 9, 16}[step];
    for (size_t p = 0; p < count; ++p) {
      const size_t i = (step * 7 + p) % all.size();
      const size_t at = size_t(all[i]->num_tokens());
      const size_t n = p == 0 && step % 2 == 1 ? 3 : 1;  // one with a piece of a prompt
      parts.push_back({all[i].get(), std::span(ids[i]).subspan(at, n), p % 4 != 3, nullptr});
    }
    std::vector<StepResult> step_results(parts.size());
    engine.Step(parts, step_results);
    for (const StepResult& r : step_results) {
      EXPECT_FALSE(r.error) << r.error->what();
      if (!r.logits.empty()) results.emplace_back(r.logits.begin(), r.logits.end());
    }
    all[step]->Truncate(0);
    all[step]->Append(std::span(ids[step + 6]).first(20), LogitsMode::kNone);
  }
  return results;
}

// Prefixes that are adopted whole and inside a page, a sequence that is cut and goes on otherwise.
std::vector<Logits> Prefixes(Engine& engine) {
  std::vector<Logits> results;
  const auto ids = Tokens(3, 150);
  const auto first = engine.NewSequence(), second = engine.NewSequence();
  const auto add = [&](Sequence& s, std::span<const int32_t> tokens) {
    const auto logits = s.Append(tokens, LogitsMode::kLast);
    results.emplace_back(logits.begin(), logits.end());
  };
  add(*first, ids);
  EXPECT_GE(second->AdoptPrefix(ids), 128);
  add(*second, std::span(ids).subspan(size_t(second->num_tokens())));
  auto other = ids;
  other[100] = (other[100] + 1) % 50;
  EXPECT_GE(second->AdoptPrefix(other), 64);
  add(*second, std::span(other).subspan(size_t(second->num_tokens())));
  first->Truncate(65);
  add(*first, std::span(other).subspan(70, 3));
  return results;
}

TEST_F(CudaBits, EveryWeightAndKvFormat) {
  for (const char* weights : {"w15", "w8", "w4"}) {
    for (const char* format : {"q15", "q8", "fp8"}) {
      EngineOptions options = OnCpu(Tiny());
      options.weights = weights;
      options.kv_format = format;
      ExpectSameScript(options, OneSequence, std::string(weights) + ", " + format);
    }
  }
}

TEST_F(CudaBits, EveryAttentionAndChunk) {
  for (const char* attention : {"auto", "dense", "sparse", "full-list"}) {
    for (const int64_t chunk : {7, 64, 512}) {
      EngineOptions options = OnCpu(Tiny());
      options.attention = attention;
      options.prefill_chunk = chunk;
      ExpectSameScript(options, OneSequence, attention + std::to_string(chunk), chunk == 7);
    }
  }
}

TEST_F(CudaBits, ManySequencesOfManyLengths) {
  for (const char* format : {"q15", "q8", "fp8"}) {
    EngineOptions options = OnCpu(Tiny());
    options.kv_format = format;
    ExpectSameScript(options, ManySequences, format, options.kv_format == "q15");
  }
}

TEST_F(CudaBits, AdoptedAndCutSequences) { ExpectSameScript(OnCpu(Tiny()), Prefixes, "prefixes"); }

TEST_F(CudaBits, PagesAreTheSameBytesAndRestore) {
  const auto ids = Tokens(5, 128);
  const EngineOptions options = OnCpu(Tiny());
  const auto cpu = Engine::Open(options), gpu = Engine::Open(OnGpu(options));
  const auto on_cpu = cpu->NewSequence(), on_gpu = gpu->NewSequence();
  on_cpu->Append(ids, LogitsMode::kNone);
  on_gpu->Append(ids, LogitsMode::kNone);
  std::vector<std::vector<uint8_t>> pages;
  for (int64_t i = 0; i < on_cpu->num_pages(); ++i) {
    std::vector<uint8_t> want(size_t(cpu->page_bytes())), got(want.size());
    on_cpu->CopyPage(i, want);
    on_gpu->CopyPage(i, got);
    EXPECT_EQ(want, got) << "page " << i;
    pages.push_back(want);
  }
  const auto read = [&](int64_t i, std::span<uint8_t> latents, std::span<uint8_t> keys) {
    const uint8_t* bytes = pages[size_t(i)].data();
    std::copy_n(bytes, latents.size(), latents.data());
    std::copy_n(bytes + latents.size(), keys.size(), keys.data());
  };
  const auto restored = gpu->NewSequence({.shares_prefixes = false});
  restored->Restore(ids, read);
  const auto more = Tokens(9, 1);
  ExpectSame(Append(*on_cpu, more, LogitsMode::kLast), Append(*restored, more, LogitsMode::kLast),
             "restored");
}

TEST_F(CudaBits, MtpAndResidualsAreTheSame) {
  EngineOptions options = OnCpu(Tiny());
  const auto ids = Tokens(11, 40);
  std::vector<std::vector<float>> residuals[2];
  std::vector<MtpToken> mtp[2];
  for (const int i : {0, 1}) {
    const auto engine = Engine::Open(i == 0 ? options : OnGpu(options));
    engine->SetResidualTap([&](int64_t, int64_t, int64_t n, const float* values) {
      residuals[i].emplace_back(values, values + n * 72);
    });
    const auto sequence = engine->NewSequence({.keep_hidden = true});
    sequence->Append(ids, LogitsMode::kLast);
    mtp[i] = sequence->MtpArgmax(0);
  }
  EXPECT_EQ(residuals[0], residuals[1]);
  ASSERT_EQ(mtp[0].size(), ids.size() - 1);
  for (size_t i = 0; i < mtp[0].size(); ++i) {
    EXPECT_EQ(mtp[0][i].id, mtp[1][i].id);
    EXPECT_EQ(mtp[0][i].margin, mtp[1][i].margin);
  }
}

TEST_F(CudaBits, TheRouterCannotBeTapped) {
  const auto engine = Engine::Open(OnGpu(OnCpu(Tiny())));
  EXPECT_THROW(engine->SetRouterTap([](int64_t, int64_t, auto, auto) {}), Error);
  engine->SetRouterTap({});
}

// Rows with a scale that is not finite end their own sequence at the same layer and position.
TEST_F(CudaBits, WhatIsNotFiniteEndsItsSequenceAlone) {
  const auto ids = Tokens(5, 64), more = Tokens(6, 1);
  std::string sentences[2];
  Logits logits[2];
  for (const int i : {0, 1}) {
    EngineOptions options = OnCpu(Tiny());
    options.attention = "dense";  // so that every row is read
    const auto engine = Engine::Open(i == 0 ? options : OnGpu(options));
    const auto good = engine->NewSequence({.shares_prefixes = false});
    const auto bad = engine->NewSequence({.shares_prefixes = false});
    good->Append(ids, LogitsMode::kNone);
    bad->Append(ids, LogitsMode::kNone);
    std::vector<uint8_t> page(size_t(engine->page_bytes()));
    bad->CopyPage(0, page);
    const KvShape& shape = engine->kv_shape();
    const float nan = std::nanf("");
    std::memcpy(page.data() + shape.row.page_bytes() + shape.row.latent_part().scale_at, &nan, 4);
    bad->Restore(ids, [&](int64_t, std::span<uint8_t> latents, std::span<uint8_t> keys) {
      std::copy_n(page.data(), latents.size(), latents.data());
      std::copy_n(page.data() + latents.size(), keys.size(), keys.data());
    });
    const StepPart parts[] = {{bad.get(), more, true, nullptr}, {good.get(), more, true, nullptr}};
    StepResult results[2];
    engine->Step(parts, results);
    ASSERT_TRUE(results[0].error);
    EXPECT_EQ(results[0].error->code(), ErrorCode::kNonFinite);
    sentences[i] = results[0].error->what();
    ASSERT_FALSE(results[1].error);
    logits[i].assign(results[1].logits.begin(), results[1].logits.end());
  }
  EXPECT_EQ(sentences[0], sentences[1]);
  ExpectSame(logits[0], logits[1], "the other sequence");
}

// Steps that run ahead of the host find the tokens that steps one by one find, and leave the
// sequences as those do.
std::vector<Logits> GreedyDecoding(Engine& engine) {
  std::vector<Logits> results;
  for (const size_t count : {1, 3, 6}) {
    std::vector<std::unique_ptr<Sequence>> owners;
    std::vector<Sequence*> sequences;
    std::vector<int32_t> next;
    for (size_t i = 0; i < count; ++i) {
      owners.push_back(engine.NewSequence());
      owners.back()->Append(Tokens(int64_t(i), int64_t(50 + 9 * i)), LogitsMode::kNone);
      sequences.push_back(owners.back().get());
      next.push_back(int32_t(7 * i + 1));
    }
    Logits tokens;
    int64_t steps = 0;
    engine.DecodeGreedily(sequences, next, [&](std::span<const int32_t> ids) {
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      return ++steps < 20;
    });
    results.push_back(tokens);
    for (Sequence* s : sequences) {
      results.emplace_back(s->ids().begin(), s->ids().end());
      const auto logits = s->Append(Tokens(4, 2), LogitsMode::kLast);
      results.emplace_back(logits.begin(), logits.end());
    }
  }
  return results;
}

TEST_F(CudaBits, GreedyDecodingRunsAhead) {
  ExpectSameScript(OnCpu(Tiny()), GreedyDecoding, "greedy");
}

TEST_F(CudaBits, GreedyDecodingEndsWhereTheContextDoes) {
  for (const int i : {0, 1}) {
    const auto engine = Engine::Open(i == 0 ? OnCpu(Tiny()) : OnGpu(OnCpu(Tiny())));
    const auto sequence = engine->NewSequence();
    sequence->Append(Tokens(2, 505), LogitsMode::kNone);
    Sequence* const sequences[] = {sequence.get()};
    const int32_t next = 3;
    int64_t steps = 0;
    try {
      engine->DecodeGreedily(sequences, {&next, 1}, [&](std::span<const int32_t>) {
        ++steps;
        return true;
      });
      ADD_FAILURE() << "the context has 512 tokens";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBudget) << error.what();
    }
    EXPECT_EQ(steps, 7);
    EXPECT_EQ(sequence->num_tokens(), 512);
  }
}

// Sequences of mixed lengths, some with pieces of prompts: however often a batch is repeated, in
// the pages of other sequences and in other slots, its logits have one hash, the CPU's.
std::string HashOfABatch(Engine& engine, int repeat) {
  constexpr size_t kSequences = HILLSTAR_CUDA_IS_EMULATED ? 4 : 13;
  std::vector<std::unique_ptr<Sequence>> owners(kSequences);
  std::vector<std::vector<int32_t>> ids;
  for (size_t i = 0; i < kSequences; ++i) ids.push_back(Tokens(int64_t(i), 200));
  for (size_t n = 0; n < kSequences; ++n) {
    const size_t i = (n + size_t(repeat) * 5) % kSequences;
    owners[i] = engine.NewSequence({.shares_prefixes = repeat % 2 == 1});
    owners[i]->Append(std::span(ids[i]).first(1 + 29 * i % 150), LogitsMode::kNone);
  }
  std::vector<std::string> bytes(kSequences);
  for (size_t step = 0; step < 3; ++step) {
    std::vector<StepPart> parts;
    for (size_t n = 0; n < kSequences; ++n) {
      const size_t i = (n + size_t(repeat) + step) % kSequences;
      const auto at = size_t(owners[i]->num_tokens());
      const size_t count = i % 6 == step ? 11 : 1;
      parts.push_back({owners[i].get(), std::span(ids[i]).subspan(at, count), true, nullptr});
    }
    std::vector<StepResult> results(kSequences);
    engine.Step(parts, results);
    for (size_t n = 0; n < kSequences; ++n) {
      EXPECT_FALSE(results[n].error);
      const std::span<const float> logits = results[n].logits;
      bytes[(n + size_t(repeat) + step) % kSequences].append(
          reinterpret_cast<const char*>(logits.data()), logits.size_bytes());
    }
  }
  std::string all;
  for (const std::string& b : bytes) all += b;
  return Sha256Hex(all);
}

TEST_F(CudaBits, AHundredRepeatsOfABatchHaveOneHash) {
  const std::string want = HashOfABatch(*Engine::Open(OnCpu(Tiny())), 0);
  for (const bool eager : {false, true}) {
    if (eager && HILLSTAR_CUDA_IS_EMULATED) continue;  // for the sake of time
    const auto engine = Engine::Open(OnGpu(OnCpu(Tiny()), eager));
    for (int repeat = 0; repeat < (HILLSTAR_CUDA_IS_EMULATED ? 3 : 100); ++repeat) {
      ASSERT_EQ(HashOfABatch(*engine, repeat), want) << "repeat " << repeat << ", eager " << eager;
    }
  }
}

TEST_F(CudaBits, GraphsAreUsedAgain) {
  const auto engine = Engine::Open(OnGpu(OnCpu(Tiny())));
  const auto sequence = engine->NewSequence();
  const auto ids = Tokens(1, 40);
  sequence->Append(std::span(ids).first(20), LogitsMode::kLast);
  Logits first;
  for (int repeat = 0; repeat < 20; ++repeat) {
    sequence->Truncate(20);
    Logits all;
    for (size_t i = 20; i < ids.size(); ++i) {
      const Logits one = Append(*sequence, std::span(ids).subspan(i, 1), LogitsMode::kLast);
      all.insert(all.end(), one.begin(), one.end());
    }
    if (repeat == 0) first = all;
    ExpectSame(first, all, "repeat " + std::to_string(repeat));
  }
}

}  // namespace
}  // namespace hillstar
