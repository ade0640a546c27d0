#include "cli/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "cli/bench.h"
#include "cli/request.h"
#include "core/check.h"
#include "engine/sampler.h"
#include "model/config.h"
#include "numerics/likelihood.h"

namespace hillstar {
namespace {

// The longest row is this part of the text.
constexpr int64_t kRowsOfText = 8;

// A row's turns as tokens, as they stand behind others.
struct RowTokens {
  std::vector<int32_t> prompt, answer;
  int64_t size() const { return int64_t(prompt.size() + answer.size()); }
};

class TextMaker {
 public:
  TextMaker(const Engine& engine, const std::vector<EvalRow>& rows, int64_t num_tokens,
            uint64_t seed)
      : engine_(engine), rows_(rows), num_tokens_(num_tokens), random_(seed) {
    prefix_ = RawPromptIds(engine.tokenizer(), "");
  }

  ReplayText Make() {
    Append(prefix_, false);
    int64_t longest = num_tokens_ / kRowsOfText;
    while (!IsFull()) {
      const size_t before = text_.ids.size();
      Pass(longest);
      if (text_.ids.size() > before) continue;
      if (longest == num_tokens_) throw Error(ErrorCode::kBadFile, "the rows hold no text");
      longest = num_tokens_;
    }
    return std::move(text_);
  }

 private:
  bool IsFull() const { return int64_t(text_.ids.size()) >= num_tokens_; }

  // All rows once, those left out that are longer than `longest` (unless that is the whole text).
  void Pass(int64_t longest) {
    std::vector<size_t> order(rows_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    // Fisher and Yates; std::shuffle may differ from one library to the next.
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_() % i]);
    for (const size_t row : order) {
      if (IsFull()) return;
      const RowTokens tokens = TokensOf(rows_[row]);
      if (longest < num_tokens_ && tokens.size() > longest) continue;
      Append(tokens.prompt, false);
      Append(tokens.answer, true);
    }
  }

  RowTokens TokensOf(const EvalRow& row) const {
    RowTokens tokens;
    tokens.prompt = RawPromptIds(engine_.tokenizer(), row.prompt);
    tokens.prompt.erase(tokens.prompt.begin(), tokens.prompt.begin() + int64_t(prefix_.size()));
    tokens.answer = engine_.tokenizer().Encode(row.answer, AddedTokens::kParse);
    const auto end = std::ranges::find_first_of(tokens.answer, engine_.config().eos_ids);
    tokens.answer.erase(end, tokens.answer.end());
    CheckIds(tokens.prompt, row);
    CheckIds(tokens.answer, row);
    return tokens;
  }

  void CheckIds(const std::vector<int32_t>& ids, const EvalRow& row) const {
    for (const int32_t id : ids) {
      if (id < engine_.config().vocab_size) continue;
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("{}: the token \"{}\" has the id {}, outside the model's vocabulary "
                              "of {}",
                              row.where, engine_.tokenizer().TokenBytes(id), id,
                              engine_.config().vocab_size));
    }
  }

  void Append(const std::vector<int32_t>& ids, bool is_answer) {
    for (const int32_t id : ids) {
      if (IsFull()) return;
      text_.ids.push_back(id);
      text_.is_answer.push_back(is_answer);
    }
  }

  const Engine& engine_;
  const std::vector<EvalRow>& rows_;
  int64_t num_tokens_;
  std::mt19937_64 random_;
  std::vector<int32_t> prefix_;  // [gMASK]<sop> where the model knows them
  ReplayText text_;
};

// Runs both ways through the text side by side, piece by piece.
class Replayer {
 public:
  Replayer(Engine& engine, const ReplayText& text, const ProgressFn& progress)
      : text_(text),
        vocab_(size_t(engine.config().vocab_size)),
        progress_(progress),
        steps_(engine.NewSequence({.shares_prefixes = false})),
        prefill_(engine.NewSequence({.shares_prefixes = false})) {}

  int64_t num_tokens() const { return int64_t(text_.ids.size()); }

  // The next `count` positions; `reference`: their logits [count, vocab], or empty.
  void Piece(int64_t count, std::span<const float> reference) {
    const std::span<const int32_t> ids = std::span(text_.ids).subspan(size_t(done_), size_t(count));
    const std::span<const float> all = prefill_->Append(ids, LogitsMode::kAll);
    window_.assign(all.begin(), all.end());  // the next call on the engine takes them back
    for (size_t i = 0; i < ids.size(); ++i, ++done_) {
      const std::span<const float> row = steps_->Append(ids.subspan(i, 1), LogitsMode::kLast);
      ReplaySums& sums = report_.quarters[size_t(4 * done_ / num_tokens())];
      ++sums.positions;
      if (std::memcmp(row.data(), &window_[i * vocab_], vocab_ * sizeof(float)) == 0) {
        ++sums.equal_bits;
      } else if (report_.first_unequal < 0) {
        report_.first_unequal = done_;
      }
      CountAnswer(row, reference.empty() ? reference : reference.subspan(i * vocab_, vocab_), sums);
      if (!reference.empty()) Compare(reference.subspan(i * vocab_, vocab_), row, sums);
    }
    if (progress_) progress_(uint64_t(done_), uint64_t(num_tokens()));
  }

  ReplayReport Finish(bool has_reference) {
    CHECK(done_ == num_tokens());
    report_.has_reference = has_reference;
    for (const ReplaySums& sums : report_.quarters) report_.all.Add(sums);
    return report_;
  }

 private:
  void CountAnswer(std::span<const float> row, std::span<const float> reference,
                   ReplaySums& sums) const {
    const auto next = size_t(done_) + 1;
    if (next >= text_.ids.size() || !text_.is_answer[next]) return;
    ++sums.answer_tokens;
    sums.nll += NegativeLogLikelihood(row, text_.ids[next]);
    if (!reference.empty()) sums.reference_nll += NegativeLogLikelihood(reference, text_.ids[next]);
  }

  void Compare(std::span<const float> reference, std::span<const float> row,
               ReplaySums& sums) const {
    if (Argmax(reference) == Argmax(row)) {
      ++sums.same_argmax;
    } else {
      sums.largest_margin = std::max(sums.largest_margin, MarginOf(reference));
    }
    sums.kl.push_back(KlDivergence(reference, row));
    sums.error.push_back(RelativeDifference(reference, row));
  }

  const ReplayText& text_;
  const size_t vocab_;
  const ProgressFn& progress_;
  std::unique_ptr<Sequence> steps_, prefill_;
  std::vector<float> window_;  // the prefill's logits of a piece
  int64_t done_ = 0;
  ReplayReport report_;
};

}  // namespace

ReplayText MakeReplayText(const Engine& engine, const std::vector<EvalRow>& rows,
                          int64_t num_tokens, uint64_t seed) {
  CHECK(num_tokens > 0);
  if (num_tokens > engine.context_tokens()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("a text of {} tokens (--replay-tokens) does not fit the context of {} "
                            "(--context)",
                            num_tokens, engine.context_tokens()));
  }
  return TextMaker(engine, rows, num_tokens, seed).Make();
}

double ReplaySums::mean_kl() const {
  return kl.empty() ? 0 : std::accumulate(kl.begin(), kl.end(), 0.0) / double(kl.size());
}

double ReplaySums::largest_kl() const { return kl.empty() ? 0 : *std::ranges::max_element(kl); }

double ReplaySums::median_error() const { return error.empty() ? 0 : MedianOf(error); }

void ReplaySums::Add(const ReplaySums& other) {
  positions += other.positions;
  equal_bits += other.equal_bits;
  same_argmax += other.same_argmax;
  largest_margin = std::max(largest_margin, other.largest_margin);
  kl.insert(kl.end(), other.kl.begin(), other.kl.end());
  error.insert(error.end(), other.error.begin(), other.error.end());
  answer_tokens += other.answer_tokens;
  nll += other.nll;
  reference_nll += other.reference_nll;
}

ReplayReport Replay(Engine& engine, const ReplayText& text, const ReferenceFn& reference,
                    const ProgressFn& progress) {
  Replayer replayer(engine, text, progress);
  const auto vocab = int64_t(engine.config().vocab_size);
  if (reference) {
    int64_t expected = 0;
    reference(text.ids, [&](int64_t first, std::span<const float> logits) {
      CHECK(first == expected);
      const int64_t count = int64_t(logits.size()) / vocab;
      expected += count;
      replayer.Piece(count, logits);
    });
  } else {
    for (int64_t first = 0; first < replayer.num_tokens(); first += kReferencePiece) {
      replayer.Piece(std::min(kReferencePiece, replayer.num_tokens() - first), {});
    }
  }
  return replayer.Finish(reference != nullptr);
}

}  // namespace hillstar
