#include "cli/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/check.h"
#include "engine/sampler.h"
#include "formats/json_scan.h"
#include "formats/safetensors.h"
#include "model/config.h"
#include "numerics/likelihood.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

// Logits of so many tokens are held at once: 40 MB with a vocabulary of 155,000.
constexpr size_t kScoredAtOnce = 64;
constexpr size_t kMaxOracleBytes = size_t{1} << 30;

template <typename T>
std::vector<T> ListOf(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  try {
    return found->get<std::vector<T>>();
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kBadFile, fmt::format("{}: {} is not a list of numbers", where, name));
  }
}

// Token ids: whole numbers from 0 on.
std::vector<int32_t> IdsOf(const Json& object, const char* name, const std::string& where) {
  std::vector<int32_t> ids;
  for (const Json& value : ListOf<Json>(object, name, where)) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX) {
      throw Error(ErrorCode::kBadFile, fmt::format("{}: {}[{}] is {}, not a token's id", where,
                                                   name, ids.size(), Quoted(value.dump())));
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

void CheckLength(const std::string& where, const char* name, size_t length, size_t want) {
  if (length == want) return;
  throw Error(ErrorCode::kBadFile, fmt::format("{}: {} has {} entries, prompt_ids and greedy_ids "
                                               "have {} together",
                                               where, name, length, want));
}

OracleCase ParseCase(const Json& object, size_t index) {
  OracleCase c;
  const auto name = object.find("name");
  c.name = name != object.end() && name->is_string() ? name->get<std::string>()
                                                     : fmt::format("case {}", index);
  const std::string where = fmt::format("oracle case \"{}\"", c.name);
  c.ids = IdsOf(object, "prompt_ids", where);
  c.prompt_tokens = int64_t(c.ids.size());
  const auto greedy = IdsOf(object, "greedy_ids", where);
  c.ids.insert(c.ids.end(), greedy.begin(), greedy.end());
  c.argmax = IdsOf(object, "argmax", where);
  c.margin = ListOf<double>(object, "margin", where);
  c.mtp_argmax = IdsOf(object, "mtp_argmax", where);
  c.mtp_margin = ListOf<double>(object, "mtp_margin", where);
  for (const auto& pair : ListOf<std::vector<double>>(object, "top_logits", where)) {
    if (pair.size() != 2 || pair[0] < 0 || pair[0] > INT32_MAX) continue;
    c.top_logits.push_back({int32_t(pair[0]), pair[1]});
  }
  CheckLength(where, "argmax", c.argmax.size(), c.ids.size());
  CheckLength(where, "margin", c.margin.size(), c.ids.size());
  if (!c.mtp_argmax.empty()) CheckLength(where, "mtp_argmax", c.mtp_argmax.size(), c.ids.size());
  if (!c.mtp_margin.empty()) CheckLength(where, "mtp_margin", c.mtp_margin.size(), c.ids.size());
  if (c.prompt_tokens == 0) throw Error(ErrorCode::kBadFile, where + ": prompt_ids is empty");
  return c;
}

// Compares one token and counts it.
struct Comparison {
  const OracleCase& reference;
  ScoreReport& report;

  void Compare(bool is_mtp, int64_t position, double margin, int32_t expected, int32_t got) {
    ScoreCounts& counts = is_mtp ? report.mtp : report.next;
    ++counts.positions;
    if (got == expected) {
      ++counts.equal;
      return;
    }
    report.differences.push_back({reference.name, is_mtp, position, margin, expected, got, false});
  }

  void CompareTopLogits(std::span<const float> logits) {
    for (const auto& top : reference.top_logits) {
      if (top.id < 0 || size_t(top.id) >= logits.size()) continue;
      const double difference = std::abs(double(logits[size_t(top.id)]) - top.logit);
      report.largest_logit_difference = std::max(report.largest_logit_difference, difference);
    }
  }
};

// Sum over positions of the logits' variance.
double ScoreCase(Engine& engine, const OracleCase& c, Comparison comparison) {
  double variance = 0;
  const bool has_mtp = !c.mtp_argmax.empty() && engine.config().num_mtp_layers > 0;
  const std::unique_ptr<Sequence> sequence = engine.NewSequence({.keep_hidden = has_mtp});
  for (size_t first = 0; first < c.ids.size(); first += kScoredAtOnce) {
    const size_t count = std::min(kScoredAtOnce, c.ids.size() - first);
    const std::span<const float> logits =
        sequence->Append(std::span(c.ids).subspan(first, count), LogitsMode::kAll);
    const size_t vocab = logits.size() / count;
    for (size_t i = 0; i < count; ++i) {
      const std::span<const float> row = logits.subspan(i * vocab, vocab);
      const size_t at = first + i;
      variance += Variance(row);
      comparison.Compare(false, int64_t(at), c.margin[at], c.argmax[at], Argmax(row));
      if (int64_t(at) == c.prompt_tokens - 1) comparison.CompareTopLogits(row);
    }
  }
  if (!has_mtp) return variance;
  // The head at the last position would need the token after it.
  const std::vector<MtpToken> got = sequence->MtpArgmax(0);
  CHECK(got.size() + 1 == c.ids.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double margin = c.mtp_margin.empty() ? double(got[i].margin) : c.mtp_margin[i];
    comparison.Compare(true, int64_t(i), margin, c.mtp_argmax[i], got[i].id);
  }
  return variance;
}

// Sums of squares of a token at a stage: of the difference and of the reference.
struct Sums {
  double difference = 0, reference = 0;

  double relative() const { return std::sqrt(difference / reference); }
  void Add(const Sums& other) {
    difference += other.difference;
    reference += other.reference;
  }
};

// Runs a reference's tokens and keeps each token's sums at each stage and its routers' gaps.
class HiddenRun {
 public:
  using Place = std::pair<int64_t, int64_t>;  // layer, position

  // Tokens at the places of `take_other` take the other expert there.
  HiddenRun(Engine& engine, const HiddenReference& reference, const std::set<Place>& take_other)
      : reference_(reference),
        num_layers_(engine.config().num_layers),
        sums_(size_t(reference.num_stages), std::vector<Sums>(reference.ids.size())),
        gaps_(size_t(num_layers_), std::vector<float>(reference.ids.size(), 1.0f)) {
    engine.SetResidualTap([&](int64_t layer, int64_t pos, int64_t count, const float* values) {
      Compare(layer, pos, count, values);
    });
    engine.SetRouterTap(
        [&](int64_t layer, int64_t pos, std::span<const float> gaps, std::span<bool> others) {
          if (layer >= num_layers_) return;
          for (size_t t = 0; t < gaps.size(); ++t) {
            gaps_[size_t(layer)][size_t(pos) + t] = gaps[t];
            others[t] = take_other.contains({layer, pos + int64_t(t)});
          }
        });
    const TapsGuard guard{engine};
    engine.NewSequence()->Append(reference.ids, LogitsMode::kLast);
  }

  double ErrorOf(int64_t stage, int64_t token) const {
    return sums_[size_t(stage)][size_t(token)].relative();
  }
  double gap(int64_t layer, int64_t token) const { return gaps_[size_t(layer)][size_t(token)]; }
  double RelativeL2(int64_t stage) const {
    Sums all;
    for (const Sums& s : sums_[size_t(stage)]) all.Add(s);
    return all.relative();
  }
  double MedianError(int64_t stage) const {
    std::vector<double> each = Errors(stage);
    std::ranges::nth_element(each, each.begin() + int64_t(each.size() / 2));
    return each[each.size() / 2];
  }
  HiddenDifference Describe(int64_t stage) const {
    HiddenDifference d;
    d.stage = stage < num_layers_                 ? fmt::format("before layer {}", stage)
              : stage + 1 < reference_.num_stages ? "after the last layer"
                                                  : "after the final norm";
    d.relative_l2 = RelativeL2(stage);
    d.median_token = MedianError(stage);
    const std::vector<double> each = Errors(stage);
    const auto worst = std::ranges::max_element(each);
    d.worst_position = worst - each.begin();
    d.worst_token = *worst;
    return d;
  }

 private:
  std::vector<double> Errors(int64_t stage) const {
    std::vector<double> each;
    for (const Sums& s : sums_[size_t(stage)]) each.push_back(s.relative());
    return each;
  }
  // The stage of a tap's layer; -1 where the reference has none.
  int64_t StageOf(int64_t layer) const {
    if (layer == num_layers_ + 1) return reference_.num_stages - 1;
    const bool has_last_layer = reference_.num_stages == num_layers_ + 2;
    return layer == num_layers_ && !has_last_layer ? -1 : layer;
  }
  void Compare(int64_t layer, int64_t pos, int64_t count, const float* values) {
    const int64_t stage = StageOf(layer), hidden = reference_.hidden_size;
    if (stage < 0) return;
    const auto tokens = int64_t(reference_.ids.size());
    for (int64_t t = 0; t < count; ++t) {
      const float* want = &reference_.values[size_t((stage * tokens + pos + t) * hidden)];
      Sums& s = sums_[size_t(stage)][size_t(pos + t)];
      for (int64_t i = 0; i < hidden; ++i) {
        const double d = double(values[t * hidden + i]) - double(want[i]);
        s.difference += d * d;
        s.reference += double(want[i]) * double(want[i]);
      }
    }
  }

  // Takes the taps, which look into this object, away again.
  struct TapsGuard {
    Engine& engine;
    ~TapsGuard() {
      engine.SetResidualTap({});
      engine.SetRouterTap({});
    }
  };

  const HiddenReference& reference_;
  const int64_t num_layers_;
  std::vector<std::vector<Sums>> sums_;   // [stage][token]
  std::vector<std::vector<float>> gaps_;  // [layer][token]
};

void CheckSizes(const Engine& engine, const HiddenReference& reference) {
  const int64_t num_layers = engine.config().num_layers, hidden = engine.config().hidden_size;
  const bool known_stages =
      reference.num_stages == num_layers + 1 || reference.num_stages == num_layers + 2;
  if (known_stages && reference.hidden_size == hidden) return;
  throw Error(ErrorCode::kBadFile,
              fmt::format("the reference has {} stages of {} values; the model's {} layers give {} "
                          "or {} stages of {}",
                          reference.num_stages, reference.hidden_size, num_layers, num_layers + 1,
                          num_layers + 2, hidden));
}

}  // namespace

bool Oracle::has_mtp() const {
  return std::ranges::any_of(cases, [](const OracleCase& c) { return !c.mtp_argmax.empty(); });
}

Oracle ParseOracle(const std::string& text) {
  const Json json = ParseJson(text, "the oracle", kMaxOracleBytes);
  const auto cases = json.is_object() ? json.find("cases") : json.end();
  if (!json.is_object() || cases == json.end() || !cases->is_array() || cases->empty()) {
    throw Error(ErrorCode::kBadFile, "the oracle is no JSON object with cases in a list \"cases\"");
  }
  Oracle oracle;
  if (json.contains("model") && json["model"].is_string()) oracle.model = json["model"];
  for (size_t i = 0; i < cases->size(); ++i) {
    if (!(*cases)[i].is_object()) {
      throw Error(ErrorCode::kBadFile, fmt::format("oracle case {} is not an object", i));
    }
    oracle.cases.push_back(ParseCase((*cases)[i], i));
  }
  return oracle;
}

double MarginTolerance(int64_t num_layers, double logit_spread) {
  constexpr double kCrest = 3.5;  // largest of 64 normal values over their root mean square, about
  const double rounding = kCrest / (127 * 256 * std::sqrt(12.0));
  const double left_out = (kCrest / 127) * (kCrest / 127) / 12;
  const double of_a_stage = std::hypot(rounding, rounding, left_out);
  const double of_a_logit = of_a_stage * std::sqrt(double(9 * num_layers + 1));
  constexpr double kSigmas = 4;
  return kSigmas * std::sqrt(2.0) * of_a_logit * logit_spread;
}

ScoreReport ScoreOracle(Engine& engine, const Oracle& oracle, std::optional<double> tolerance,
                        const ProgressFn& progress) {
  uint64_t total = 0, done = 0;
  double variance = 0;
  for (const OracleCase& c : oracle.cases) total += c.ids.size();
  ScoreReport report;
  for (const OracleCase& c : oracle.cases) {
    variance += ScoreCase(engine, c, {c, report});
    done += c.ids.size();
    if (progress) progress(done, total);
  }
  report.logit_spread = std::sqrt(variance / double(total));
  report.tolerance =
      tolerance.value_or(MarginTolerance(engine.config().num_layers, report.logit_spread));
  for (ScoreDifference& d : report.differences) {
    d.is_near_tie = d.margin <= report.tolerance;
    if (d.is_near_tie) ++(d.is_mtp ? report.mtp : report.next).near_ties;
  }
  return report;
}

HiddenReference ReadHiddenReference(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  HiddenReference reference;
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    if (tensor.name == "ids" && tensor.dtype == Dtype::kI32 && tensor.shape.size() == 1) {
      reference.ids.resize(size_t(tensor.shape[0]));
      file.Read(tensor, 0, tensor.num_bytes(), reference.ids.data());
    } else if (tensor.name == "hidden" && tensor.dtype == Dtype::kF32 && tensor.shape.size() == 3) {
      reference.num_stages = tensor.shape[0];
      reference.hidden_size = tensor.shape[2];
      reference.values.resize(tensor.num_bytes() / sizeof(float));
      file.Read(tensor, 0, tensor.num_bytes(), reference.values.data());
    }
  }
  const size_t want =
      size_t(reference.num_stages) * reference.ids.size() * size_t(reference.hidden_size);
  if (want == 0 || reference.values.size() != want) {
    throw Error(ErrorCode::kBadFile,
                fmt::format("{} does not hold `ids` int32 [tokens] and `hidden` float32 "
                            "[stages, tokens, hidden size]",
                            path.string()));
  }
  const auto bad =
      std::ranges::find_if_not(reference.values, [](float x) { return std::isfinite(x); });
  if (bad != reference.values.end()) {
    const int64_t row = (bad - reference.values.begin()) / reference.hidden_size;
    const auto tokens = int64_t(reference.ids.size());
    throw Error(ErrorCode::kBadFile,
                fmt::format("{}: stage {}, position {} holds a value that is not finite",
                            path.string(), row / tokens, row % tokens));
  }
  return reference;
}

HiddenReport CompareHidden(Engine& engine, const HiddenReference& reference) {
  CheckSizes(engine, reference);
  constexpr double kSigmas = 4, kSlope = 0.25;
  HiddenReport report;
  std::set<HiddenRun::Place> decided;
  auto run = std::make_unique<HiddenRun>(engine, reference, decided);
  for (int64_t stage = 0; stage < reference.num_stages; ++stage) {
    report.stages.push_back(run->Describe(stage));
  }
  for (int64_t layer = 0; layer < engine.config().num_layers; ++layer) {
    const int64_t after = layer + 1;
    const double tie = kSigmas * kSlope * run->MedianError(after);
    std::set<HiddenRun::Place> tried = decided;
    for (int64_t t = 0; t < int64_t(reference.ids.size()); ++t) {
      if (run->gap(layer, t) < tie) tried.emplace(layer, t);
    }
    if (tried.size() == decided.size()) continue;
    auto other = std::make_unique<HiddenRun>(engine, reference, tried);
    const size_t num_before = decided.size();
    for (const HiddenRun::Place& place : tried) {
      const auto [at, t] = place;
      if (at != layer || other->ErrorOf(after, t) >= run->ErrorOf(after, t)) continue;
      decided.insert(place);
      report.ties.push_back(
          {layer, t, run->gap(layer, t), run->ErrorOf(after, t), other->ErrorOf(after, t)});
    }
    if (decided.size() == num_before) continue;
    run = decided == tried ? std::move(other)
                           : std::make_unique<HiddenRun>(engine, reference, decided);
  }
  for (int64_t stage = 0; stage < reference.num_stages; ++stage) {
    report.stages[size_t(stage)].ties_decided = run->RelativeL2(stage);
  }
  return report;
}

}  // namespace hillstar
