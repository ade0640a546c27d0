// What the formats of KV rows and index keys cost, and whether q8 needs one scale a row or one for
// every 128 columns. The verdict is in docs/numerics.md, "KV rows" and "Indexer".
//   kv_scales CHECKPOINT ORACLE.json [CASE...]   the model's logits and selections, then:
//   kv_scales                                    attention over synthetic rows with outliers
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "device/host_device.h"
#include "engine/memory_plan.h"
#include "engine/sampler.h"
#include "kv/row_values.h"
#include "model/forward.h"
#include "numerics/e4m3.h"
#include "numerics/likelihood.h"
#include "ops/cpu_ops.h"

namespace hillstar {
namespace {

constexpr int64_t kStepTokens = 512;

enum class Rounding { kNone, kOneScale, kFourScales, kFp8 };

// Values of one plane with a scale for every `columns` of them.
void RoundToPlane(float* x, int64_t n, int64_t columns) {
  std::vector<int8_t> hi(static_cast<size_t>(columns));
  for (int64_t first = 0; first < n; first += columns) {
    const int64_t count = std::min(columns, n - first);
    const float scale = QuantiseRow(x + first, count, hi.data(), nullptr);
    for (int64_t i = 0; i < count; ++i) x[first + i] = scale * float(hi[size_t(i)]);
  }
}

void RoundToFp8(float* x, int64_t n) {
  std::vector<uint8_t> codes(static_cast<size_t>(n));
  const float scale = EncodeE4m3Row(x, n, codes.data());
  for (int64_t i = 0; i < n; ++i) {
    x[i] = scale / 256 * float(kE4m3Steps.steps[codes[size_t(i)]]);
  }
}

void Round(Rounding rounding, float* x, int64_t n) {
  switch (rounding) {
    case Rounding::kNone: return;
    case Rounding::kOneScale: return RoundToPlane(x, n, n);
    case Rounding::kFourScales: return RoundToPlane(x, n, 128);
    case Rounding::kFp8: return RoundToFp8(x, n);
  }
}

struct Variant {
  const char* name;
  KvFormat format;
  Rounding latents;        // of q15 rows
  bool one_plane_keys;     // of the indexer beside q15, which has two
  bool one_plane_queries;  // likewise
};
constexpr Variant kVariants[] = {
    {"q15", KvFormat::kQ15, Rounding::kNone, false, false},
    {"q15, latents in q8, a scale a row", KvFormat::kQ15, Rounding::kOneScale, false, false},
    {"q15, latents in q8, a scale per 128", KvFormat::kQ15, Rounding::kFourScales, false, false},
    {"q15, latents in fp8", KvFormat::kQ15, Rounding::kFp8, false, false},
    {"q15, index keys of one plane", KvFormat::kQ15, Rounding::kNone, true, false},
    {"q15, keys and queries of one plane", KvFormat::kQ15, Rounding::kNone, true, true},
    {"q8", KvFormat::kQ8, Rounding::kNone, false, false},
    {"fp8", KvFormat::kFp8, Rounding::kNone, false, false},
};

// The operations of a CPU, which leave stored rows as the variant has them and note what is
// selected.
class VariantOps : public CpuOps {
 public:
  VariantOps(const Variant& variant, MemoryBudget& budget)
      : CpuOps(ChooseKernels("auto"), 2, budget), variant_(variant) {}

  void AppendLatents(const StepTokens& step, const float* kv, const float* norm_weight, float eps,
                     const KvRowLayout& layout, StepPages pages) override {
    CpuOps::AppendLatents(step, kv, norm_weight, eps, layout, pages);
    if (variant_.latents == Rounding::kNone) return;
    for (int64_t t = 0; t < step.num_tokens; ++t) {
      RoundRow(layout.latent_part(), pages.of(t).row(layout, step.positions[t]));
    }
  }
  void AppendIndexKeys(const StepTokens& step, const float* k, const IndexKeyNorm& norm,
                       const IndexKeyLayout& layout, StepPages pages) override {
    CpuOps::AppendIndexKeys(step, k, norm, layout, pages);
    if (!variant_.one_plane_keys) return;
    for (int64_t t = 0; t < step.num_tokens; ++t) {
      const int64_t pos = step.positions[t];
      uint8_t* panel = pages.of(t).panel(layout, pos);
      for (int64_t i = 0; i < layout.dim; ++i) {
        panel[layout.low_at(pos % kIndexPanelTokens, i)] = 128;
      }
    }
  }
  void MakeIndexQueries(const StepTokens& step, const float* q, const float* weights,
                        const QueryShape& shape, int64_t max_keys,
                        const IndexQueries& out) override {
    CpuOps::MakeIndexQueries(step, q, weights, shape, max_keys, out);
    if (!variant_.one_plane_queries) return;
    std::fill_n(out.planes.lo, step.num_tokens * shape.num_heads * out.planes.stride, int8_t{0});
  }
  void Select(const StepTokens& step, const IndexQueries& queries, int64_t num_heads,
              const IndexKeyLayout& layout, StepPages pages, const Selection& selection) override {
    CpuOps::Select(step, queries, num_heads, layout, pages, selection);
    auto& layer = selected_.emplace_back();
    for (int64_t t = 0; t < step.num_tokens; ++t) {
      const int32_t* list = selection.lists + t * selection.max_keys;
      layer.emplace_back(list, list + selection.counts[t]);
    }
  }

  // [call of Select][token of its step]: empty where everything is selected.
  using Lists = std::vector<std::vector<std::vector<int32_t>>>;
  const Lists& selected() const { return selected_; }

 private:
  void RoundRow(const KvRowPart& part, uint8_t* row) const {
    std::vector<float> x;
    for (int64_t i = 0; i < part.num_values; ++i) {
      const PlanePair value = RowValue(part, row, i);
      x.push_back(RowScale(part, row) / 256 * float(256 * value.hi + value.lo));
    }
    Round(variant_.latents, x.data(), part.num_values);
    StoreRowPart(ChooseKernels("reference"), part, x.data(), row);
  }

  const Variant& variant_;
  Lists selected_;
};

struct Result {
  std::vector<float> logits;  // [tokens, vocab]
  VariantOps::Lists selected;
};

class Model {
 public:
  explicit Model(const std::string& folder)
      : source_(ModelSource::Open(folder, "w15", /*load_mtp=*/false)),
        weights_(LoadWeights(*source_, memory_, 2, {})) {}

  int64_t vocab_size() const { return source_->config().vocab_size; }

  Result Run(const Variant& variant, const std::vector<int32_t>& ids) {
    const ModelConfig& config = source_->config();
    const auto num_tokens = int64_t(ids.size());
    EngineSizes sizes;
    sizes.context_tokens = num_tokens;
    sizes.step_tokens = std::min(kStepTokens, num_tokens);
    const KvShape shape = KvShapeOf(*source_, variant.format);
    HostMemory memory;
    VariantOps ops(variant, memory.budget());
    ops.Prepare(OpsLimits(config, shape, sizes));
    KvCache cache(shape, memory, KvShape::PagesOf(num_tokens), 0);
    ForwardPass forward(config, weights_, ops,
                        {sizes.step_tokens, num_tokens, shape.row, shape.index});
    SequenceKv kv(cache);
    kv.Prepare(0, num_tokens);
    StepSequence sequence{.kv = &kv};
    Result result;
    result.logits.resize(size_t(num_tokens * vocab_size()));
    std::vector<BatchToken> tokens;
    for (int64_t at = 0; at < num_tokens; at += sizes.step_tokens) {
      tokens.clear();
      for (int64_t i = at; i < std::min(num_tokens, at + sizes.step_tokens); ++i) {
        tokens.push_back({ids[size_t(i)], i, &sequence});
      }
      forward.Run(tokens, 0, {});
      forward.Logits(0, int64_t(tokens.size()), result.logits.data() + at * vocab_size());
    }
    result.selected = ops.selected();
    return result;
  }

 private:
  std::unique_ptr<ModelSource> source_;
  HostMemory memory_;
  ModelWeights weights_;
};

// Share of a's choices that are b's as well: mean over all, and over the tokens of the worst layer
// (calls follow each other layer by layer, `num_layers` a step).
struct Overlap {
  double mean = 1, worst_layer = 1;
};
Overlap Shared(const VariantOps::Lists& a, const VariantOps::Lists& b, size_t num_layers) {
  std::vector<double> sum(num_layers), count(num_layers);
  for (size_t call = 0; call < a.size(); ++call) {
    for (size_t t = 0; t < a[call].size(); ++t) {
      const std::vector<int32_t>&x = a[call][t], &y = b[call][t];
      if (x.empty()) continue;
      std::vector<int32_t> both;
      std::ranges::set_intersection(x, y, std::back_inserter(both));
      sum[call % num_layers] += double(both.size()) / double(x.size());
      count[call % num_layers] += 1;
    }
  }
  Overlap overlap;
  for (size_t l = 0; l < num_layers; ++l) {
    if (count[l] > 0) overlap.worst_layer = std::min(overlap.worst_layer, sum[l] / count[l]);
  }
  const double all = std::accumulate(count.begin(), count.end(), 0.0);
  if (all > 0) overlap.mean = std::accumulate(sum.begin(), sum.end(), 0.0) / all;
  return overlap;
}

void CompareVariants(Model& model, const std::string& name, const std::vector<int32_t>& ids) {
  fmt::print("\n{}: {} tokens\n{:<38} {:>10} {:>8} {:>9} {:>9}\n", name, ids.size(), "", "mean KL",
             "argmax", "selected", "worst");
  const Result exact = model.Run(kVariants[0], ids);
  const auto num_steps = size_t(CeilDiv(int64_t(ids.size()), kStepTokens));
  const size_t num_layers = std::max<size_t>(1, exact.selected.size() / num_steps);
  for (const Variant& variant : std::span(kVariants).subspan(1)) {
    const Result result = model.Run(variant, ids);
    double divergence = 0, same = 0;
    for (size_t t = 0; t < ids.size(); ++t) {
      const auto vocab = size_t(model.vocab_size());
      const auto p = std::span(exact.logits).subspan(t * vocab, vocab);
      const auto q = std::span(result.logits).subspan(t * vocab, vocab);
      divergence += KlDivergence(p, q);
      same += Argmax(p) == Argmax(q);
    }
    const Overlap overlap = Shared(exact.selected, result.selected, num_layers);
    fmt::print("{:<38} {:>10.2e} {:>7.2f}% {:>9.4f} {:>9.4f}\n", variant.name,
               divergence / double(ids.size()), 100 * same / double(ids.size()), overlap.mean,
               overlap.worst_layer);
    std::fflush(stdout);
  }
}

void CompareOnModel(const std::string& folder, const std::string& oracle,
                    const std::set<std::string>& wanted) {
  Model model(folder);
  std::ifstream file(oracle);
  const auto json = nlohmann::json::parse(file);
  for (const auto& entry : json.at("cases")) {
    const auto name = entry.at("name").get<std::string>();
    if (!wanted.contains(name)) continue;
    auto ids = entry.at("prompt_ids").get<std::vector<int32_t>>();
    const auto greedy = entry.at("greedy_ids").get<std::vector<int32_t>>();
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    CompareVariants(model, name, ids);
  }
}

constexpr int64_t kLatent = 512;
using Rows = std::vector<std::vector<float>>;  // [keys][latents]

// Attention of one query in double: softmax of scale * (query . row), then the weighted rows.
std::vector<double> AttendExactly(const Rows& rows, const std::vector<float>& query, double scale) {
  std::vector<double> p;
  for (const auto& row : rows) {
    p.push_back(scale * std::inner_product(row.begin(), row.end(), query.begin(), 0.0));
  }
  const double largest = *std::ranges::max_element(p);
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - largest);
  std::vector<double> out(kLatent);
  for (size_t k = 0; k < rows.size(); ++k) {
    for (size_t d = 0; d < out.size(); ++d) out[d] += p[k] / sum * double{rows[k][d]};
  }
  return out;
}

// Relative error (L2) of the outputs of some queries with the rows rounded; of all channels, and of
// those that are no outliers.
struct OutputError {
  double all = 0, others = 0;
};
OutputError ErrorOf(const Rows& rows, const Rows& queries, const std::set<size_t>& outliers,
                    Rounding rounding) {
  Rows rounded = rows;
  for (auto& row : rounded) Round(rounding, row.data(), kLatent);
  double error[2] = {}, size[2] = {};
  for (const auto& query : queries) {
    double squares = 0;  // scores of a standard deviation of 2
    for (const auto& row : rows) {
      const double score = std::inner_product(row.begin(), row.end(), query.begin(), 0.0);
      squares += score * score;
    }
    const double scale = 2 / std::sqrt(squares / double(rows.size()));
    const auto exact = AttendExactly(rows, query, scale);
    const auto found = AttendExactly(rounded, query, scale);
    for (size_t d = 0; d < exact.size(); ++d) {
      const size_t kind = outliers.contains(d) ? 1 : 0;
      error[kind] += (found[d] - exact[d]) * (found[d] - exact[d]);
      size[kind] += exact[d] * exact[d];
    }
  }
  return {std::sqrt((error[0] + error[1]) / (size[0] + size[1])), std::sqrt(error[0] / size[0])};
}

void CompareOnOutliers() {
  fmt::print(
      "\nsynthetic rows: 512 normal latents, some channels larger; relative error of the "
      "output in all channels / in those that are not larger\n{:<22} {:>21} {:>21} {:>21}\n",
      "", "q8, a scale a row", "q8, a scale per 128", "fp8");
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto& [num_outliers, factor] : {std::pair<int, float>{0, 1},
                                             {1, 8},
                                             {1, 32},
                                             {1, 64},
                                             {4, 8},
                                             {4, 32},
                                             {4, 64},
                                             {16, 8},
                                             {16, 32},
                                             {16, 64}}) {
    std::set<size_t> outliers;
    while (outliers.size() < size_t(num_outliers)) outliers.insert(random() % kLatent);
    Rows rows(512, std::vector<float>(kLatent)), queries(16, std::vector<float>(kLatent));
    for (auto& row : rows) {
      for (size_t d = 0; d < row.size(); ++d) {
        row[d] = normal(random) * (outliers.contains(d) ? factor : 1.0f);
      }
    }
    // Keys of outlier channels meet small weights: a score is not decided by them alone.
    for (auto& query : queries) {
      for (size_t d = 0; d < query.size(); ++d) {
        query[d] = normal(random) / (outliers.contains(d) ? factor : 1.0f);
      }
    }
    fmt::print("{:<22}",
               num_outliers == 0 ? "no outliers" : fmt::format("{} x {}", num_outliers, factor));
    for (Rounding rounding : {Rounding::kOneScale, Rounding::kFourScales, Rounding::kFp8}) {
      const OutputError e = ErrorOf(rows, queries, outliers, rounding);
      fmt::print(" {:>21}", fmt::format("{:.2e} / {:.2e}", e.all, e.others));
    }
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) {
  using namespace hillstar;
  try {
    if (argc == 2) {
      fmt::print(stderr, "kv_scales [CHECKPOINT ORACLE.json [CASE...]]\n");
      return 2;
    }
    if (argc >= 3) {
      std::set<std::string> cases(argv + 3, argv + argc);
      if (cases.empty()) cases = {"recall-1500", "recall-6000"};
      CompareOnModel(argv[1], argv[2], cases);
    }
    CompareOnOutliers();
  } catch (const std::exception& e) {
    fmt::print(stderr, "kv_scales: {}\n", e.what());
    return 1;
  }
  return 0;
}
