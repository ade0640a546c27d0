#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/eval.h"
#include "cli/open_model.h"
#include "cli/replay.h"
#include "cli/replay_report.h"
#include "cli/score.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "core/integers.h"
#include "model/float_reference.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kDefaultSeed = 1;  // of --replay

void PrintHidden(const HiddenReport& report) {
  fmt::print("{:<22} {:>11} {:>13} {:>13} {:>12} {:>9}\n", "residual stream", "relative L2",
             "ties decided", "median token", "worst token", "position");
  for (const HiddenDifference& row : report.stages) {
    fmt::print("{:<22} {:>11.2e} {:>13.2e} {:>13.2e} {:>12.2e} {:>9}\n", row.stage, row.relative_l2,
               row.ties_decided, row.median_token, row.worst_token, row.worst_position);
  }
  for (const RouterTie& tie : report.ties) {
    fmt::print(
        "tie: layer {}, position {}: two experts {:.1e} apart; error {:.1e}, with the other one "
        "{:.1e}\n",
        tie.layer, tie.position, tie.gap, tie.error, tie.other_error);
  }
}

void PrintReport(const ScoreReport& report) {
  for (const ScoreDifference& d : report.differences) {
    fmt::print("{}: {}, position {}: expected {}, got {}, margin {:.5f}\n",
               d.is_near_tie ? "near tie" : "DIFFERENT",
               EscapeControls(d.case_name) + (d.is_mtp ? " (MTP)" : ""), d.position, d.expected,
               d.got, d.margin);
  }
  fmt::print("tolerance of a margin {:.2g}, largest difference of a top logit {:.2e}\n",
             report.tolerance, report.largest_logit_difference);
  if (!report.mtp.passes()) fmt::print("FAILED: positions of the MTP head differ\n");
  if (report.mtp.positions > 0) {
    fmt::print("MTP: {} of {} positions equal, {} near ties differ\n", report.mtp.equal,
               report.mtp.positions, report.mtp.near_ties);
  }
  fmt::print("{} of {} positions equal, {} near ties differ\n", report.next.equal,
             report.next.positions, report.next.near_ties);
}

Json CountsJson(const ScoreCounts& counts) {
  return {{"positions", counts.positions},
          {"equal", counts.equal},
          {"near_ties", counts.near_ties},
          {"different", counts.positions - counts.equal - counts.near_ties}};
}

Json ReportJson(const ScoreReport& report) {
  Json json;
  json["tolerance"] = report.tolerance;
  json["logit_spread"] = report.logit_spread;
  json["next"] = CountsJson(report.next);
  json["mtp"] = CountsJson(report.mtp);
  json["largest_logit_difference"] = report.largest_logit_difference;
  json["differences"] = Json::array();
  for (const ScoreDifference& d : report.differences) {
    json["differences"].push_back({{"case", d.case_name},
                                   {"head", d.is_mtp ? "mtp" : "next"},
                                   {"position", d.position},
                                   {"margin", d.margin},
                                   {"expected", d.expected},
                                   {"got", d.got},
                                   {"near_tie", d.is_near_tie}});
  }
  json["passes"] = report.passes();
  return json;
}

Json HiddenJson(const HiddenReport& report) {
  Json json{{"stages", Json::array()}, {"ties", Json::array()}};
  for (const HiddenDifference& row : report.stages) {
    json["stages"].push_back({{"stage", row.stage},
                              {"relative_l2", row.relative_l2},
                              {"ties_decided", row.ties_decided},
                              {"median_token", row.median_token},
                              {"worst_token", row.worst_token},
                              {"worst_position", row.worst_position}});
  }
  for (const RouterTie& tie : report.ties) {
    json["ties"].push_back({{"layer", tie.layer},
                            {"position", tie.position},
                            {"gap", tie.gap},
                            {"error", tie.error},
                            {"other_error", tie.other_error}});
  }
  return json;
}

// What a run printed or will print, and whether everything agreed.
struct Outcome {
  Json json = Json::object();
  bool passes = true;
};

void ScoreHiddenFile(const Options& options, Engine& engine, const HiddenReference& reference,
                     Outcome& outcome) {
  const HiddenReport report = CompareHidden(engine, reference);
  if (options.json) {
    outcome.json["residual_stream"] = HiddenJson(report);
  } else {
    PrintHidden(report);
  }
}

void ScoreOracleFile(const Options& options, Engine& engine, const Oracle& oracle,
                     Outcome& outcome) {
  std::optional<double> tolerance;
  if (options.is_given("tolerance")) tolerance = options.tolerance;
  ScoreReport report;
  {
    ProgressLine line("scoring position", ProgressLine::Unit::kItems);
    report = ScoreOracle(engine, oracle, tolerance,
                         [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  }
  outcome.passes = outcome.passes && report.passes();
  if (options.json) {
    outcome.json.update(ReportJson(report));
  } else {
    PrintReport(report);
  }
}

void ScoreReplay(const Options& options, const OpenedModel& model, const std::vector<EvalRow>& rows,
                 Outcome& outcome) {
  const uint64_t seed = options.is_given("seed") ? uint64_t(options.seed) : kDefaultSeed;
  const ReplayText text = MakeReplayText(*model.engine, rows, options.replay_tokens, seed);
  ReferenceFn reference;
  if (options.reference == "float") {
    reference = LoadReference(options, model, options.replay_tokens);
  }
  ReplayReport report;
  {
    ProgressLine line("replaying position", ProgressLine::Unit::kItems);
    report = Replay(*model.engine, text, reference,
                    [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  }
  outcome.passes = outcome.passes && report.passes();
  if (options.json) {
    outcome.json["replay"] = ReplayJson(report);
  } else {
    fmt::print("{}", ReplayTable(report));
  }
}

}  // namespace

int ScoreCommand(const Options& options) {
  if (options.oracle.empty() && options.hidden.empty() && options.replay.empty()) {
    throw Error(ErrorCode::kUsage, "score needs --oracle FILE, --hidden FILE or --replay FILE");
  }
  Oracle oracle;
  HiddenReference hidden;
  std::vector<EvalRow> rows;
  if (!options.oracle.empty()) oracle = ParseOracle(ReadTextFile(options.oracle));
  if (!options.hidden.empty()) hidden = ReadHiddenReference(options.hidden);
  if (!options.replay.empty()) rows = ParseEvalRows(ReadTextFile(options.replay), options.replay);
  // A replay runs two sequences of its length side by side.
  const int64_t kv_tokens = options.replay.empty() ? 0 : 2 * RoundUp(options.replay_tokens, 64);
  Options used = options;
  // Ties of the router are decided the other way too, which only a CPU lets one do.
  if (!used.hidden.empty() && used.device == "auto") used.device = "cpu";
  const OpenedModel model = OpenModel(used, oracle.has_mtp(), {.kv_tokens = kv_tokens});
  Outcome outcome;
  outcome.json["device"] = model.engine->device().id;
  if (!options.hidden.empty()) ScoreHiddenFile(options, *model.engine, hidden, outcome);
  if (!options.oracle.empty()) ScoreOracleFile(options, *model.engine, oracle, outcome);
  if (!options.replay.empty()) ScoreReplay(options, model, rows, outcome);
  if (options.json) fmt::print("{}\n", outcome.json.dump(2));
  return outcome.passes ? 0 : 1;
}

}  // namespace hillstar
