#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/terminal.h"
#include "core/cpu_topology.h"
#include "model/convert.h"
#include "model/synth.h"

namespace hillstar {
namespace {

WeightFormat FormatNamed(const std::string& name) {
  if (name == "w4") return WeightFormat::kW4;
  return name == "w8" ? WeightFormat::kW8 : WeightFormat::kW15;
}

FormatPlan FormatsFrom(const Options& options) {
  FormatPlan plan;
  plan.experts = FormatNamed(options.experts);
  plan.dense = FormatNamed(options.dense);
  plan.mtp_experts = plan.experts;
  return plan;
}

int ThreadsFrom(const Options& options) {
  return options.threads > 0 ? int(options.threads) : NumUsableCores();
}

// The plan goes to standard error as progress does: standard output is for results.
void PrintSummary(const std::string& summary) { std::fputs(summary.c_str(), stderr); }

// Runs `build` with progress and Ctrl-C, and says how to go on after a stop.
template <typename Build>
void RunStoppable(const Build& build) {
  InterruptGuard guard;
  ProgressLine line("writing", ProgressLine::Unit::kBytes);
  try {
    build([&](uint64_t done, uint64_t total) { line.Update(done, total); }, guard.flag());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
    throw Error(ErrorCode::kCancelled,
                "stopped; what is finished stays, and the same command goes on from there");
  }
}

}  // namespace

int ConvertCommand(const Options& options) {
  ConvertJob job;
  job.checkpoint = options.arguments[0];
  job.out = options.arguments[1];
  job.formats = FormatsFrom(options);
  job.with_mtp = !options.no_mtp;
  job.num_threads = ThreadsFrom(options);
  ConversionPlan plan = PlanConversion(job);
  PrintSummary(plan.summary);
  if (options.dry_run) return 0;
  RunStoppable([&](const ProgressFn& progress, const std::atomic<bool>* cancel) {
    RunConversion(&plan, progress, cancel);
  });
  fmt::print("{}\n", job.out.string());
  return 0;
}

int SynthCommand(const Options& options) {
  SynthJob job;
  job.out = options.arguments[0];
  job.geometry = options.geometry;
  job.num_layers = options.layers;
  job.num_dense_layers = options.dense_layers;
  job.max_positions = options.positions;
  job.formats = FormatsFrom(options);
  job.with_mtp = options.with_mtp;
  if (options.is_given("seed")) job.seed = uint64_t(options.seed);
  job.num_threads = ThreadsFrom(options);
  SynthPlan plan = PlanSynth(job);
  PrintSummary(plan.summary);
  if (options.dry_run) return 0;
  RunStoppable([&](const ProgressFn& progress, const std::atomic<bool>* cancel) {
    RunSynth(&plan, progress, cancel);
  });
  fmt::print("{}\n", job.out.string());
  return 0;
}

}  // namespace hillstar
