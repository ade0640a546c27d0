#include "core/options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace hillstar {
namespace {

std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(OptionTable, NamesAreUniqueAndEveryOptionBelongsToACommand) {
  std::set<std::string> names;
  std::set<char> letters;
  for (const OptionSpec& option : OptionTable()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    if (option.letter) {
      EXPECT_TRUE(letters.insert(option.letter).second) << option.letter;
    }
    EXPECT_NE(option.commands, 0u) << option.name;
    EXPECT_NE(std::string(option.description), "") << option.name;
  }
}

TEST(OptionTable, DefaultsLieInTheirRanges) {
  const Options defaults;
  for (const OptionSpec& option : OptionTable()) {
    if (option.default_text != nullptr) continue;
    if (const auto* whole = std::get_if<int64_t Options::*>(&option.member)) {
      EXPECT_GE(double(defaults.*(*whole)), option.min) << option.name;
      EXPECT_LE(double(defaults.*(*whole)), option.max) << option.name;
    } else if (const auto* word = std::get_if<std::string Options::*>(&option.member)) {
      if (!ChoicesOf(option).empty()) {
        Options scratch;
        EXPECT_NO_THROW(SetOption(option, defaults.*(*word), scratch)) << option.name;
      }
    }
  }
}

TEST(SetOption, ReadsEachKind) {
  Options options;
  SetOption(*FindOption("temperature"), "0.25", options);
  SetOption(*FindOption("max-tokens"), "7", options);
  SetOption(*FindOption("stop"), "a b", options);
  SetOption(*FindOption("stop"), "c", options);
  SetOption(*FindOption("json"), "true", options);
  SetOption(*FindOption("simd"), "avx2", options);
  EXPECT_EQ(options.temperature, 0.25);
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a b", "c"}));
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.simd, "avx2");
  EXPECT_TRUE(options.is_given("json"));
  EXPECT_FALSE(options.is_given("top-p"));
}

TEST(SetOption, RefusesWithOptionValueAndRange) {
  Options options;
  EXPECT_EQ(MessageOf([&] { SetOption(*FindOption("top-p"), "1.5", options); }),
            "--top-p cannot be \"1.5\"; it is a number from 0 to 1");
  EXPECT_EQ(MessageOf([&] { SetOption(*FindOption("top-k"), "0.4", options); }),
            "--top-k cannot be \"0.4\"; it is a whole number from 0 to 1000000000 tokens");
  EXPECT_EQ(MessageOf([&] { SetOption(*FindOption("simd"), "sse", options); }),
            "--simd cannot be \"sse\"; it is one of auto, avx512, avx2, generic, reference");
  for (const char* bad : {"9007199254740993", "9223372036854775807", "-1"}) {
    EXPECT_EQ(MessageOf([&] { SetOption(*FindOption("seed"), bad, options); }),
              "--seed cannot be \"" + std::string(bad) +
                  "\"; it is a whole number from 0 to 9007199254740992");
  }
  for (const char* bad : {"", "nan", "inf", "1x", " 1", "-1"}) {
    EXPECT_THROW(SetOption(*FindOption("temperature"), bad, options), Error) << bad;
  }
  EXPECT_TRUE(options.given.empty());
}

TEST(SetOption, TheLargestSeedIsTaken) {
  Options options;
  SetOption(*FindOption("seed"), "9007199254740992", options);
  EXPECT_EQ(options.seed, int64_t{1} << 53);
}

TEST(SetOption, RefusesAnEmptyStopString) {
  Options options;
  EXPECT_EQ(MessageOf([&] { SetOption(*FindOption("stop"), "", options); }),
            "--stop cannot be \"\"; it is a text of one character or more");
  EXPECT_TRUE(options.stop.empty());
}

TEST(Config, SetsWhatTheCommandTakesAndTheCommandLineWins) {
  Options options;
  SetOption(*FindOption("seed"), "9", options);
  ApplyConfigText("# mine\n temperature = 0.5 # warm\r\nseed = 1\n\noracle = /x\nsystem = a = b\n",
                  "config", Command::kChat, options);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.seed, 9);
  EXPECT_EQ(options.oracle, "");
  EXPECT_EQ(options.system, "a = b");
}

TEST(Config, RefusesUnknownNamesMissingEqualsAndBadValuesByLine) {
  Options options;
  EXPECT_EQ(
      MessageOf([&] { ApplyConfigText("\ntemprature = 1", "config", Command::kChat, options); }),
      "config, line 2: there is no option \"temprature\"; the nearest is \"temperature\"");
  EXPECT_EQ(MessageOf([&] { ApplyConfigText("seed", "config", Command::kChat, options); }),
            "config, line 1: \"seed\" is not of the form name = value");
  EXPECT_EQ(MessageOf([&] { ApplyConfigText("repeat=0", "config", Command::kChat, options); }),
            "config, line 1: --repeat cannot be \"0\"; it is a whole number from 1 to 1000");
}

TEST(Config, RefusesWhatBelongsOnTheCommandLine) {
  for (const std::string name : {"config", "help"}) {
    Options options;
    EXPECT_EQ(MessageOf([&] { ApplyConfigText(name + " = x", "file", Command::kChat, options); }),
              "file, line 1: \"" + name +
                  "\" belongs on the command line and cannot stand in a configuration file");
  }
}

TEST(UnknownFlag, NamesTheNearestOrTheCommandThatTakesIt) {
  EXPECT_EQ(UnknownFlagMessage("--temprature=1", Command::kChat),
            "chat knows no --temprature; the nearest is --temperature");
  EXPECT_EQ(UnknownFlagMessage("--oracle", Command::kRun),
            "run makes no use of --oracle, which belongs to score");
  EXPECT_EQ(UnknownFlagMessage("--max", Command::kRun),
            "run knows no --max; the nearest is "
            "--max-tokens");
  EXPECT_EQ(UnknownFlagMessage("--qqqqqqqq", Command::kRun),
            "run knows no --qqqqqqqq; hillstar run --help lists what it knows");
}

TEST(Texts, HelpNamesEveryOptionOfItsCommandAndNoOther) {
  for (const CommandSpec& spec : CommandTable()) {
    const std::string help = CommandHelp(spec.command);
    EXPECT_NE(GeneralHelp().find(spec.summary), std::string::npos);
    for (const OptionSpec& option : OptionTable()) {
      const bool listed =
          help.find(std::string("  --") + option.name + " ") != std::string::npos ||
          help.find(std::string("  --") + option.name + "\n") != std::string::npos ||
          help.find(std::string(", --") + option.name) != std::string::npos;
      EXPECT_EQ(listed, Takes(spec.command, option)) << spec.name << " " << option.name;
    }
  }
}

TEST(Texts, TheListHoldsEveryOptionOnceAndFitsATerminal) {
  const std::string list = OptionsList();
  for (const OptionSpec& option : OptionTable()) {
    const std::string flag =
        option.letter ? std::string("\n  -") + option.letter + ", --" : std::string("\n  --");
    const std::string end = *option.value_name ? " " + std::string(option.value_name) : "";
    const size_t first = list.find(flag + option.name + end);
    EXPECT_NE(first, std::string::npos) << option.name;
    EXPECT_EQ(list.find(flag + option.name + end + " ", first + 1), std::string::npos)
        << option.name;
  }
  std::istringstream lines(list);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 96u) << line;
}

TEST(Texts, OptionsPageIsUpToDate) {
  std::ifstream file(HILLSTAR_SOURCE_DIR "/docs/options.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == OptionsMarkdown())
      << "run: build/hillstar options --markdown > docs/options.md";
}

}  // namespace
}  // namespace hillstar
