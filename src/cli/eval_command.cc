#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/eval.h"
#include "cli/open_model.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

void PrintRow(const std::string& name, size_t name_width, const EvalSum& sum) {
  fmt::print("{:<{}} {:>6} {:>7} {:>8.1f} % {:>10.4f}\n", name, name_width, sum.rows, sum.exact,
             100 * sum.exact_rate(), sum.nll_per_token());
}

Json SumJson(const EvalSum& sum) {
  return {{"rows", sum.rows},
          {"exact", sum.exact},
          {"exact_rate", sum.exact_rate()},
          {"answer_tokens", sum.answer_tokens},
          {"nll_per_token", sum.nll_per_token()}};
}

void PrintJson(const Engine& engine, const EvalReport& report) {
  Json json;
  json["device"] = engine.device().id;
  json["all"] = SumJson(report.all);
  for (const std::string& skill : report.skills) {
    json["skills"][skill] = SumJson(report.by_skill.at(skill));
  }
  fmt::print("{}\n", json.dump(2));
}

void PrintTable(const EvalReport& report) {
  size_t width = 14;
  for (const std::string& skill : report.skills) {
    width = std::max(width, EscapeControls(skill).size());
  }
  fmt::print("{:<{}} {:>6} {:>7} {:>10} {:>10}\n", "skill", width, "rows", "exact", "rate",
             "nats/token");
  for (const std::string& skill : report.skills) {
    PrintRow(EscapeControls(skill), width, report.by_skill.at(skill));
  }
  PrintRow("all", width, report.all);
}

}  // namespace

int EvalCommand(const Options& options) {
  const std::string& file = options.arguments[0];
  const std::vector<EvalRow> rows =
      SelectEvalRows(ParseEvalRows(ReadTextFile(file), file), options.skills, options.limit);
  const OpenedModel model = OpenModel(options, /*load_mtp=*/false);
  ReferenceFn reference;
  if (options.is_given("reference") && options.reference == "float") {
    reference = LoadReference(options, model, model.engine->context_tokens());
  }
  EvalReport report;
  {
    ProgressLine line("evaluating", ProgressLine::Unit::kShare);
    report = Evaluate(
        *model.engine, rows, options.max_tokens,
        [&](uint64_t done, uint64_t total) { line.Update(done, total); }, reference);
  }
  if (options.json) {
    PrintJson(*model.engine, report);
  } else {
    PrintTable(report);
  }
  return 0;
}

}  // namespace hillstar
