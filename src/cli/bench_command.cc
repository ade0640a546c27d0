#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/bandwidth.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/request.h"
#include "cli/terminal.h"
#include "engine/memory_plan.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

// Kernels of one name, of one layer, or all, in one decode step.
struct KernelSum {
  std::string name;
  int64_t count = 0;
  double microseconds = 0, bytes = 0, products = 0;

  void Add(const KernelTime& t) {
    ++count;
    microseconds += t.microseconds;
    bytes += t.bytes;
    products += t.products;
  }
};

struct Measured {
  // On a GPU.
  DevicePeaks peaks;
  std::vector<KernelSum> kernels;
  std::map<int64_t, KernelSum> layers;  // -1: the head
  KernelSum all_kernels{.name = "in all, one after another"};
  int64_t profile_context = 0;
  std::vector<BenchRow> rows;
  double load_seconds = 0;
  double load_bytes = 0;  // of weights in memory
  uint64_t peak_bytes = 0;
  int64_t longest_tokens = 0;    // of a sequence so far, warm-up included
  uint64_t predicted_bytes = 0;  // for sequences of longest_tokens
  double bandwidth = 0;          // bytes a second
  double bytes_per_token = 0;
  double peak_products = 0;  // of two bytes a second
  bool has_small_weights = false;

  bool has_bounds() const { return bandwidth > 0 && peak_products > 0; }
  bool IsOverBound(const Engine& engine, bool is_prefill) const {
    return has_bounds() && std::ranges::any_of(rows, [&](const BenchRow& row) {
             return row.is_prefill == is_prefill && ShareOfBound(engine, row) > 1;
           });
  }
  // Share of the speed at which the weights alone could be read (decode), or the products of bytes
  // alone be done (prefill). REQUIRES has_bounds().
  double ShareOfBound(const Engine& engine, const BenchRow& row) const {
    if (row.is_prefill) {
      const double products = engine.prompt_products(row.num_tokens) / double(row.num_tokens);
      return products *
             (row.tokens_per_unit > 0 ? row.tokens_per_unit : row.median_rate / peak_products);
    }
    const bool is_beside = row.tokens_per_unit > 0;
    return bytes_per_token * (is_beside ? row.tokens_per_unit : row.median_rate / bandwidth);
  }
};

uint64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return uint64_t(usage.ru_maxrss) * 1024;
}

// Sums by name, in the order of a step.
void AddKernels(const std::vector<KernelTime>& times, Measured* m) {
  for (const KernelTime& t : times) {
    KernelSum& layer = m->layers[t.layer];
    layer.name = t.layer < 0 ? "head" : fmt::format("layer {}", t.layer);
    layer.Add(t);
    m->all_kernels.Add(t);
    auto found = std::ranges::find(m->kernels, t.name, &KernelSum::name);
    if (found == m->kernels.end()) {
      m->kernels.push_back({.name = t.name});
      found = m->kernels.end() - 1;
    }
    found->Add(t);
  }
}

// What the GPU could do in a kernel's time that it did, of whichever is nearer to its limit.
double ShareOfPeak(const KernelSum& k, const DevicePeaks& peaks) {
  const double seconds = 1e-6 * k.microseconds;
  const double read = peaks.read_bytes > 0 ? k.bytes / seconds / peaks.read_bytes : 0;
  const double products = peaks.products > 0 ? k.products / seconds / peaks.products : 0;
  return std::max(read, products);
}

void PrintKernelSum(const KernelSum& k, const DevicePeaks& peaks) {
  fmt::print("{:>9.1f} {:>8} {:>10.3f} {:>10.3f} {:>7.1f} %  {}\n", k.microseconds, k.count,
             k.bytes / 1e6, k.products / 1e9, 100 * ShareOfPeak(k, peaks), k.name);
}

void PrintKernels(const Measured& m) {
  if (m.kernels.empty()) return;
  fmt::print(
      "one decode step after {} tokens, kernel by kernel and layer by layer; the GPU reads {:.0f} "
      "GB/s and does {:.0f} trillion products of bytes a second; share: of the nearer limit\n"
      "{:>9} {:>8} {:>10} {:>10} {:>9}\n",
      m.profile_context, m.peaks.read_bytes / 1e9, m.peaks.products / 1e12, "us", "kernels", "MB",
      "G products", "share");
  for (const KernelSum& k : m.kernels) PrintKernelSum(k, m.peaks);
  PrintKernelSum(m.all_kernels, m.peaks);
  for (const auto& [index, layer] : m.layers) PrintKernelSum(layer, m.peaks);
}

std::string WhyOverBound(const Measured& m, bool is_prefill) {
  if (is_prefill) {
    return "prefill over the bound: products were faster during prefill than when they were "
           "measured";
  }
  return m.has_small_weights
             ? "decode over the bound: the processor's cache holds weights, which are then not "
               "read from memory"
             : "decode over the bound: memory was faster during decode than when it was measured";
}

void PrintTable(const OpenedModel& model, const Measured& m) {
  const Engine& engine = *model.engine;
  fmt::print("{}: weights {}, KV {}, {}\n", model.folder, engine.weight_summary(),
             engine.kv_format(), DeviceText(engine));
  fmt::print("{:<8} {:>8} {:>10} {:>12} {:>22} {:>16}\n", "", "tokens", "after", "tok/s",
             "lowest to highest", "share of bound");
  for (const BenchRow& row : m.rows) {
    fmt::print("{:<8} {:>8} {:>10} {:>12.1f} {:>22} {:>16}\n",
               row.is_prefill ? "prefill" : "decode", row.num_tokens, row.context_tokens,
               row.median_rate, fmt::format("{:.1f} to {:.1f}", row.lowest_rate, row.highest_rate),
               m.has_bounds() ? ShareText(m.ShareOfBound(engine, row)) : "-");
  }
  if (m.has_bounds()) {
    fmt::print(
        "bound of decode: {:.1f} GB/s of memory, {} of weights a token, {:.1f} tok/s; of prefill: "
        "{:.0f} billion products of bytes a second\n",
        m.bandwidth / 1e9, BytesText(uint64_t(m.bytes_per_token)), m.bandwidth / m.bytes_per_token,
        m.peak_products / 1e9);
    for (const bool is_prefill : {true, false}) {
      if (m.IsOverBound(engine, is_prefill)) fmt::print("{}\n", WhyOverBound(m, is_prefill));
    }
  }
  fmt::print("loaded {} in {:.2f} s, {:.2f} GB/s\n", BytesText(uint64_t(m.load_bytes)),
             m.load_seconds, m.load_bytes / m.load_seconds / 1e9);
  if (!IsCpu(engine)) {
    fmt::print(
        "peak memory of the host {}; predicted on {} for {} tokens {}, for the context of {} "
        "{}\n",
        BytesText(m.peak_bytes), engine.device().id, m.longest_tokens, BytesText(m.predicted_bytes),
        engine.context_tokens(), BytesText(engine.memory().on_device()));
    return;
  }
  fmt::print("peak memory {}; predicted for {} tokens {} ({:+.1f} %), for the context of {} {}\n",
             BytesText(m.peak_bytes), m.longest_tokens, BytesText(m.predicted_bytes),
             100 * (double(m.peak_bytes) / double(m.predicted_bytes) - 1), engine.context_tokens(),
             BytesText(engine.memory().total()));
}

void PrintJson(const OpenedModel& model, const Measured& m) {
  const Engine& engine = *model.engine;
  Json json;
  json["model"] = model.folder;
  json["weights"] = engine.weight_summary();
  json["kv_format"] = engine.kv_format();
  json["device"] = engine.device().id;
  json["device_name"] = engine.device().name;
  json["threads"] = engine.num_threads();
  json["simd"] = engine.simd_level();
  json["rows"] = Json::array();
  for (const BenchRow& row : m.rows) {
    Json entry{{"phase", row.is_prefill ? "prefill" : "decode"},
               {"tokens", row.num_tokens},
               {"context_tokens", row.context_tokens},
               {"tokens_per_second", row.median_rate},
               {"lowest", row.lowest_rate},
               {"highest", row.highest_rate},
               {"share_of_bound", nullptr}};
    if (m.has_bounds()) {
      const double share = m.ShareOfBound(engine, row);
      if (share <= 1) entry["share_of_bound"] = share;
      entry["is_over_bound"] = share > 1;
    }
    json["rows"].push_back(std::move(entry));
  }
  if (!m.kernels.empty()) {
    json["gpu_read_bytes_per_second"] = m.peaks.read_bytes;
    json["gpu_byte_products_per_second"] = m.peaks.products;
    const auto entry = [&](const KernelSum& k) {
      return Json{
          {"name", k.name},   {"count", k.count},       {"microseconds", k.microseconds},
          {"bytes", k.bytes}, {"products", k.products}, {"share_of_peak", ShareOfPeak(k, m.peaks)}};
    };
    json["kernels"] = json["layers"] = Json::array();
    for (const KernelSum& k : m.kernels) json["kernels"].push_back(entry(k));
    for (const auto& [index, layer] : m.layers) json["layers"].push_back(entry(layer));
  }
  json["read_bandwidth_bytes_per_second"] = m.bandwidth;
  json["weight_bytes_per_token"] = m.bytes_per_token;
  json["peak_byte_products_per_second"] = m.peak_products;
  json["load_seconds"] = m.load_seconds;
  json["load_bytes"] = m.load_bytes;
  json["peak_bytes"] = m.peak_bytes;
  json["longest_tokens"] = m.longest_tokens;
  json["predicted_bytes"] = m.predicted_bytes;
  json["context_tokens"] = engine.context_tokens();
  json["predicted_bytes_of_context"] =
      IsCpu(engine) ? engine.memory().total() : engine.memory().on_device();
  fmt::print("{}\n", json.dump(2));
}

// What was measured beside the rows of prefill or decode.
std::vector<double> Beside(const std::vector<BenchRow>& rows, bool is_prefill) {
  std::vector<double> all;
  for (const BenchRow& row : rows) {
    if (row.is_prefill == is_prefill) all.insert(all.end(), row.beside.begin(), row.beside.end());
  }
  return all;
}

void ProfileDecode(Engine& engine, const BenchPlan& plan, Measured* m) {
  m->peaks = engine.MeasureDevicePeaks();
  if (plan.context_tokens.empty()) return;
  m->profile_context = std::max<int64_t>(1, plan.context_tokens.back());
  const auto sequence = engine.NewSequence({.shares_prefixes = false});
  sequence->Append(SpreadTokens(m->profile_context, engine.config().vocab_size), LogitsMode::kNone);
  AddKernels(engine.ProfileStep(*sequence, 1), m);
}

}  // namespace

int BenchCommand(const Options& options) {
  if (AsksForScenarios(options)) return BenchScenarios(options);
  BenchPlan plan;
  plan.prompt_tokens = ParseTokenCounts("prompt-tokens", options.prompt_tokens, 1);
  plan.context_tokens = ParseTokenCounts("context-tokens", options.context_tokens, 0);
  plan.decode_tokens = options.decode_tokens;
  plan.repeat = options.repeat;
  const OpenedModel model = OpenModel(options, /*load_mtp=*/false);
  const MemoryPlan memory = model.engine->memory();
  Measured m;
  m.load_seconds = model.load_seconds;
  m.load_bytes = double(memory.dense_weights + memory.experts);
  m.bytes_per_token = double(model.engine->weight_bytes_per_token());
  // Large weights are read between the measurements of decode, so that both meet the same machine.
  if (IsCpu(*model.engine)) {
    plan.beside_prefill = [&] { return model.engine->MeasureDevicePeaks().products; };
  }
  const auto weights = WeightsToRead(model.engine->weight_memory());
  m.has_small_weights = IsCpu(*model.engine) && weights.empty();
  if (!weights.empty()) {
    plan.beside_decode = [&] {
      return MeasureReadBandwidth(model.engine->num_threads(), weights, 1);
    };
  }
  {
    ProgressLine line("measurement", ProgressLine::Unit::kItems);
    m.rows = MeasureSpeed(*model.engine, plan,
                          [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  }
  if (!IsCpu(*model.engine)) ProfileDecode(*model.engine, plan, &m);
  m.peak_bytes = PeakResidentBytes();  // before the buffer counts that bandwidth may need
  m.longest_tokens = std::min(kWarmUpTokens, model.engine->context_tokens());
  for (const BenchRow& row : m.rows) {
    const int64_t before = row.is_prefill ? 0 : std::max<int64_t>(1, row.context_tokens);
    m.longest_tokens = std::max(m.longest_tokens, before + row.num_tokens);
  }
  EngineOptions as_used = EngineOptionsFrom(options, model.folder, /*load_mtp=*/false);
  as_used.device = model.engine->device().id;
  const MemoryPlan as_used_memory = PredictMemory(as_used, m.longest_tokens);
  m.predicted_bytes = IsCpu(*model.engine) ? as_used_memory.total() : as_used_memory.on_device();
  if (IsCpu(*model.engine)) {
    const std::vector<double> passes = Beside(m.rows, false);
    m.bandwidth =
        passes.empty() ? MeasureBufferBandwidth(model.engine->num_threads()) : MedianOf(passes);
    m.peak_products = MedianOf(Beside(m.rows, true));
  } else {
    m.bandwidth = m.peaks.read_bytes;
    m.peak_products = m.peaks.products;
  }
  if (options.json) {
    PrintJson(model, m);
  } else {
    PrintTable(model, m);
    PrintKernels(m);
  }
  return 0;
}

}  // namespace hillstar
