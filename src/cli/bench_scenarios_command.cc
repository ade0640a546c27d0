// `hillstar bench` with --batch, --mixed-prompt, --shared-prefix or --synthetic-context.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/bench_scenarios.h"
#include "cli/commands.h"
#include "cli/open_model.h"
#include "cli/request.h"
#include "cli/terminal.h"
#include "engine/memory_plan.h"
#include "kv/kv_shape.h"
#include "model/weights.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;

// Tokens of a prompt beside answers, one measurement each: few, the default, a whole chunk.
constexpr std::array<int64_t, 3> kMixedPromptTokens = {16, 64, 512};
// What a prompt has behind a shared prefix.
constexpr int64_t kPrefixRest = 16;

// Of a prompt in a step beside answers, of which each takes a token of the step first.
int64_t MixedPromptTokens(int64_t wanted, int64_t step_tokens, int64_t num_answers) {
  return std::min(wanted, step_tokens - num_answers);
}

// Of a sequence's tokens, one page more than they fill: what the scheduler keeps free.
int64_t PagesFor(int64_t num_tokens) { return KvShape::PagesOf(num_tokens) + 1; }

// What the options ask for, and what it needs.
struct Scenarios {
  std::vector<int64_t> batch, contexts;
  int64_t most_sequences = 1;
  int64_t context = 1;     // tokens of the longest sequence
  std::string context_of;  // the option that asks for it
  int64_t num_pages = 0;   // that are in use at once, at most

  explicit Scenarios(const Options& options) {
    if (!options.batch.empty()) batch = ParseTokenCounts("batch", options.batch, 1);
    if (!options.synthetic_context.empty()) {
      contexts = ParseTokenCounts("synthetic-context", options.synthetic_context, 1);
    }
    if (batch.empty() && options.mixed_prompt > 0) {
      throw Error(ErrorCode::kUsage,
                  "--mixed-prompt needs --batch, the number of answers beside it");
    }
    for (int64_t n : batch) most_sequences = std::max(most_sequences, n);
    const int64_t most = kMaxSequences - int64_t(options.mixed_prompt > 0);
    if (most_sequences > most) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--batch {}: at most {} sequences run at once{}", most_sequences,
                              most, options.mixed_prompt > 0 ? " beside --mixed-prompt" : ""));
    }
    if (!batch.empty()) {
      Need("--batch with --decode-tokens", BatchTokens(most_sequences, options.decode_tokens),
           most_sequences);
    }
    if (options.mixed_prompt > 0) {
      // The engine's: its context, of more tokens than answers and kMixedPromptTokens.front()
      // together, does not make it less.
      const int64_t step_tokens = std::max(options.prefill_chunk, most_sequences + 1);
      const int64_t fewest =
          MixedPromptTokens(kMixedPromptTokens.front(), step_tokens, most_sequences);
      Need("--mixed-prompt", MixedAnswerTokens(most_sequences, options.mixed_prompt, fewest),
           most_sequences);
      const int64_t answers = num_pages;
      Need("--mixed-prompt", options.mixed_prompt + 1, 1);
      num_pages = std::max(num_pages, answers + PagesFor(options.mixed_prompt + 1));
    }
    if (options.shared_prefix > 0) {
      Need("--shared-prefix", options.shared_prefix + kPrefixRest + 1, 2);
    }
    for (int64_t n : contexts) Need("--synthetic-context", n + 1, 1);
  }

  // Of num_sequences at once.
  void Need(const char* option, int64_t num_tokens, int64_t num_sequences) {
    if (num_tokens > context) {
      context = num_tokens;
      context_of = option;
    }
    num_pages = std::max(num_pages, num_sequences * PagesFor(num_tokens));
  }
};

OpenedModel OpenForScenarios(Options options, const Scenarios& scenarios) {
  const auto source = ModelSource::Open(ModelFolder(options.model), options.weights,
                                        /*with_mtp=*/false);
  const int64_t limit = source->config().max_positions;
  if (scenarios.context > limit) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} needs a context of {} tokens, and the model's limit is {}",
                            scenarios.context_of, scenarios.context, limit));
  }
  options.context = std::max(options.context, scenarios.context);
  EngineSettings settings;
  settings.max_sequences = scenarios.most_sequences + int64_t(options.mixed_prompt > 0);
  settings.kv_tokens = scenarios.num_pages * kPageTokens;
  return OpenModel(options, /*load_mtp=*/false, settings);
}

struct Results {
  std::vector<BatchSpeed> batch;
  std::vector<MixedLoad> mixed;
  std::vector<SharedPrefix> prefix;  // none or one
  std::vector<LongContext> contexts;
};

Results Measure(Engine& engine, const Options& options, const Scenarios& scenarios) {
  Results r;
  std::vector<int64_t> mixed_tokens;
  for (const int64_t wanted : kMixedPromptTokens) {
    const int64_t tokens =
        MixedPromptTokens(wanted, engine.max_step_tokens(), scenarios.most_sequences);
    const bool is_new = std::ranges::count(mixed_tokens, tokens) == 0;
    if (options.mixed_prompt > 0 && is_new) mixed_tokens.push_back(tokens);
  }
  ProgressLine line("measurement", ProgressLine::Unit::kItems);
  const uint64_t total = scenarios.batch.size() + mixed_tokens.size() +
                         size_t(options.shared_prefix > 0) + scenarios.contexts.size();
  uint64_t done = 0;
  line.Update(done, total);
  for (int64_t n : scenarios.batch) {
    r.batch.push_back(MeasureBatch(engine, n, options.decode_tokens, options.repeat));
    line.Update(++done, total);
  }
  for (const int64_t mixed : mixed_tokens) {
    r.mixed.push_back(
        MeasureMixedLoad(engine, scenarios.most_sequences, options.mixed_prompt, mixed));
    line.Update(++done, total);
  }
  if (options.shared_prefix > 0) {
    r.prefix.push_back(MeasureSharedPrefix(engine, options.shared_prefix, kPrefixRest));
    line.Update(++done, total);
  }
  for (int64_t tokens : scenarios.contexts) {
    r.contexts.push_back(MeasureSyntheticContext(engine, tokens, options.repeat));
    line.Update(++done, total);
  }
  return r;
}

void PrintLines(const Results& r) {
  for (const BatchSpeed& row : r.batch) {
    fmt::print("batch {:>4}: {:>9.1f} tok/s ({:.1f} to {:.1f})", row.num_sequences, row.median_rate,
               row.lowest_rate, row.highest_rate);
    if (&row == &r.batch[0]) {
      fmt::print("\n");
    } else {
      fmt::print(", {:.2f} times batch {}\n", row.median_rate / r.batch[0].median_rate,
                 r.batch[0].num_sequences);
    }
  }
  for (const MixedLoad& m : r.mixed) {
    fmt::print(
        "{} and a prompt of {}, {} of it a step: between an answer's tokens {:.1f} ms ({:.1f} "
        "at most) before, {:.1f} ms ({:.1f} at most) meanwhile; the prompt's first token after "
        "{:.2f} s\n",
        CountText(m.num_answers, "answer"), CountText(m.prompt_tokens, "token"),
        m.mixed_prompt_tokens, m.before.median_ms, m.before.longest_ms, m.meanwhile.median_ms,
        m.meanwhile.longest_ms, m.first_token_seconds);
  }
  for (const SharedPrefix& p : r.prefix) {
    fmt::print(
        "prefix of {}: first token after {:.1f} ms, with {} reused after {:.2f} ms "
        "({:.2f} %)\n",
        CountText(p.prefix_tokens, "token"), 1e3 * p.first_seconds,
        CountText(p.reused_tokens, "token"), 1e3 * p.second_seconds,
        100 * p.second_seconds / p.first_seconds);
  }
  for (const LongContext& c : r.contexts) {
    fmt::print("{:>8} random tokens: a step takes {:.2f} ms (lowest {:.2f})\n", c.context_tokens,
               c.median_ms, c.lowest_ms);
  }
}

Json ToJson(const Gaps& gaps) {
  return {{"median_ms", gaps.median_ms}, {"longest_ms", gaps.longest_ms}};
}

void PrintJson(const OpenedModel& model, const Options& options, const Results& r) {
  Json json;
  json["model"] = model.folder;
  json["weights"] = model.engine->weight_summary();
  json["kv_format"] = model.engine->kv_format();
  json["device"] = model.engine->device().id;
  json["device_name"] = model.engine->device().name;
  json["threads"] = model.engine->num_threads();
  json["simd"] = model.engine->simd_level();
  json["attention"] = options.attention;
  for (const BatchSpeed& row : r.batch) {
    json["batch"].push_back({{"sequences", row.num_sequences},
                             {"tokens_per_second", row.median_rate},
                             {"lowest", row.lowest_rate},
                             {"highest", row.highest_rate}});
  }
  for (const MixedLoad& m : r.mixed) {
    json["mixed"].push_back({{"answers", m.num_answers},
                             {"prompt_tokens", m.prompt_tokens},
                             {"prompt_tokens_per_step", m.mixed_prompt_tokens},
                             {"gaps_before", ToJson(m.before)},
                             {"gaps_meanwhile", ToJson(m.meanwhile)},
                             {"first_token_seconds", m.first_token_seconds}});
  }
  for (const SharedPrefix& p : r.prefix) {
    json["prefix"] = {{"prefix_tokens", p.prefix_tokens},
                      {"reused_tokens", p.reused_tokens},
                      {"first_seconds", p.first_seconds},
                      {"second_seconds", p.second_seconds}};
  }
  for (const LongContext& c : r.contexts) {
    json["synthetic_contexts"].push_back({{"context_tokens", c.context_tokens},
                                          {"step_ms", c.median_ms},
                                          {"lowest_ms", c.lowest_ms}});
  }
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

bool AsksForScenarios(const Options& options) {
  return !options.batch.empty() || !options.synthetic_context.empty() || options.mixed_prompt > 0 ||
         options.shared_prefix > 0;
}

int BenchScenarios(const Options& options) {
  const Scenarios scenarios(options);
  const OpenedModel model = OpenForScenarios(options, scenarios);
  const Results results = Measure(*model.engine, options, scenarios);
  if (options.json) {
    PrintJson(model, options, results);
    return 0;
  }
  fmt::print("{}: weights {}, KV {}, {}, attention {}\n", model.folder,
             model.engine->weight_summary(), model.engine->kv_format(), DeviceText(*model.engine),
             options.attention);
  PrintLines(results);
  return 0;
}

}  // namespace hillstar
