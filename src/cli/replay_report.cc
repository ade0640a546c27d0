#include "cli/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

std::string Row(const std::string& name, const ReplaySums& sums, bool has_reference) {
  std::string row = fmt::format("{:<16} {:>10} {:>13} {:>10.4f}", name, sums.equal_bits,
                                sums.answer_tokens, sums.nll_per_token());
  if (has_reference) {
    row += fmt::format(" {:>10.4f} {:>11} {:>10.1e} {:>10.1e} {:>10.1e}",
                       sums.reference_nll_per_token(), sums.same_argmax, sums.mean_kl(),
                       sums.largest_kl(), sums.median_error());
  }
  return row + "\n";
}

int64_t LargestKlPosition(const ReplayReport& report) {
  return std::ranges::max_element(report.all.kl) - report.all.kl.begin();
}

std::string ClosingLine(const ReplayReport& report) {
  const ReplaySums& all = report.all;
  std::string line = fmt::format("{} of {} positions equal in bits between steps and prefill",
                                 all.equal_bits, all.positions);
  if (report.has_reference) {
    line += fmt::format("; {} of {} with the reference's argmax; mean KL {:.1e} nats",
                        all.same_argmax, all.positions, all.mean_kl());
  }
  if (all.answer_tokens > 0) line += fmt::format("; answer NLL {:.4f}", all.nll_per_token());
  if (all.answer_tokens > 0 && report.has_reference) {
    line += fmt::format(" (reference {:.4f})", all.reference_nll_per_token());
  }
  return line + "\n";
}

Json SumsJson(const ReplaySums& sums, bool has_reference) {
  Json json{{"positions", sums.positions},
            {"equal_bits", sums.equal_bits},
            {"answer_tokens", sums.answer_tokens},
            {"nll_per_token", sums.nll_per_token()}};
  if (!has_reference) return json;
  json["reference_nll_per_token"] = sums.reference_nll_per_token();
  json["same_argmax"] = sums.same_argmax;
  json["largest_margin_of_others"] = sums.largest_margin;
  json["mean_kl"] = sums.mean_kl();
  json["largest_kl"] = sums.largest_kl();
  json["median_logit_error"] = sums.median_error();
  return json;
}

}  // namespace

std::string ReplayTable(const ReplayReport& report) {
  std::string text = fmt::format("{:<16} {:>10} {:>13} {:>10}", "positions", "equal bits",
                                 "answer tokens", "nats/token");
  if (report.has_reference) {
    text += fmt::format(" {:>10} {:>11} {:>10} {:>10} {:>10}", "reference", "same argmax",
                        "mean KL", "largest KL", "logit error");
  }
  text += "\n";
  int64_t first = 0;
  for (const ReplaySums& quarter : report.quarters) {
    if (quarter.positions == 0) continue;
    const int64_t last = first + quarter.positions - 1;
    text += Row(fmt::format("{} to {}", first, last), quarter, report.has_reference);
    first = last + 1;
  }
  text += Row("all", report.all, report.has_reference);
  if (report.first_unequal >= 0) {
    text += fmt::format(
        "DIFFERENT: the bits of a step and of the prefill first differ at position "
        "{}\n",
        report.first_unequal);
  }
  if (report.has_reference) {
    text += fmt::format("largest KL at position {}", LargestKlPosition(report));
    if (report.all.same_argmax < report.all.positions) {
      text += fmt::format("; where the argmax differs, the reference's margin is at most {:.4f}",
                          report.all.largest_margin);
    }
    text += "\n";
  }
  return text + ClosingLine(report);
}

Json ReplayJson(const ReplayReport& report) {
  Json json = SumsJson(report.all, report.has_reference);
  json["first_unequal"] = report.first_unequal < 0 ? Json() : Json(report.first_unequal);
  if (report.has_reference) json["largest_kl_position"] = LargestKlPosition(report);
  json["quarters"] = Json::array();
  for (const ReplaySums& quarter : report.quarters) {
    json["quarters"].push_back(SumsJson(quarter, report.has_reference));
  }
  json["passes"] = report.passes();
  return json;
}

}  // namespace hillstar
