// From options to what the engine is asked. Plain functions; main thread only.
#pragma once

#include <string>
#include <vector>

#include "core/options.h"
#include "engine/generate.h"
#include "hillstar/engine.h"
#include "tokenizer/chat_format.h"

namespace hillstar {

// The engine options of a command; `folder` is the model's.
EngineOptions EngineOptionsFrom(const Options& options, const std::string& folder, bool load_mtp);

// Whether a CPU computes.
bool IsCpu(const Engine& engine);
// What computes: "cpu, 2 threads, avx512", "cuda:0 (NVIDIA H200)".
std::string DeviceText(const Engine& engine);

// Sampling, lengths, stop strings of the options; the model's values where an option is not given.
// Prompt, end ids and callbacks are left to the caller.
GenerateRequest RequestFrom(const Options& options, const Engine& engine);
// What the template is told. `is_built_in` decides what "auto" means.
ChatOptions ChatOptionsFrom(const Options& options, bool is_built_in);

// A line for --stats.
std::string StatsText(const GenerateResult& result);

}  // namespace hillstar
