// A long text decoded token by token, as a test of drift: each step's logits against those of a
// prefill of the same text, bit for bit, and against a float32 reference. Uses the engine from the
// caller's thread; holds the logits of a few hundred positions at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cli/eval.h"
#include "cli/reference_fn.h"
#include "hillstar/engine.h"

namespace hillstar {

struct ReplayText {
  std::vector<int32_t> ids;
  std::vector<bool> is_answer;  // one a token: part of a row's answer
};

// One conversation of exactly `num_tokens` tokens: the turns of the rows in an order that `seed`
// draws, each pass over the rows in a new one, the last row cut off. The answers' end tokens are
// left out, since the next turn begins with one. A row that is longer than an eighth of the text is
// left out, as long as there are shorter ones, so that every part of the text holds answers.
// Errors: kUsage where the text does not fit the engine's context, kBadRequest naming the row of an
// id outside the vocabulary, kBadFile where the rows hold no text.
ReplayText MakeReplayText(const Engine& engine, const std::vector<EvalRow>& rows,
                          int64_t num_tokens, uint64_t seed);

// Sums over some positions. What compares with a reference is 0 without one.
struct ReplaySums {
  int64_t positions = 0;
  int64_t equal_bits = 0;     // of the logits of a step and of the prefill
  int64_t same_argmax = 0;    // of a step and the reference
  double largest_margin = 0;  // of the reference, where the argmax differs
  // Of each position, in order: KL(reference || step) in nats, and the relative error of the logits
  // (RelativeDifference).
  std::vector<double> kl, error;
  int64_t answer_tokens = 0;
  double nll = 0;  // nats of the answers' tokens, by the steps' logits
  double reference_nll = 0;

  double mean_kl() const;
  double largest_kl() const;
  double median_error() const;
  double nll_per_token() const { return answer_tokens > 0 ? nll / double(answer_tokens) : 0; }
  double reference_nll_per_token() const {
    return answer_tokens > 0 ? reference_nll / double(answer_tokens) : 0;
  }
  void Add(const ReplaySums& other);
};

struct ReplayReport {
  bool has_reference = false;
  int64_t first_unequal = -1;  // first position whose bits differ
  ReplaySums all;
  std::array<ReplaySums, 4> quarters;  // of the text, in order
  bool passes() const { return all.equal_bits == all.positions; }
};

// `reference` may be empty. `progress` is called with the number of positions done and of all.
// Errors: the engine's and the reference's.
ReplayReport Replay(Engine& engine, const ReplayText& text, const ReferenceFn& reference,
                    const ProgressFn& progress);

}  // namespace hillstar
