#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/version.h"

namespace hillstar {
namespace {

// Arguments with the user's own configuration kept out.
CommandLine Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin() + 1, {"--config", "/dev/null"});
  return ParseCommandLine(arguments);
}

std::string UsageMessage(const std::vector<std::string>& arguments) {
  try {
    Parse(arguments);
  } catch (const Error& error) {
    EXPECT_EQ(ExitCode(error.code()), 2) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(CommandLine, ReadsOptionsInEverySpelling) {
  const CommandLine line = Parse({"run", "-n", "5", "--temperature=0.5", "--top-k", "3", "--stop",
                                  "a", "--stop", "b", "--json", "Say hello", "-mfolder"});
  EXPECT_EQ(line.command, Command::kRun);
  EXPECT_EQ(line.options.max_tokens, 5);
  EXPECT_EQ(line.options.temperature, 0.5);
  EXPECT_EQ(line.options.top_k, 3);
  EXPECT_EQ(line.options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(line.options.json);
  EXPECT_EQ(line.options.model, "folder");
  EXPECT_EQ(line.options.arguments, (std::vector<std::string>{"Say hello"}));
}

TEST(CommandLine, NegativeNumbersAndDashesAreArguments) {
  EXPECT_EQ(Parse({"chat", "--presence-penalty", "-1.5"}).options.presence_penalty, -1.5);
  EXPECT_EQ(Parse({"run", "-"}).options.arguments[0], "-");
  EXPECT_EQ(Parse({"run", "--", "--help me"}).options.arguments[0], "--help me");
}

TEST(CommandLine, UnknownAndUselessFlagsNameTheNearest) {
  EXPECT_EQ(UsageMessage({"run", "--max-token", "5", "x"}),
            "run knows no --max-token; the nearest is --max-tokens");
  EXPECT_EQ(UsageMessage({"run", "x", "--temprature=1"}),
            "run knows no --temprature; the nearest is --temperature");
  EXPECT_EQ(UsageMessage({"chat", "--oracle", "f"}),
            "chat makes no use of --oracle, which belongs to score");
  EXPECT_EQ(UsageMessage({"run", "-q", "x"}),
            "run knows no -q; hillstar run --help lists what it "
            "knows");
}

TEST(CommandLine, UnknownCommandsNameTheNearest) {
  EXPECT_EQ(UsageMessage({"caht"}), "there is no command \"caht\"; the nearest is chat");
  EXPECT_EQ(UsageMessage({"xyzzyx"}), "there is no command \"xyzzyx\"; hillstar --help lists them");
  EXPECT_THROW(ParseCommandLine({}), Error);
}

TEST(CommandLine, CountsArguments) {
  EXPECT_EQ(UsageMessage({"run"}), "run needs PROMPT: hillstar run --help explains it");
  EXPECT_EQ(UsageMessage({"run", "two", "words"}),
            "run makes no use of \"words\"; a prompt of several words stands in quotes");
  EXPECT_EQ(UsageMessage({"chat", "hello"}), "chat makes no use of \"hello\"");
  EXPECT_EQ(UsageMessage({"convert", "a"}),
            "convert needs CHECKPOINT OUT: hillstar convert --help explains it");
}

TEST(CommandLine, MissingAndBadValuesAreErrors) {
  EXPECT_EQ(UsageMessage({"run", "x", "--top-p"}), "--top-p needs a value: --top-p X");
  EXPECT_EQ(UsageMessage({"run", "x", "-m"}), "--model needs a value: --model FOLDER");
  EXPECT_EQ(UsageMessage({"run", "x", "--seed="}), "--seed needs a value: --seed N");
  EXPECT_EQ(UsageMessage({"run", "x", "-m", ""}),
            "--model is empty; leave it out for the built-in model");
  EXPECT_EQ(UsageMessage({"run", "x", "--stop", ""}),
            "--stop cannot be \"\"; it is a text of one character or more");
  EXPECT_EQ(UsageMessage({"run", "x", "--top-p", "2"}),
            "--top-p cannot be \"2\"; it is a number from 0 to 1");
  EXPECT_NE(UsageMessage({"run", "x", "--json=maybe"}), "");
}

TEST(CommandLine, HelpIsForTheCommandAndNeedsNothingElse) {
  EXPECT_EQ(ParseCommandLine({"--help"}).text, GeneralHelp());
  EXPECT_EQ(ParseCommandLine({"help", "run"}).text, CommandHelp(Command::kRun));
  EXPECT_EQ(Parse({"convert", "--help"}).text, CommandHelp(Command::kConvert));
  EXPECT_EQ(Parse({"convert", "-h"}).text, CommandHelp(Command::kConvert));
}

TEST(CommandLine, NamesTheVersion) {
  EXPECT_EQ(ParseCommandLine({"--version"}).text, std::string(ProgramVersion()) + "\n");
}

TEST(CommandLine, InspectTakesOneModelOrNone) {
  EXPECT_TRUE(Parse({"inspect"}).options.arguments.empty());
  EXPECT_EQ(UsageMessage({"inspect", "a", "b"}), "inspect makes no use of \"b\"");
}

TEST(CommandLine, ConfigurationFileStandsBehindTheCommandLine) {
  std::string folder = (std::filesystem::temp_directory_path() / "hillstar-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/config";
  std::ofstream(file) << "temperature = 0.5\nseed = 3\nweights = w8\n";
  const CommandLine line = ParseCommandLine({"run", "x", "--config", file, "--seed", "4"});
  EXPECT_EQ(line.options.temperature, 0.5);
  EXPECT_EQ(line.options.seed, 4);
  EXPECT_TRUE(line.options.is_typed("seed"));
  EXPECT_TRUE(line.options.is_given("weights"));
  EXPECT_FALSE(line.options.is_typed("weights"));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(ParseCommandLine({"run", "x", "--config", file}), Error);
}

}  // namespace
}  // namespace hillstar
