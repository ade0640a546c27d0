#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "core/log.h"
#include "formats/file_io.h"

namespace hillstar {
namespace {

int Dispatch(const CommandLine& line) {
  const Options& options = line.options;
  SetLogLevel(options.log_level);
  if (!options.from_file.empty()) {
    LogDebug(fmt::format("the configuration file gives {}", fmt::join(options.from_file, ", ")));
  }
  switch (line.command) {
    case Command::kChat: return ChatCommand(options);
    case Command::kRun: return RunCommand(options);
    case Command::kScore: return ScoreCommand(options);
    case Command::kEval: return EvalCommand(options);
    case Command::kBench: return BenchCommand(options);
    case Command::kConvert: return ConvertCommand(options);
    case Command::kSynth: return SynthCommand(options);
    case Command::kInspect: return InspectCommand(options);
    case Command::kOptions: return OptionsCommand(options);
    case Command::kServe: return ServeCommand(options);
  }
  return 2;
}

// Messages hold what files and users wrote: control characters must not reach a terminal.
std::string Printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n') || byte == 0x7f) c = '?';
  }
  return text;
}

// A report that did not arrive is a failure, also where the writes were buffered.
int CheckOutput(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fputs("hillstar: standard output cannot be written\n", stderr);
  return exit_code == 0 ? 1 : exit_code;
}

int Main(const std::vector<std::string>& arguments) {
  try {
    const CommandLine line = ParseCommandLine(arguments);
    if (line.text.empty()) return CheckOutput(Dispatch(line));
    std::fputs(line.text.c_str(), stdout);
    return CheckOutput(0);
  } catch (const Error& error) {
    std::fprintf(stderr, "hillstar: %s\n", Printable(error.what()).c_str());
    return ExitCode(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr,
                 "hillstar: the system gave no more memory; a smaller --context needs less\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hillstar: unexpected error: %s\n", Printable(error.what()).c_str());
    return 1;
  }
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) {
  hillstar::OpenClosedStandardStreams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit is then an error like others
  return hillstar::Main({argv + 1, argv + argc});
}
