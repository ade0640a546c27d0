#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/text_file.h"
#include "cli/user_folders.h"
#include "core/version.h"

namespace hillstar {
namespace {

// Says in a sentence what CLI11 has found wrong. Values stay text, so that what can be wrong is
// that one is missing; the message then begins with the option's name and a colon.
[[noreturn]] void Refuse(const std::string& message) {
  const size_t colon = std::min(message.find(':'), message.size());
  const OptionSpec* option =
      message.starts_with("--") ? FindOption(message.substr(2, colon - 2)) : nullptr;
  if (option == nullptr) {
    throw Error(ErrorCode::kUsage, fmt::format("the command line is not understood: {}", message));
  }
  throw Error(ErrorCode::kUsage, fmt::format("--{} needs a value: --{} {}", option->name,
                                             option->name, option->value_name));
}

// Lets CLI11 split the arguments of one command by the table; values stay text until SetOption.
class CommandParser {
 public:
  explicit CommandParser(const CommandSpec& spec) : spec_(spec), app_(spec.summary, spec.name) {
    app_.set_help_flag();
    app_.allow_extras();
    for (const OptionSpec& option : OptionTable()) {
      if (Takes(spec.command, option)) Add(option);
    }
    app_.add_option("arguments", arguments_);
  }

  Options Parse(std::vector<std::string> arguments) {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    try {
      app_.parse(std::move(arguments));
    } catch (const CLI::ParseError& error) {
      Refuse(error.what());
    }
    for (const std::string& extra : app_.remaining()) {
      if (extra.size() > 1 && extra[0] == '-' && extra != "--") {
        throw Error(ErrorCode::kUsage, UnknownFlagMessage(extra, spec_.command));
      }
    }
    Options options;
    for (const Slot& slot : slots_) {
      if (slot.handle->count() == 0) continue;
      for (const std::string& text : slot.handle->results()) {
        SetOption(*slot.option, text, options);
      }
    }
    options.arguments = arguments_;
    return options;
  }

 private:
  struct Slot {
    const OptionSpec* option;
    CLI::Option* handle;
  };

  void Add(const OptionSpec& option) {
    const std::string names = (option.letter ? fmt::format("-{},", option.letter) : "") +
                              fmt::format("--{}", option.name);
    const bool is_switch = std::holds_alternative<bool Options::*>(option.member);
    CLI::Option* handle = nullptr;
    if (is_switch) {
      handle = app_.add_flag(names);
    } else {
      handle = app_.add_option(names)->expected(1)->allow_extra_args(false);
      handle->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    }
    slots_.push_back({&option, handle});
  }

  const CommandSpec& spec_;
  CLI::App app_;
  std::vector<Slot> slots_;
  std::vector<std::string> arguments_;
};

void CheckArguments(const CommandSpec& spec, const Options& options) {
  const size_t count = options.arguments.size();
  if (count > spec.max_arguments) {
    const std::string hint =
        spec.command == Command::kRun ? "; a prompt of several words stands in quotes" : "";
    throw Error(ErrorCode::kUsage, fmt::format("{} makes no use of \"{}\"{}", spec.name,
                                               options.arguments[spec.max_arguments], hint));
  }
  if (count < spec.min_arguments) {
    throw Error(ErrorCode::kUsage, fmt::format("{} needs {}: hillstar {} --help explains it",
                                               spec.name, spec.arguments, spec.name));
  }
}

void ReadConfig(Command command, Options& options) {
  const bool is_named = options.is_given("config");
  const std::filesystem::path path =
      is_named ? std::filesystem::path(options.config) : UserConfigFile();
  std::error_code none;
  if (!is_named && !std::filesystem::exists(path, none)) return;
  ApplyConfigText(ReadTextFile(path), path.string(), command, options);
}

const CommandSpec& CommandNamed(const std::string& name) {
  if (const CommandSpec* spec = FindCommand(name)) return *spec;
  std::vector<std::string> names;
  for (const CommandSpec& spec : CommandTable()) names.emplace_back(spec.name);
  const std::string near = NearestName(name, names);
  throw Error(ErrorCode::kUsage,
              fmt::format("there is no command \"{}\"; {}", name,
                          near.empty() ? "hillstar --help lists them"
                                       : fmt::format("the nearest is {}", near)));
}

void RefuseMore(const std::vector<std::string>& arguments, size_t most) {
  if (arguments.size() <= most) return;
  throw Error(ErrorCode::kUsage, fmt::format("{} takes nothing after it that would be \"{}\"",
                                             arguments[0], arguments[most]));
}

}  // namespace

CommandLine ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  if (arguments.empty()) {
    throw Error(ErrorCode::kUsage, "no command is given; hillstar --help lists them");
  }
  const std::string& first = arguments[0];
  if (first == "--help" || first == "-h" || first == "help") {
    RefuseMore(arguments, 2);
    line.text = GeneralHelp();
    if (arguments.size() == 2) line.text = CommandHelp(CommandNamed(arguments[1]).command);
    return line;
  }
  if (first == "--version") {
    RefuseMore(arguments, 1);
    line.text = fmt::format("{}\n", ProgramVersion());
    return line;
  }
  const CommandSpec& spec = CommandNamed(first);
  line.command = spec.command;
  line.options = CommandParser(spec).Parse({arguments.begin() + 1, arguments.end()});
  if (line.options.help) {
    line.text = CommandHelp(spec.command);
    return line;
  }
  CheckArguments(spec, line.options);
  ReadConfig(spec.command, line.options);
  if (line.options.is_given("model") && line.options.model.empty()) {
    throw Error(ErrorCode::kUsage, "--model is empty; leave it out for the built-in model");
  }
  for (const std::string& argument : line.options.arguments) {
    if (argument.empty() && spec.command != Command::kRun) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: an argument is empty", spec.name));
    }
  }
  return line;
}

}  // namespace hillstar
