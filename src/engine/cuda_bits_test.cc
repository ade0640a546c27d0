// The GPU's bits are the CPU's: every script of steps runs on both and all logits, errors and pages
// are compared with memcmp. Compiled for the emulated device, on a very small model, and for a GPU,
// on the built-in model besides.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/continuous_batch.h"
#include "engine/sampler.h"
#include "formats/container_checksum.h"
#include "hillstar/engine.h"
#include "kv/kv_shape.h"
#include "model/config.h"
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

  static void ExpectBadRowsEndTheirSequence(bool draws);

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

// What was counted, as far as it is the same on every device.
void ExpectSameCounts(Engine& cpu, Engine& gpu, const std::string& what) {
  const EngineActivity want = cpu.activity(), got = gpu.activity();
  EXPECT_GT(want.tokens, 0u) << what;
  EXPECT_EQ(want.tokens, got.tokens) << what;
  EXPECT_EQ(want.steps, got.steps) << what;
  EXPECT_EQ(want.moe_layers, got.moe_layers) << what;
  EXPECT_EQ(want.expert_uses, got.expert_uses) << what;
}

// also_counts: not where decoding runs ahead, which computes a step that nobody takes.
void ExpectSameScript(const EngineOptions& cpu, Script script, const std::string& what,
                      bool also_eager = true, bool also_counts = true) {
  const auto on_cpu = Engine::Open(cpu);
  const std::vector<Logits> want = script(*on_cpu);
  for (const bool eager : {false, true}) {
    if (eager && !also_eager) continue;
    const auto on_gpu = Engine::Open(OnGpu(cpu, eager));
    const std::vector<Logits> got = script(*on_gpu);
    if (also_counts) ExpectSameCounts(*on_cpu, *on_gpu, what);
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

// Makes the sequence's first row one that no step can be computed from.
void SpoilFirstRow(const Engine& engine, Sequence& sequence) {
  std::vector<uint8_t> page(size_t(engine.page_bytes()));
  sequence.CopyPage(0, page);
  const KvShape& shape = engine.kv_shape();
  const float nan = std::nanf("");
  std::memcpy(page.data() + shape.row.page_bytes() + shape.row.latent_part().scale_at, &nan, 4);
  const std::vector<int32_t> ids(sequence.ids().begin(), sequence.ids().end());
  sequence.Restore(ids, [&](int64_t, std::span<uint8_t> latents, std::span<uint8_t> keys) {
    std::copy_n(page.data(), latents.size(), latents.data());
    std::copy_n(page.data() + latents.size(), keys.size(), keys.data());
  });
}

// Rows with a scale that is not finite end their own sequence at the same layer and position.
void CudaBits::ExpectBadRowsEndTheirSequence(bool draws) {
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
    SpoilFirstRow(*engine, *bad);
    const SamplingParams sampling;
    StepPart parts[] = {{bad.get(), more, true, nullptr}, {good.get(), more, true, nullptr}};
    StepResult results[2];
    if (draws) {
      for (StepPart& part : parts) part.wants_logits = false, part.draw = &sampling;
    }
    engine->Step(parts, results);
    ASSERT_TRUE(results[0].error);
    EXPECT_EQ(results[0].error->code(), ErrorCode::kNonFinite);
    EXPECT_EQ(results[0].drawn, -1);
    sentences[i] = results[0].error->what();
    ASSERT_FALSE(results[1].error);
    logits[i].assign(results[1].logits.begin(), results[1].logits.end());
    if (draws) logits[i] = {float(results[1].drawn)};
  }
  EXPECT_EQ(sentences[0], sentences[1]);
  ExpectSame(logits[0], logits[1], "the other sequence");
}

TEST_F(CudaBits, WhatIsNotFiniteEndsItsSequenceAlone) {
  ExpectBadRowsEndTheirSequence(/*draws=*/false);
  ExpectBadRowsEndTheirSequence(/*draws=*/true);
}

// How tokens are drawn, of many kinds.
SamplingParams Sampling(size_t i) {
  const SamplingParams all[] = {{.temperature = 0},
                                {.temperature = 1, .seed = 1},
                                {.temperature = 0.7, .top_p = 0.9, .seed = 2},
                                {.temperature = 2, .top_k = 7, .seed = 3},
                                {.temperature = 5, .top_p = 0.8, .top_k = 20, .seed = 4},
                                {.temperature = 1, .min_p = 0.2, .seed = 5},
                                {.temperature = 100, .seed = 6}};
  return all[i % std::size(all)];
}

// Steps that run ahead of the host draw the tokens that steps one by one draw, greedily or each
// sequence in its own way, and leave the sequences as those do.
std::vector<Logits> Decoding(Engine& engine, bool is_greedy) {
  std::vector<Logits> results;
  for (const size_t count : {1, 3, 7}) {
    std::vector<std::unique_ptr<Sequence>> owners;
    std::vector<DecodePart> parts;
    for (size_t i = 0; i < count; ++i) {
      owners.push_back(engine.NewSequence());
      owners.back()->Append(Tokens(int64_t(i), int64_t(50 + 9 * i)), LogitsMode::kNone);
      const size_t which = count == 1 ? 4 : i;
      parts.push_back({owners.back().get(), int32_t(7 * i + 1), Sampling(is_greedy ? 0 : which)});
    }
    Logits tokens;
    int64_t steps = 0;
    engine.Decode(parts, [&](std::span<const int32_t> ids) {
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      return ++steps < 12;
    });
    results.push_back(tokens);
    for (const auto& s : owners) {
      results.emplace_back(s->ids().begin(), s->ids().end());
      const auto logits = s->Append(Tokens(4, 2), LogitsMode::kLast);
      results.emplace_back(logits.begin(), logits.end());
    }
  }
  return results;
}

TEST_F(CudaBits, GreedyDecodingRunsAhead) {
  ExpectSameScript(
      OnCpu(Tiny()), [](Engine& engine) { return Decoding(engine, true); }, "greedy",
      /*also_eager=*/true, /*also_counts=*/false);
}

TEST_F(CudaBits, DrawnDecodingRunsAhead) {
  ExpectSameScript(
      OnCpu(Tiny()), [](Engine& engine) { return Decoding(engine, false); }, "drawn",
      /*also_eager=*/true, /*also_counts=*/false);
}

// The step that was begun ahead is counted where it was computed.
TEST_F(CudaBits, DecodingCountsTheStepThatNobodyTakes) {
  const auto cpu = Engine::Open(OnCpu(Tiny())), gpu = Engine::Open(OnGpu(OnCpu(Tiny())));
  for (Engine* engine : {cpu.get(), gpu.get()}) {
    const auto a = engine->NewSequence(), b = engine->NewSequence();
    a->Append(Tokens(2, 20), LogitsMode::kNone);
    b->Append(Tokens(3, 30), LogitsMode::kNone);
    const DecodePart parts[] = {{a.get(), 3}, {b.get(), 4}};
    const int64_t steps = engine == cpu.get() ? 8 : 7;
    int64_t told = 0;
    engine->Decode(parts, [&](std::span<const int32_t>) { return ++told < steps; });
    EXPECT_EQ(told, steps);
  }
  ExpectSameCounts(*cpu, *gpu, "one step more");
}

// Decoding alone against a sampler of the host over the logits of one token after another.
TEST_F(CudaBits, DecodingDrawsWhatASamplerDraws) {
  for (const int e : {0, 1}) {
    const auto engine = Engine::Open(e == 0 ? OnCpu(Tiny()) : OnGpu(OnCpu(Tiny())));
    for (size_t i = 0; i < 7; ++i) {
      const auto by_logits = engine->NewSequence(), by_decode = engine->NewSequence();
      const auto ids = Tokens(int64_t(i), 30);
      Sampler sampler(Sampling(i), {}, engine->config().vocab_size);
      std::vector<int32_t> want, got;
      auto logits = by_logits->Append(ids, LogitsMode::kLast);
      for (int step = 0; step < 15; ++step) {
        want.push_back(sampler.Draw(logits, by_logits->num_tokens()));
        logits = by_logits->Append(std::span(&want.back(), 1), LogitsMode::kLast);
      }
      by_decode->Append(ids, LogitsMode::kNone);
      got.push_back(want[0]);
      by_decode->Decode(want[0], Sampling(i), [&](int32_t id) {
        got.push_back(id);
        return got.size() < want.size();
      });
      EXPECT_EQ(want, got) << (e == 0 ? "on the CPU, " : "on the GPU, ") << i;
    }
  }
}

// Steps whose parts want logits, a token, or nothing, in pieces of prompts and single tokens.
std::vector<Logits> MixedDraws(Engine& engine) {
  std::vector<Logits> results;
  std::vector<std::unique_ptr<Sequence>> all;
  std::vector<std::vector<int32_t>> ids;
  for (int64_t i = 0; i < 12; ++i) {
    ids.push_back(Tokens(i, 140));
    all.push_back(engine.NewSequence({.shares_prefixes = false}));
    all.back()->Append(std::span(ids.back()).first(size_t(1 + 13 * i % 67)), LogitsMode::kNone);
  }
  std::vector<SamplingParams> samplings;
  for (size_t i = 0; i < all.size(); ++i) samplings.push_back(Sampling(i));
  for (size_t step = 0; step < 8; ++step) {
    std::vector<StepPart> parts;
    for (size_t p = 0; p < 1 + (step * 5) % 12; ++p) {
      const size_t i = (step * 7 + p) % all.size();
      const auto at = size_t(all[i]->num_tokens());
      const size_t n = step % 3 == 1 && p % 4 == 1 ? 5 : 1;  // some with pieces of a prompt
      const size_t wants = step % 2 == 0 ? 0 : p % 3;
      parts.push_back({all[i].get(), std::span(ids[i]).subspan(at, n), wants == 1, nullptr,
                       wants == 0 ? &samplings[(i + step) % 12] : nullptr});
    }
    std::vector<StepResult> step_results(parts.size());
    engine.Step(parts, step_results);
    for (size_t p = 0; p < parts.size(); ++p) {
      const StepResult& r = step_results[p];
      EXPECT_FALSE(r.error) << r.error->what();
      EXPECT_EQ(r.drawn >= 0, parts[p].draw != nullptr);
      EXPECT_EQ(!r.logits.empty(), parts[p].wants_logits);
      if (!r.logits.empty()) results.emplace_back(r.logits.begin(), r.logits.end());
      if (parts[p].draw) results.push_back({float(r.drawn)});
    }
  }
  return results;
}

TEST_F(CudaBits, StepsDrawTokensBesideLogitsAndPrompts) {
  ExpectSameScript(OnCpu(Tiny()), MixedDraws, "mixed draws");
}

// Requests of all kinds, with penalties and without, through continuous batching.
std::vector<Logits> Batching(Engine& engine) {
  std::vector<Logits> results(10);
  ContinuousBatch batch(engine, {3, ""});
  for (size_t i = 0; i < results.size(); ++i) {
    BatchRequest request;
    request.prompt_ids = Tokens(int64_t(i), int64_t(2 + 11 * i % 40));
    request.max_tokens = 12;
    request.sampling = Sampling(i);
    if (i % 4 == 3) request.sampling.frequency_penalty = 0.5;
    request.on_token = [&results, i](int32_t id) {
      results[i].push_back(float(id));
      return true;
    };
    batch.Submit(std::move(request));
    batch.Step();
  }
  while (batch.Step()) {
  }
  for (const Logits& ids : results) EXPECT_EQ(ids.size(), 12u);
  return results;
}

TEST_F(CudaBits, ContinuousBatchesGiveTheSameTokens) {
  ExpectSameScript(OnCpu(Tiny()), Batching, "batches");
}

TEST_F(CudaBits, DecodingEndsWhereTheContextDoes) {
  for (const int i : {0, 1}) {
    const auto engine = Engine::Open(i == 0 ? OnCpu(Tiny()) : OnGpu(OnCpu(Tiny())));
    const auto sequence = engine->NewSequence();
    sequence->Append(Tokens(2, 505), LogitsMode::kNone);
    const DecodePart part{sequence.get(), 3};
    int64_t steps = 0;
    try {
      engine->Decode({&part, 1}, [&](std::span<const int32_t>) {
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

// Nor pages that a step ahead would have taken.
TEST_F(CudaBits, DecodingKeepsNoPagesOfStepsThatAreNotTaken) {
  for (const bool throws : {false, true}) {
    for (const bool gpu : {false, true}) {
      SCOPED_TRACE(std::string(gpu ? "GPU" : "CPU") + (throws ? ", throws" : ""));
      EngineOptions options = OnCpu(Tiny());
      options.context_tokens = 128;
      options.kv_tokens = 3 * 64;  // of two sequences with a page each
      const auto engine = Engine::Open(gpu ? OnGpu(options) : options);
      const auto a = engine->NewSequence({.shares_prefixes = false});
      const auto b = engine->NewSequence({.shares_prefixes = false});
      a->Append(Tokens(2, 63), LogitsMode::kNone);
      b->Append(Tokens(3, 63), LogitsMode::kNone);
      const DecodePart parts[] = {{a.get(), 3}, {b.get(), 4}};
      const auto on_next = [&](std::span<const int32_t>) {
        if (throws) throw std::runtime_error("no more");
        return false;
      };
      try {
        engine->Decode(parts, on_next);
      } catch (const std::runtime_error&) {
      }
      EXPECT_EQ(engine->kv_use().available_pages, 1);
      EXPECT_NO_THROW(b->Append(Tokens(4, 2), LogitsMode::kNone));
    }
  }
}

// The tokens that are drawn behind `next` until goes_on, which sees all of them, says no.
std::vector<int32_t> DecodeSome(Sequence& sequence, int32_t next,
                                const std::function<bool(const std::vector<int32_t>& ids)>& goes_on,
                                const std::atomic<bool>* cancel = nullptr) {
  std::vector<int32_t> ids;
  const auto on_next = [&](int32_t id) {
    ids.push_back(id);
    return goes_on(ids);
  };
  sequence.Decode(next, Sampling(2), on_next, cancel);
  return ids;
}

// It goes on afterwards as if the cancelled call had not been.
TEST_F(CudaBits, DecodingEndsWhenItIsCancelled) {
  for (const int i : {0, 1}) {
    const auto engine = Engine::Open(i == 0 ? OnCpu(Tiny()) : OnGpu(OnCpu(Tiny())));
    const auto sequence = engine->NewSequence();
    sequence->Append(Tokens(2, 20), LogitsMode::kNone);
    std::atomic<bool> cancel{false};
    const auto decode = [&](int32_t next, int64_t steps) {
      return DecodeSome(
          *sequence, next,
          [&](const std::vector<int32_t>& ids) {
            if (steps < 0) cancel = ids.size() == 3;
            return int64_t(ids.size()) != steps;
          },
          &cancel);
    };
    const std::vector<int32_t> want = decode(3, 6);
    sequence->Truncate(20);
    EXPECT_THROW(decode(3, -1), Error);
    cancel = false;
    EXPECT_EQ(sequence->num_tokens(), 23);
    const std::vector<int32_t> more = decode(want[2], 3);
    EXPECT_EQ(more.back(), want.back());
    cancel = true;
    EXPECT_THROW(decode(3, 1), Error);
    EXPECT_EQ(sequence->num_tokens(), 26);
  }
}

// What can be wrong with a part of a decoding.
enum class Fault { kNone, kBadId, kFull, kSpoilt, kCancelled, kCancelledLater };

// Decodes one sequence for each fault: the error's sentence, then how many tokens they hold.
std::string DecodingWith(Engine& engine, std::span<const Fault> faults) {
  std::atomic<bool> now{true}, later{false};
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<DecodePart> parts;
  for (const Fault fault : faults) {
    owners.push_back(engine.NewSequence({.shares_prefixes = false}));
    Sequence& sequence = *owners.back();
    // The full one has room for one token: it is full when another is cancelled.
    sequence.Append(Tokens(3, fault == Fault::kFull ? 31 : 20), LogitsMode::kNone);
    if (fault == Fault::kSpoilt) SpoilFirstRow(engine, sequence);
    parts.push_back({&sequence, fault == Fault::kBadId ? -1 : 3});
    if (fault == Fault::kCancelled) parts.back().cancel = &now;
    if (fault == Fault::kCancelledLater) parts.back().cancel = &later;
  }
  std::string what = "no error";
  try {
    engine.Decode(parts, [&](std::span<const int32_t>) { return later = true; });
  } catch (const Error& error) {
    what = error.what();
  }
  for (const auto& sequence : owners) what += fmt::format(" {}", sequence->num_tokens());
  return what;
}

// Whatever is wrong with two of three sequences.
TEST_F(CudaBits, DecodingNamesTheFirstError) {
  EngineOptions options = OnCpu(Tiny());
  options.attention = "dense";  // so that every row is read
  options.context_tokens = 32;
  const auto cpu = Engine::Open(options), gpu = Engine::Open(OnGpu(options));
  constexpr Fault kFaults[] = {Fault::kBadId, Fault::kFull, Fault::kSpoilt, Fault::kCancelled,
                               Fault::kCancelledLater};
  for (const Fault first : kFaults) {
    for (const Fault second : kFaults) {
      const Fault faults[] = {first, Fault::kNone, second};
      const std::string want = DecodingWith(*cpu, faults);
      EXPECT_EQ(DecodingWith(*gpu, faults), want) << int(first) << ", " << int(second);
    }
  }
  const Fault full[] = {Fault::kFull, Fault::kCancelledLater};
  EXPECT_EQ(DecodingWith(*gpu, full), "33 tokens do not fit the context of 32 (--context) 32 21");
}

// No step is left under way whose tokens another call would take for its own.
TEST_F(CudaBits, DecodingEndsWithWhatItsListenerThrows) {
  for (const int i : {0, 1}) {
    const auto engine = Engine::Open(i == 0 ? OnCpu(Tiny()) : OnGpu(OnCpu(Tiny())));
    const auto sequence = engine->NewSequence();
    sequence->Append(Tokens(2, 20), LogitsMode::kNone);
    const auto six = [](const std::vector<int32_t>& ids) { return ids.size() < 6; };
    const std::vector<int32_t> want = DecodeSome(*sequence, 3, six);
    sequence->Truncate(20);
    const auto throws = [](const std::vector<int32_t>& ids) -> bool {
      if (ids.size() == 2) throw std::runtime_error("enough");
      return true;
    };
    EXPECT_THROW(DecodeSome(*sequence, 3, throws), std::runtime_error);
    sequence->Truncate(20);
    EXPECT_EQ(DecodeSome(*sequence, 3, six), want);
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

// What compute-sanitizer's racecheck runs, for which the others take too long (tools/gpu.sh).
TEST_F(CudaBits, Sanitized) { ExpectSameScript(OnCpu(Tiny()), OneSequence, "one sequence"); }

// Its stages, in the shares of its kernels, are those of all steps; it counts for nothing else.
TEST_F(CudaBits, AProfileTellsTheStagesAndCountsNowhere) {
  const auto cpu = Engine::Open(OnCpu(Tiny())), gpu = Engine::Open(OnGpu(OnCpu(Tiny())));
  const auto on_cpu = cpu->NewSequence(), on_gpu = gpu->NewSequence();
  on_cpu->Append(Tokens(1, 40), LogitsMode::kNone);
  on_gpu->Append(Tokens(1, 40), LogitsMode::kNone);
  const EngineActivity before = gpu->activity();
  EXPECT_TRUE(before.stages.empty());
  EXPECT_GT(before.step_seconds, 0);
  double router = 0, all = 0;
  for (const KernelTime& kernel : gpu->ProfileStep(*on_gpu, 1)) {
    EXPECT_EQ(kernel.stage == Stage::kHead, kernel.layer < 0) << kernel.name;
    router += kernel.stage == Stage::kRouter ? kernel.microseconds : 0;
    all += kernel.microseconds;
  }
  const EngineActivity after = gpu->activity();
  EXPECT_EQ(after.step_seconds, before.step_seconds);
  ASSERT_EQ(after.stages.size(), kNumStages);
  double sum = 0;
  for (size_t i = 0; i < kNumStages; ++i) {
    EXPECT_EQ(after.stages[i].name, kStageNames[i]);
    EXPECT_EQ(after.stages[i].seconds > 0, Stage(i) != Stage::kDraw) << kStageNames[i];
    sum += after.stages[i].seconds;
  }
  EXPECT_NEAR(sum / after.step_seconds, 1, 1e-9);
  EXPECT_NEAR(after.stages[size_t(Stage::kRouter)].seconds / sum, router / all, 1e-9);
  on_cpu->Append(Tokens(4, 3), LogitsMode::kLast);
  on_gpu->Append(Tokens(4, 3), LogitsMode::kLast);
  ExpectSameCounts(*cpu, *gpu, "after a profile");
}

TEST_F(CudaBits, EveryKernelOfAStepSaysWhatItMoves) {
  for (const char* format : {"q15", "q8", "fp8"}) {
    EngineOptions options = OnCpu(Tiny());
    options.kv_format = format;
    const auto engine = Engine::Open(OnGpu(options));
    const auto sequence = engine->NewSequence();
    double before = 0;
    const auto ids = Tokens(1, 140);
    for (const size_t context : {20, 140}) {
      const auto begin = size_t(sequence->num_tokens());
      sequence->Append(std::span(ids).subspan(begin, context - begin), LogitsMode::kNone);
      double moved = 0, products = 0;
      for (const KernelTime& kernel : engine->ProfileStep(*sequence, 1)) {
        EXPECT_GT(kernel.bytes, 0) << kernel.name << ", " << format;
        moved += kernel.bytes;
        products += kernel.products;
      }
      EXPECT_GT(moved, before) << format << ": more keys are more bytes";
      EXPECT_GT(products, 0) << format;
      before = moved;
    }
  }
}

}  // namespace
}  // namespace hillstar
