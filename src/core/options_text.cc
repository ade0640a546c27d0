#include <fmt/format.h>

#include <algorithm>

#include "core/options.h"

namespace hillstar {
namespace {

constexpr size_t kHelpColumns = 96;
constexpr size_t kHelpIndent = 30;

std::string DefaultOf(const OptionSpec& option) {
  if (option.default_text != nullptr) return option.default_text;
  const Options defaults;
  if (const auto* flag = std::get_if<bool Options::*>(&option.member)) {
    return defaults.*(*flag) ? "on" : "off";
  }
  if (const auto* whole = std::get_if<int64_t Options::*>(&option.member)) {
    return fmt::format("{}", defaults.*(*whole));
  }
  if (const auto* real = std::get_if<double Options::*>(&option.member)) {
    return fmt::format("{:g}", defaults.*(*real));
  }
  if (const auto* word = std::get_if<std::string Options::*>(&option.member)) {
    return defaults.*(*word);
  }
  return "none";
}

std::string FlagOf(const OptionSpec& option) {
  return fmt::format("{}--{}{}{}", option.letter ? fmt::format("-{}, ", option.letter) : "",
                     option.name, *option.value_name ? " " : "", option.value_name);
}

// "a, b" or "0 to 2".
std::string RangeOf(const OptionSpec& option) {
  const std::vector<std::string_view> choices = ChoicesOf(option);
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, ", "));
  const bool is_number = std::holds_alternative<int64_t Options::*>(option.member) ||
                         std::holds_alternative<double Options::*>(option.member);
  if (!is_number) return "";
  return fmt::format("{:.16g} to {:.16g}", option.min, option.max);
}

// `text` in lines of at most kHelpColumns, the first appended to `first`, the rest indented.
std::string Wrapped(std::string first, size_t indent, std::string_view text) {
  std::string out;
  std::string line = std::move(first);
  if (!line.empty() && line.size() + 1 > indent) {
    out += line + "\n";
    line.clear();
  }
  line.resize(indent, ' ');
  bool line_has_words = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line_has_words && line.size() + 1 + word.size() > kHelpColumns) {
      out += line + "\n";
      line.assign(indent, ' ');
      line_has_words = false;
    }
    if (line_has_words) line += ' ';
    line += word;
    line_has_words = true;
  }
  return out + line + "\n";
}

std::string WithoutBackticks(std::string text) {
  std::erase(text, '`');
  return text;
}

std::string OptionHelp(const OptionSpec& option) {
  const std::string range = RangeOf(option);
  std::string text = WithoutBackticks(option.description);
  if (*option.value_name != '\0') {
    text += fmt::format(" [{}{}default: {}]", range, range.empty() ? "" : "; ",
                        WithoutBackticks(DefaultOf(option)));
  }
  return Wrapped("  " + FlagOf(option), kHelpIndent, text);
}

std::string CommandsOf(const OptionSpec& option) {
  std::vector<std::string> names;
  for (const CommandSpec& spec : CommandTable()) {
    if (Takes(spec.command, option)) names.emplace_back(spec.name);
  }
  return names.size() == CommandTable().size() ? "all" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string GeneralHelp() {
  std::string out =
      "hillstar: runs GLM-5.2 and other glm_moe_dsa models on the hardware at hand.\n\n"
      "usage: hillstar COMMAND [options]\n\n";
  for (const CommandSpec& spec : CommandTable()) {
    out +=
        fmt::format("  {:<30} {}\n", fmt::format("{} {}", spec.name, spec.arguments), spec.summary);
  }
  return out + "\n" +
         Wrapped("", 0,
                 "hillstar COMMAND --help explains a command and its options, hillstar --version "
                 "prints the version. To begin: hillstar chat");
}

std::string CommandHelp(Command command) {
  const CommandSpec& spec = SpecOf(command);
  std::string out = fmt::format("usage: hillstar {}{}{} [options]\n\n", spec.name,
                                *spec.arguments ? " " : "", spec.arguments);
  out += Wrapped("", 0, WithoutBackticks(spec.description));
  out += fmt::format("\nexample: {}\n\noptions:\n", spec.example);
  for (const OptionSpec& option : OptionTable()) {
    if (Takes(command, option)) out += OptionHelp(option);
  }
  return out;
}

std::string OptionsList() {
  std::string out = Wrapped("", 0,
                            "Every option, with its values and its default in brackets. hillstar "
                            "COMMAND --help lists those of one command.");
  for (const OptionSpec& option : OptionTable()) {
    out += '\n';
    out += OptionHelp(option) +
           Wrapped("", kHelpIndent, fmt::format("Commands: {}.", CommandsOf(option)));
  }
  return out;
}

std::string OptionsMarkdown() {
  std::string out =
      "# Options\n\n"
      "This page is printed by `hillstar options --markdown` from the table in "
      "`src/core/options_table.cc`; a test fails when the two differ. Every option may also stand "
      "in the configuration file, without its dashes: `temperature = 0.5`. A flag that a command "
      "does not use is an error. Exit codes: 0 done, 1 failed, 2 wrong use, 130 `hillstar run` "
      "stopped by Ctrl-C.\n\n## Commands\n\n"
      "| command | what it does |\n| --- | --- |\n";
  for (const CommandSpec& spec : CommandTable()) {
    out += fmt::format("| `hillstar {}{}{}` | {} |\n", spec.name, *spec.arguments ? " " : "",
                       spec.arguments, spec.description);
  }
  out += "\n## All options\n";
  for (const OptionSpec& option : OptionTable()) {
    out += fmt::format("\n### `--{}`\n\n", option.name);
    out += fmt::format("{}\n\n", option.description);
    if (option.letter) out += fmt::format("- short: `-{}`\n", option.letter);
    if (*option.value_name != '\0') {
      const std::string range = RangeOf(option);
      if (!range.empty()) out += fmt::format("- values: {}\n", range);
      if (*option.unit != '\0') out += fmt::format("- unit: {}\n", option.unit);
      out += fmt::format("- default: {}\n", DefaultOf(option));
    }
    out += fmt::format("- commands: {}\n", CommandsOf(option));
  }
  return out;
}

}  // namespace hillstar
