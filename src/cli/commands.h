// The commands of the program, one function and one file each. Each prints its result to standard
// output, throws Error for what went wrong, and returns the exit code otherwise. Main thread only.
#pragma once

#include "core/options.h"

namespace hillstar {

int ChatCommand(const Options& options);
int RunCommand(const Options& options);
int ServeCommand(const Options& options);
int ScoreCommand(const Options& options);
int EvalCommand(const Options& options);
int BenchCommand(const Options& options);
// bench with one of the options that name a scenario.
bool AsksForScenarios(const Options& options);
int BenchScenarios(const Options& options);
int ConvertCommand(const Options& options);
int SynthCommand(const Options& options);
int InspectCommand(const Options& options);
int OptionsCommand(const Options& options);

}  // namespace hillstar
