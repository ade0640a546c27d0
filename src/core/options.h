// Every option of the command line, one row each: the parser, `--help`, the configuration file,
// validation and docs/options.md are all made from this table. Plain data without a lock: each
// command owns its Options; the tables are constant and may be read by any thread.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hillstar/error.h"

namespace hillstar {

enum class Command : uint32_t {
  kChat = 1,
  kRun = 2,
  kScore = 4,
  kEval = 8,
  kBench = 16,
  kConvert = 32,
  kSynth = 64,
  kInspect = 128,
  kOptions = 256,
  kServe = 512,
};

// The values of all options; the initialisers are the defaults that the table prints.
struct Options {
  bool help = false;
  std::string config;
  std::string log_level = "warn";

  std::string model;
  int64_t threads = 0;
  std::string simd = "auto";
  std::string device = "auto";
  bool eager = false;
  int64_t context = 0;
  int64_t prefill_chunk = 512;
  std::string attention = "auto";
  int64_t kv_memory = 0;
  std::string weights = "w15";
  std::string kv_format = "q15";

  std::string thinking = "auto";
  std::string reasoning_effort = "auto";
  bool show_thinking = false;
  std::string system;
  bool stats = false;
  std::string session;
  std::string import_session;
  std::string tools;
  bool raw = false;
  bool ids = false;
  bool json = false;

  int64_t max_tokens = 4096;
  double temperature = 0;
  double top_p = 1;
  int64_t top_k = 0;
  double min_p = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  int64_t seed = 0;
  std::vector<std::string> stop;

  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::vector<std::string> api_key;
  std::string api_key_file;
  std::vector<std::string> allowed_host;
  std::vector<std::string> cors_origin;
  std::string served_name;
  int64_t max_sequences = 256;
  int64_t max_queue = 512;
  int64_t max_connections = 2048;
  int64_t max_body = 32;
  int64_t mixed_prompt_tokens = 64;
  std::string park_folder;
  int64_t grace = 30;

  std::string oracle;
  std::string hidden;
  double tolerance = 0;
  std::string replay;
  int64_t replay_tokens = 10000;
  std::string reference = "float";
  std::string skills;
  int64_t limit = 0;
  std::string prompt_tokens = "512";
  int64_t decode_tokens = 128;
  std::string context_tokens = "0";
  int64_t repeat = 5;
  std::string batch;
  int64_t mixed_prompt = 0;
  int64_t shared_prefix = 0;
  std::string synthetic_context;

  std::string experts = "w4";
  std::string dense = "w8";
  std::string geometry = "glm-5.2";
  int64_t layers = 0;
  int64_t dense_layers = -1;
  int64_t positions = 0;
  bool no_mtp = false;
  bool with_mtp = false;
  bool dry_run = false;
  bool verify = false;
  bool markdown = false;

  // Arguments without a flag, in order.
  std::vector<std::string> arguments;
  // Names of the options that the command line or the configuration file gave, and of those that
  // only the file did: what is of no use in a file is left out, on the command line it is refused.
  std::set<std::string, std::less<>> given;
  std::set<std::string, std::less<>> from_file;
  bool is_given(std::string_view name) const { return given.contains(name); }
  bool is_typed(std::string_view name) const { return is_given(name) && !from_file.contains(name); }
};

using OptionMember = std::variant<bool Options::*, int64_t Options::*, double Options::*,
                                  std::string Options::*, std::vector<std::string> Options::*>;

struct OptionSpec {
  const char* name;  // without dashes
  char letter;       // one-letter form, or 0
  OptionMember member;
  const char* value_name;    // shown in help, e.g. "N"; "" for a switch
  const char* unit;          // "" where there is none
  double min, max;           // of numbers; both included
  const char* choices;       // of text, with spaces between; "": any
  uint32_t commands;         // bits of Command
  const char* default_text;  // where the initialiser alone does not tell, else nullptr
  const char* description;   // one paragraph
};

struct CommandSpec {
  Command command;
  const char* name;
  const char* arguments;  // e.g. "CHECKPOINT OUT"
  size_t min_arguments, max_arguments;
  const char* summary;      // half a line
  const char* description;  // one paragraph
  const char* example;
};

std::span<const OptionSpec> OptionTable();
std::span<const CommandSpec> CommandTable();
const CommandSpec& SpecOf(Command command);
// nullptr if there is none of that name.
const CommandSpec* FindCommand(std::string_view name);
const OptionSpec* FindOption(std::string_view name);
// The words of `option.choices`.
std::vector<std::string_view> ChoicesOf(const OptionSpec& option);
bool Takes(Command command, const OptionSpec& option);

// Sets an option from text and notes it as given; a switch takes "true" or "false".
// Errors: kUsage naming the option, the value and what is allowed.
void SetOption(const OptionSpec& option, std::string_view text, Options& options);

// Applies `name = value` lines ('#' starts a comment) to options that are not yet given; lines for
// options that `command` does not take are checked and left out. `source` names the file in errors.
// Errors: kUsage for an unknown name (with the nearest one), a missing '=' or a bad value.
void ApplyConfigText(std::string_view text, std::string_view source, Command command,
                     Options& options);

// The name among `names` with the smallest edit distance to `name`; "" where none is near.
std::string NearestName(std::string_view name, std::span<const std::string> names);
// The sentence for a flag that `command` does not know, naming the nearest or its real command.
std::string UnknownFlagMessage(std::string_view flag, Command command);

// Texts made from the tables.
std::string GeneralHelp();
std::string CommandHelp(Command command);
std::string OptionsList();  // every option once, for a terminal
std::string OptionsMarkdown();

}  // namespace hillstar
