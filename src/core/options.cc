#include "core/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/check.h"

namespace hillstar {
namespace {

std::string_view Trim(std::string_view text) {
  const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

[[noreturn]] void Refuse(const OptionSpec& option, std::string_view text, const std::string& want) {
  throw Error(ErrorCode::kUsage,
              fmt::format("--{} cannot be \"{}\"; it is {}", option.name, text, want));
}

std::string NumberRange(const OptionSpec& option, const char* kind) {
  return fmt::format("{} from {:.16g} to {:.16g}{}{}", kind, option.min, option.max,
                     *option.unit ? " " : "", option.unit);
}

int64_t ParseInt(const OptionSpec& option, std::string_view text) {
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  // Bounds are whole numbers; as doubles, values past 2^53 would be rounded to them.
  if (code != std::errc() || end != text.data() + text.size() || value < int64_t(option.min) ||
      value > int64_t(option.max)) {
    Refuse(option, text, NumberRange(option, "a whole number"));
  }
  return value;
}

double ParseDouble(const OptionSpec& option, std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value) ||
      value < option.min || value > option.max) {
    Refuse(option, text, NumberRange(option, "a number"));
  }
  return value;
}

std::string ParseText(const OptionSpec& option, std::string_view text) {
  const std::vector<std::string_view> choices = ChoicesOf(option);
  if (choices.empty() || std::ranges::count(choices, text) > 0) return std::string(text);
  Refuse(option, text, fmt::format("one of {}", fmt::join(choices, ", ")));
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

std::vector<std::string> OptionNames(uint32_t commands) {
  std::vector<std::string> names;
  for (const OptionSpec& option : OptionTable()) {
    if (option.commands & commands) names.emplace_back(option.name);
  }
  return names;
}

std::vector<std::string> CommandNames(uint32_t commands) {
  std::vector<std::string> names;
  for (const CommandSpec& spec : CommandTable()) {
    if (uint32_t(spec.command) & commands) names.emplace_back(spec.name);
  }
  return names;
}

void ApplyConfigLine(std::string_view line, const std::string& where, Command command,
                     Options& options) {
  const size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: \"{}\" is not of the form name = value", where, line));
  }
  const std::string name(Trim(line.substr(0, equals)));
  const OptionSpec* option = FindOption(name);
  if (name == "config" || name == "help") {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: \"{}\" belongs on the command line and cannot stand in a "
                            "configuration file",
                            where, name));
  }
  if (option == nullptr) {
    const std::string near = NearestName(name, OptionNames(~0u));
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: there is no option \"{}\"{}", where, name,
                            near.empty() ? "" : fmt::format("; the nearest is \"{}\"", near)));
  }
  Options checked;
  Options& target = Takes(command, *option) && !options.is_given(name) ? options : checked;
  try {
    SetOption(*option, Trim(line.substr(equals + 1)), target);
    target.from_file.insert(name);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace

const CommandSpec& SpecOf(Command command) {
  for (const CommandSpec& spec : CommandTable()) {
    if (spec.command == command) return spec;
  }
  CHECK(false);
}

const CommandSpec* FindCommand(std::string_view name) {
  for (const CommandSpec& spec : CommandTable()) {
    if (name == spec.name) return &spec;
  }
  return nullptr;
}

const OptionSpec* FindOption(std::string_view name) {
  for (const OptionSpec& option : OptionTable()) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

std::vector<std::string_view> ChoicesOf(const OptionSpec& option) {
  std::vector<std::string_view> choices;
  for (std::string_view rest = option.choices; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    choices.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return choices;
}

bool Takes(Command command, const OptionSpec& option) {
  return (option.commands & uint32_t(command)) != 0;
}

void SetOption(const OptionSpec& option, std::string_view text, Options& options) {
  if (const auto* flag = std::get_if<bool Options::*>(&option.member)) {
    if (text != "true" && text != "false") Refuse(option, text, "a switch: true or false");
    options.*(*flag) = text == "true";
  } else if (const auto* whole = std::get_if<int64_t Options::*>(&option.member)) {
    options.*(*whole) = ParseInt(option, text);
  } else if (const auto* real = std::get_if<double Options::*>(&option.member)) {
    options.*(*real) = ParseDouble(option, text);
  } else if (const auto* word = std::get_if<std::string Options::*>(&option.member)) {
    options.*(*word) = ParseText(option, text);
  } else {
    if (text.empty()) Refuse(option, text, "a text of one character or more");
    (options.*std::get<std::vector<std::string> Options::*>(option.member)).emplace_back(text);
  }
  options.given.insert(option.name);
}

void ApplyConfigText(std::string_view text, std::string_view source, Command command,
                     Options& options) {
  int line_number = 0;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    line = Trim(line.substr(0, line.find('#')));
    if (!line.empty()) {
      ApplyConfigLine(line, fmt::format("{}, line {}", source, line_number), command, options);
    }
  }
}

std::string NearestName(std::string_view name, std::span<const std::string> names) {
  std::string best;
  // Further than half the name away, a suggestion is a guess and not a help.
  size_t best_distance = std::max<size_t>(2, name.size() / 2) + 1;
  for (const std::string& candidate : names) {
    const bool prefix = name.size() >= 3 && candidate.starts_with(name);
    const size_t distance = prefix ? 1 : EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string UnknownFlagMessage(std::string_view flag, Command command) {
  const std::string_view bare = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  const std::string name(bare.substr(0, bare.find('=')));
  const char* command_name = SpecOf(command).name;
  if (const OptionSpec* elsewhere = FindOption(name)) {
    return fmt::format("{} makes no use of --{}, which belongs to {}", command_name, name,
                       fmt::join(CommandNames(elsewhere->commands), ", "));
  }
  const std::string near = NearestName(name, OptionNames(uint32_t(command)));
  return fmt::format("{} knows no {}; {}", command_name, flag.substr(0, flag.find('=')),
                     near.empty()
                         ? fmt::format("hillstar {} --help lists what it knows", command_name)
                         : fmt::format("the nearest is --{}", near));
}

}  // namespace hillstar
