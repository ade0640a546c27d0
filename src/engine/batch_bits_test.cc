// A sequence's bits do not depend on who shares its steps, its pages or its engine: logits of one
// request alone against the same inside batches, after prefix hits, in reused pages, restored from
// saved pages. All by memcmp, on the built-in model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "hillstar/engine.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

using Logits = std::vector<float>;

class BatchBits : public testing::Test {
 protected:
  static constexpr int64_t kLongest = 8192;

  static void SetUpTestSuite() {
    EngineOptions options;
    options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
    options.num_threads = 2;
    options.max_sequences = 64;
    options.context_tokens = 2 * kLongest;
    options.load_mtp = false;
    engine_ = Engine::Open(options).release();
    std::ifstream file(std::string(HILLSTAR_SOURCE_DIR) + "/docs/numerics.md");
    std::stringstream text;
    text << file.rdbuf();
    text_ = new std::vector<int32_t>(engine_->tokenizer().Encode(text.str(), AddedTokens::kAsText));
  }
  static void TearDownTestSuite() {
    delete engine_;
    delete text_;
  }

  // n tokens of a text, from `first` on; goes round where the text is short.
  static std::vector<int32_t> Tokens(size_t first, size_t n) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < n; ++i) ids.push_back((*text_)[(first + i) % text_->size()]);
    return ids;
  }
  static std::unique_ptr<Sequence> New() {
    return engine_->NewSequence({.shares_prefixes = false});
  }
  // The logits behind the last of `ids`, computed alone.
  static Logits Alone(const std::vector<int32_t>& ids) {
    const auto logits = New()->Append(ids, LogitsMode::kLast);
    return {logits.begin(), logits.end()};
  }
  static bool Same(std::span<const float> a, const Logits& b) {
    if (a.empty() || b.empty()) return a.empty() && b.empty();
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  }
  // One step of a token for each sequence.
  static std::vector<StepResult> StepAll(const std::vector<Sequence*>& sequences,
                                         const std::vector<int32_t>& next) {
    std::vector<StepPart> parts;
    for (size_t i = 0; i < sequences.size(); ++i) {
      parts.push_back({sequences[i], std::span(next).subspan(i, 1), true, nullptr});
    }
    std::vector<StepResult> results(parts.size());
    engine_->Step(parts, results);
    return results;
  }

  static Engine* engine_;
  static std::vector<int32_t>* text_;
};
Engine* BatchBits::engine_ = nullptr;
std::vector<int32_t>* BatchBits::text_ = nullptr;

TEST_F(BatchBits, AnyBatchAnySlotAnyNeighbours) {
  constexpr size_t kPrompt = 300;  // beyond index_topk
  const std::vector<int32_t> ids = Tokens(0, kPrompt + 1);
  const Logits want = Alone(ids);
  for (const size_t size : {size_t{2}, size_t{3}, size_t{7}, size_t{8}, size_t{9}, size_t{64}}) {
    for (const size_t slot : {size_t{0}, size / 2, size - 1}) {
      std::vector<std::unique_ptr<Sequence>> owners;
      std::vector<Sequence*> sequences;
      std::vector<int32_t> next;
      for (size_t i = 0; i < size; ++i) {
        owners.push_back(New());
        const size_t length = i == slot ? kPrompt : 1 + (i * 29 + size) % 90;
        const std::vector<int32_t> mine = i == slot ? ids : Tokens(7 * i + size, length + 1);
        owners.back()->Append(std::span(mine).first(length), LogitsMode::kNone);
        sequences.push_back(owners.back().get());
        next.push_back(mine[length]);
      }
      const auto results = StepAll(sequences, next);
      EXPECT_TRUE(Same(results[slot].logits, want)) << size << " sequences, slot " << slot;
    }
  }
}

TEST_F(BatchBits, LengthsAtPageBoundariesAndFarApartInOneBatch) {
  const std::vector<size_t> lengths = {1, 62, 63, 64, 65, 126, 127, 128, 129, size_t{kLongest} - 1};
  std::vector<std::unique_ptr<Sequence>> owners;
  std::vector<Sequence*> sequences;
  std::vector<int32_t> next;
  std::vector<Logits> want;
  for (size_t length : lengths) {
    const std::vector<int32_t> ids = Tokens(length, length + 2);
    owners.push_back(New());
    const auto logits = owners.back()->Append(ids, LogitsMode::kLast);
    want.emplace_back(logits.begin(), logits.end());
    owners.back()->Truncate(int64_t(length));
    sequences.push_back(owners.back().get());
  }
  for (size_t step = 0; step < 2; ++step) {
    next.clear();
    for (size_t length : lengths) next.push_back(Tokens(length, length + 2)[length + step]);
    const auto results = StepAll(sequences, next);
    for (size_t i = 0; step == 1 && i < lengths.size(); ++i) {
      EXPECT_TRUE(Same(results[i].logits, want[i])) << lengths[i] << " tokens";
    }
  }
}

TEST_F(BatchBits, PromptChunksBesideAnswers) {
  const std::vector<int32_t> prompt = Tokens(3, 333), answer = Tokens(50, 120);
  const Logits want_prompt = Alone(prompt), want_answer = Alone(answer);
  for (const size_t chunk : {size_t{1}, size_t{63}, size_t{64}, size_t{65}}) {
    const auto long_one = New(), short_one = New();
    short_one->Append(std::span(answer).first(80), LogitsMode::kNone);
    size_t at = 0, answered = 80;
    while (at < prompt.size() || answered < answer.size()) {
      std::vector<StepPart> parts;
      const size_t n = std::min(chunk, prompt.size() - at);
      if (n > 0) {
        parts.push_back(
            {long_one.get(), std::span(prompt).subspan(at, n), at + n == prompt.size(), nullptr});
      }
      if (answered < answer.size()) {
        parts.push_back({short_one.get(), std::span(answer).subspan(answered, 1), true, nullptr});
      }
      std::vector<StepResult> results(parts.size());
      engine_->Step(parts, results);
      at += n;
      if (n > 0 && at == prompt.size()) {
        EXPECT_TRUE(Same(results[0].logits, want_prompt)) << "chunks of " << chunk;
      }
      if (answered < answer.size() && ++answered == answer.size()) {
        EXPECT_TRUE(Same(results.back().logits, want_answer)) << "chunks of " << chunk;
      }
    }
  }
}

// One sequence hits a prefix, its neighbour does not; a second hit diverges within a page.
TEST_F(BatchBits, PrefixHitsEqualColdRuns) {
  const std::vector<int32_t> ids = Tokens(11, 400);
  std::vector<int32_t> diverged = ids;
  for (size_t i = 210; i < diverged.size(); ++i) diverged[i] = ids[i - 200];
  const Logits want = Alone(ids), want_diverged = Alone(diverged);
  const std::vector<int32_t> other = Tokens(90, 100);
  const Logits want_other = Alone(other);
  const auto first = engine_->NewSequence();
  EXPECT_EQ(first->AdoptPrefix(ids), 0);
  first->Append(ids, LogitsMode::kNone);
  const auto hit = engine_->NewSequence(), cold = New(), partly = engine_->NewSequence();
  EXPECT_EQ(hit->AdoptPrefix(ids), 384);
  EXPECT_EQ(partly->AdoptPrefix(diverged), 210);
  const std::vector<StepPart> parts = {
      {hit.get(), std::span(ids).subspan(384), true, nullptr},
      {cold.get(), other, true, nullptr},
      {partly.get(), std::span(diverged).subspan(210), true, nullptr}};
  std::vector<StepResult> results(3);
  engine_->Step(parts, results);
  EXPECT_TRUE(Same(results[0].logits, want));
  EXPECT_TRUE(Same(results[1].logits, want_other));
  EXPECT_TRUE(Same(results[2].logits, want_diverged));
  // The pages that were shared are as they were.
  const auto again = engine_->NewSequence();
  EXPECT_EQ(again->AdoptPrefix(ids), 384);
  EXPECT_TRUE(Same(again->Append(std::span(ids).subspan(384), LogitsMode::kLast), want));
}

TEST_F(BatchBits, PagesOfALongerSequenceLeaveNothingBehind) {
  const std::vector<int32_t> ids = Tokens(5, 130);
  const Logits want = Alone(ids);
  for (int i = 0; i < 3; ++i) {
    {
      const auto longer = New();
      longer->Append(Tokens(40, 600), LogitsMode::kNone);
    }
    EXPECT_TRUE(Same(New()->Append(ids, LogitsMode::kLast), want));
  }
}

TEST_F(BatchBits, ACancelledPromptInABatchThenTheSamePrompt) {
  const std::vector<int32_t> prompt = Tokens(70, 300), answer = Tokens(20, 90);
  const Logits want_prompt = Alone(prompt), want_answer = Alone(answer);
  const auto doomed = engine_->NewSequence(), other = New();
  other->Append(std::span(answer).first(89), LogitsMode::kNone);
  const std::atomic<bool> cancel{true};
  const std::vector<StepPart> parts = {{doomed.get(), std::span(prompt).first(200), false, &cancel},
                                       {other.get(), std::span(answer).last(1), true, nullptr}};
  std::vector<StepResult> results(2);
  engine_->Step(parts, results);
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kCancelled);
  EXPECT_EQ(doomed->num_tokens(), 0);
  EXPECT_TRUE(Same(results[1].logits, want_answer));
  EXPECT_EQ(doomed->AdoptPrefix(prompt), 0);  // nothing of it is offered
  EXPECT_TRUE(Same(doomed->Append(prompt, LogitsMode::kLast), want_prompt));
}

// The flag is set while a layer in the middle runs: its tokens leave before the next, and the last
// layer then keeps the wanted row of those that are left. Beyond index_topk, so that selections
// move with their tokens.
TEST_F(BatchBits, APromptCancelledBetweenTwoLayers) {
  constexpr int64_t kLayer = 3;  // of 6; it uses the selection of layer 1, as layer 4 does
  constexpr size_t kDoomed = 100, kOther = 60;
  const std::vector<int32_t> prompt = Tokens(70, 400), other_ids = Tokens(130, 362),
                             answer = Tokens(20, 302);
  const Logits want_prompt = Alone(prompt), want_other = Alone(other_ids),
               want_answer = Alone(std::vector(answer.begin(), answer.end() - 1)),
               want_next = Alone(answer);
  for (const bool doomed_wants : {false, true}) {
    for (size_t turn = 0; turn < 3; ++turn) {
      const auto doomed = New(), other = New(), answering = New();
      doomed->Append(std::span(prompt).first(300), LogitsMode::kNone);
      other->Append(std::span(other_ids).first(300), LogitsMode::kNone);
      answering->Append(std::span(answer).first(300), LogitsMode::kNone);
      std::atomic<bool> cancel{false};
      std::vector<StepPart> parts = {
          {doomed.get(), std::span(prompt).last(kDoomed), doomed_wants, &cancel},
          {other.get(), std::span(other_ids).subspan(300, kOther), false, nullptr},
          {answering.get(), std::span(answer).subspan(300, 1), !doomed_wants, nullptr}};
      std::ranges::rotate(parts, parts.begin() + std::ptrdiff_t(turn));
      std::vector<StepResult> results(parts.size());
      std::map<int64_t, size_t> rows;  // of each layer with a router
      engine_->SetRouterTap(
          [&](int64_t layer, int64_t, std::span<const float> gaps, std::span<bool>) {
            rows[layer] = gaps.size();
            if (layer == kLayer) cancel = true;
          });
      engine_->Step(parts, results);
      engine_->SetRouterTap({});
      const size_t all = kDoomed + kOther + 1, left = kOther + 1;
      std::map<int64_t, size_t> want_rows = {{1, all}, {2, all}, {3, all}, {4, left}};
      if (!doomed_wants) want_rows[5] = 1;
      EXPECT_EQ(rows, want_rows);
      for (size_t p = 0; p < parts.size(); ++p) {
        const bool is_doomed = parts[p].sequence == doomed.get();
        ASSERT_EQ(results[p].error.has_value(), is_doomed);
        if (is_doomed) {
          EXPECT_EQ(results[p].error->code(), ErrorCode::kCancelled);
        }
        const bool has_logits = parts[p].wants_logits && !is_doomed;
        EXPECT_TRUE(Same(results[p].logits, has_logits ? want_answer : Logits())) << turn;
      }
      EXPECT_EQ(doomed->num_tokens(), 300);
      const auto next = std::span(answer).last(1);
      EXPECT_TRUE(Same(answering->Append(next, LogitsMode::kLast), want_next)) << turn;
      const auto rest = std::span(other_ids).subspan(300 + kOther);
      EXPECT_TRUE(Same(other->Append(rest, LogitsMode::kLast), want_other)) << turn;
      const auto again = std::span(prompt).last(kDoomed);
      EXPECT_TRUE(Same(doomed->Append(again, LogitsMode::kLast), want_prompt)) << turn;
    }
  }
}

// A prompt of 512 tokens beside another prompt and three answers in one step.
class CancelledPrompt : public testing::Test {
 protected:
  static constexpr int64_t kPrompt = 512, kOther = 90, kAnswers = 3;

  CancelledPrompt() {
    EngineOptions options;
    options.model = std::string(HILLSTAR_SOURCE_DIR) + "/models/pocket";
    options.num_threads = 2;
    options.max_sequences = 8;
    options.prefill_chunk = 1024;
    options.load_mtp = false;
    engine_ = Engine::Open(options);
    texts_ = {Ids(0, kPrompt), Ids(1, kOther)};
    for (int64_t i = 0; i < kAnswers; ++i) texts_.push_back(Ids(2 + i, 270 + 20 * i));
    for (const std::vector<int32_t>& text : texts_) {
      const auto logits = New()->Append(text, LogitsMode::kLast);
      want_.emplace_back(logits.begin(), logits.end());
    }
  }
  static std::vector<int32_t> Ids(int64_t seed, int64_t n) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(int32_t(300 + (seed * 977 + i * i * 7) % 7000));
    return ids;
  }
  std::unique_ptr<Sequence> New() { return engine_->NewSequence({.shares_prefixes = false}); }

  // The step, in which the prompt is cancelled while the layer runs: the tokens in each layer.
  std::map<int64_t, int64_t> StepCancelledIn(int64_t cancelled_in) {
    std::atomic<bool> cancel{false};
    std::vector<StepPart> parts;
    owners_.clear();
    for (size_t i = 0; i < texts_.size(); ++i) {
      owners_.push_back(New());
      std::span<const int32_t> rest = texts_[i];
      if (i >= 2) {
        owners_[i]->Append(rest.first(rest.size() - 1), LogitsMode::kNone);
        rest = rest.last(1);
      }
      parts.push_back({owners_[i].get(), rest, i > 0, i == 0 ? &cancel : nullptr});
    }
    std::map<int64_t, int64_t> rows;
    engine_->SetRouterTap([&](int64_t layer, int64_t, std::span<const float> gaps, auto) {
      rows[layer] = int64_t(gaps.size());
      if (layer == cancelled_in) cancel = true;
    });
    results_.assign(parts.size(), {});
    engine_->Step(parts, results_);
    engine_->SetRouterTap({});
    return rows;
  }

  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<Logits> want_;
  std::vector<std::unique_ptr<Sequence>> owners_;
  std::vector<StepResult> results_;
};

// Whichever layer runs meanwhile, the next is computed without it, and the others get the bits that
// they get alone. (In the last layer all is there that was asked for: the prompt wants no logits.)
TEST_F(CancelledPrompt, TakesNoLayerMore) {
  const int64_t last = engine_->config().num_layers - 1;
  for (int64_t when = engine_->config().num_dense_layers; when < last; ++when) {
    SCOPED_TRACE("cancelled in layer " + std::to_string(when));
    for (const auto& [layer, count] : StepCancelledIn(when)) {
      const int64_t others = layer < last ? kOther + kAnswers : 1 + kAnswers;
      EXPECT_EQ(count, others + (layer <= when ? kPrompt : 0)) << layer;
    }
    ASSERT_TRUE(results_[0].error);
    EXPECT_EQ(results_[0].error->code(), ErrorCode::kCancelled);
    EXPECT_EQ(owners_[0]->num_tokens(), 0);
    for (size_t i = 1; i < texts_.size(); ++i) {
      const std::span<const float> logits = results_[i].logits;
      ASSERT_EQ(logits.size(), want_[i].size());
      EXPECT_EQ(std::memcmp(logits.data(), want_[i].data(), logits.size_bytes()), 0) << i;
    }
  }
}

TEST_F(BatchBits, RestoredPagesGoOnAsIfTheyHadNeverLeft) {
  const std::vector<int32_t> ids = Tokens(33, 331);
  const Logits want = Alone(ids);
  std::vector<std::vector<uint8_t>> pages;
  {
    const auto sequence = New();
    sequence->Append(std::span(ids).first(330), LogitsMode::kNone);
    for (int64_t i = 0; i < sequence->num_pages(); ++i) {
      pages.emplace_back(size_t(engine_->page_bytes()));
      sequence->CopyPage(i, pages.back());
    }
  }
  const auto restored = New();
  restored->Append(Tokens(1, 500), LogitsMode::kNone);
  restored->Restore(std::span(ids).first(330), [&](int64_t page, std::span<uint8_t> latents,
                                                   std::span<uint8_t> keys) {
    std::memcpy(latents.data(), pages[size_t(page)].data(), latents.size());
    std::memcpy(keys.data(), pages[size_t(page)].data() + latents.size(), keys.size());
  });
  EXPECT_EQ(restored->num_tokens(), 330);
  EXPECT_TRUE(Same(restored->Append(std::span(ids).last(1), LogitsMode::kLast), want));
}

// Errors of one part leave the others alone.
TEST_F(BatchBits, ABadPartFailsAlone) {
  const std::vector<int32_t> ids = Tokens(8, 64);
  const Logits want = Alone(ids);
  const std::vector<int32_t> outside = {1 << 30};
  const auto good = New(), bad = New();
  const std::vector<StepPart> parts = {{bad.get(), outside, true, nullptr},
                                       {good.get(), ids, true, nullptr}};
  std::vector<StepResult> results(2);
  engine_->Step(parts, results);
  ASSERT_TRUE(results[0].error);
  EXPECT_EQ(results[0].error->code(), ErrorCode::kBadRequest);
  EXPECT_TRUE(results[0].logits.empty());
  EXPECT_TRUE(Same(results[1].logits, want));
}

TEST_F(BatchBits, TheSameSequenceTwiceInAStepIsABugOfTheCaller) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // the engine has threads
  const std::vector<int32_t> ids = Tokens(8, 2);
  const auto sequence = New();
  EXPECT_DEATH(StepAll({sequence.get(), sequence.get()}, ids), "CHECK.*step_");
}

// What a step leaves behind does not keep its sequences from the next one.
TEST_F(BatchBits, AfterEveryOutcomeASequenceCanTakeAnotherStep) {
  const std::vector<int32_t> ids = Tokens(8, 3);
  const Logits want = Alone(ids);
  const auto sequence = New();
  const std::atomic<bool> cancel{true};
  EXPECT_THROW(sequence->Append(ids, LogitsMode::kNone, &cancel), Error);
  engine_->SetResidualTap([](int64_t, int64_t, int64_t, const float*) { throw 1; });
  EXPECT_THROW(sequence->Append(ids, LogitsMode::kNone), int);
  engine_->SetResidualTap({});
  sequence->Append(std::span(ids).first(1), LogitsMode::kNone);
  const auto cancelled = [&] {
    const std::vector<StepPart> parts = {{sequence.get(), std::span(ids).last(2), true, &cancel}};
    std::vector<StepResult> results(1);
    engine_->Step(parts, results);
    return results[0].error.has_value();
  };
  EXPECT_TRUE(cancelled());
  EXPECT_TRUE(cancelled());
  sequence->Append(std::span(ids).subspan(1, 1), LogitsMode::kNone);
  EXPECT_TRUE(Same(StepAll({sequence.get()}, {ids[2]})[0].logits, want));
}

}  // namespace
}  // namespace hillstar
