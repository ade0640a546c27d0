// Teacher-forced comparison of an engine with reference outputs. Uses the engine from the caller's
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hillstar/engine.h"

namespace hillstar {

// How far the margin between two logits may move between this engine and a float32 implementation:
// docs/numerics.md, "Against float32", derives it. logit_spread: root mean square, over positions,
// of the logits' standard deviation.
double MarginTolerance(int64_t num_layers, double logit_spread);

struct OracleCase {
  std::string name;
  std::vector<int32_t> ids;         // prompt and greedy continuation
  std::vector<int32_t> argmax;      // after each of them
  std::vector<double> margin;       // first minus second logit there
  std::vector<int32_t> mtp_argmax;  // of the token after next, or empty
  std::vector<double> mtp_margin;   // or empty
  int64_t prompt_tokens = 0;
  struct TopLogit {
    int32_t id;
    double logit;
  };
  std::vector<TopLogit> top_logits;  // of the last prompt position, or empty
};

struct Oracle {
  std::string model;
  std::vector<OracleCase> cases;
  bool has_mtp() const;
};

// Errors: kBadFile naming the case and the member.
Oracle ParseOracle(const std::string& json);

// A position where the engine's token is not the reference's.
struct ScoreDifference {
  std::string case_name;
  bool is_mtp;
  int64_t position;
  double margin;  // the reference's; ours where it gives none
  int32_t expected, got;
  bool is_near_tie;
};

struct ScoreCounts {
  int64_t positions = 0;
  int64_t equal = 0;
  int64_t near_ties = 0;  // that differ
  bool passes() const { return equal + near_ties == positions; }
};

struct ScoreReport {
  double tolerance = 0;     // the one given, or derived
  double logit_spread = 0;  // see MarginTolerance
  ScoreCounts next, mtp;
  std::vector<ScoreDifference> differences;
  double largest_logit_difference = 0;  // over top_logits
  bool passes() const { return next.passes() && mtp.passes(); }
};

// `tolerance` of margins: MarginTolerance where there is none. `progress` is called after each case
// with the number of positions done and of all.
ScoreReport ScoreOracle(Engine& engine, const Oracle& oracle, std::optional<double> tolerance,
                        const ProgressFn& progress);

// The residual stream of a reference: `values` f32 [num_layers + 1 or + 2, tokens, hidden].
struct HiddenReference {
  std::vector<int32_t> ids;
  int64_t num_stages = 0;
  int64_t hidden_size = 0;
  std::vector<float> values;
};
// Errors: kNotFound, kBadFile, kUnsupported.
HiddenReference ReadHiddenReference(const std::filesystem::path& file);

// Relative L2, |ours - reference| / |reference|, at one stage.
struct HiddenDifference {
  std::string stage;       // "before layer 3", "after the last layer", "after the final norm"
  double relative_l2 = 0;  // over all tokens
  double median_token = 0;
  double worst_token = 0;
  int64_t worst_position = 0;
  // Over all tokens, after the ties of HiddenReport were decided as the reference decides them.
  double ties_decided = 0;
};
// A token whose router was undecided, as far as our own error goes, between the last expert that it
// chose and another, and that the reference sends to the other: with it, the token's error after
// the layer is `other_error` in place of `error`.
struct RouterTie {
  int64_t layer = 0, position = 0;
  double gap = 0;  // between the two experts' scores
  double error = 0, other_error = 0;
};
struct HiddenReport {
  std::vector<HiddenDifference> stages;
  std::vector<RouterTie> ties;
};
// Runs the reference's tokens, then once or twice more for each layer with ties. A gap counts as a
// tie where it is below four standard deviations of a score's own error: a quarter, the sigmoid's
// steepest slope, of the median token's error after the layer. Errors: kBadFile where the
// reference's sizes are not the model's.
HiddenReport CompareHidden(Engine& engine, const HiddenReference& reference);

}  // namespace hillstar
