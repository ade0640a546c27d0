// The built program from outside: exit codes, what goes to which stream, and that a model of each
// kind can be used with every command.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Outcome {
  int exit_code;
  std::string out, err;
};

class Program : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (fs::temp_directory_path() / "hillstar-program-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    model_ = (folder_ / "model").string();
    const Outcome made = Run("synth " + model_ + " --geometry pocket --layers 2 --with-mtp -t 2");
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  // Runs `hillstar ARGUMENTS` by the shell, the user's configuration kept out. `redirections` come
  // after the test's own.
  static Outcome Run(const std::string& arguments, const std::string& input = "",
                     const std::string& redirections = "") {
    std::ofstream(folder_ / "in") << input;
    const size_t space = std::min(arguments.find(' '), arguments.size());
    const std::string command = std::string(HILLSTAR_BINARY) + " " + arguments.substr(0, space) +
                                (arguments.starts_with("-") ? "" : " --config /dev/null") +
                                arguments.substr(space) + " <" + Path("in") + " >" + Path("out") +
                                " 2>" + Path("err") + " " + redirections;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(folder_ / "out"),
            ReadFile(folder_ / "err")};
  }
  static std::string Path(const char* name) { return (folder_ / name).string(); }

  static void ExpectUsageError(const std::string& arguments, const std::string& message) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "hillstar: " + message + "\n");
  }

  // The demo model's checkpoint with `change` done to its tokenizer.json; "" where there is none.
  static std::string CheckpointWith(const char* name, const std::function<void(Json&)>& change) {
    const fs::path demo = fs::path(HILLSTAR_DEMO_CHECKPOINT) / "checkpoint";
    if (!fs::exists(demo / "config.json")) return "";
    const fs::path made = folder_ / name;
    fs::create_directory(made);
    for (const auto& entry : fs::directory_iterator(demo)) {
      if (entry.path().filename() == "tokenizer.json") continue;
      fs::create_symlink(entry.path(), made / entry.path().filename());
    }
    Json tokenizer = Json::parse(ReadFile(demo / "tokenizer.json"));
    change(tokenizer);
    std::ofstream(made / "tokenizer.json") << tokenizer.dump();
    return made.string();
  }
  static void ExpectRefused(const std::string& arguments, const std::string& message) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 1) << arguments;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err, "hillstar: " + message + "\n");
  }

  static fs::path folder_;
  static std::string model_;
};

fs::path Program::folder_;
std::string Program::model_;

TEST_F(Program, EveryCommandHasHelp) {
  const Outcome general = Run("--help");
  EXPECT_EQ(general.exit_code, 0);
  for (const char* command :
       {"chat", "run", "score", "eval", "bench", "convert", "synth", "inspect", "options"}) {
    EXPECT_NE(general.out.find(std::string("  ") + command), std::string::npos) << command;
    const Outcome help = Run(std::string(command) + " --help");
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_NE(help.out.find(std::string("usage: hillstar ") + command), std::string::npos);
  }
}

TEST_F(Program, WrongUseEndsWithTwoAndOneSentence) {
  ExpectUsageError("rnu", "there is no command \"rnu\"; the nearest is run");
  ExpectUsageError("run x --temprature 1",
                   "run knows no --temprature; the nearest is --temperature");
  ExpectUsageError("run x --top-p 2", "--top-p cannot be \"2\"; it is a number from 0 to 1");
  ExpectUsageError("score -m " + model_,
                   "score needs --oracle FILE, --hidden FILE or --replay FILE");
  ExpectUsageError("run x -w w8 -m " + model_, "--weights is of no use here: " + model_ +
                                                   " is a container and brings its formats");
  EXPECT_EQ(Run("run x -m " + Path("nowhere")).exit_code, 1);
}

TEST_F(Program, EmptyValuesAreRefused) {
  ExpectUsageError("run x -m \"\"", "--model is empty; leave it out for the built-in model");
  ExpectUsageError("run x --stop \"\"",
                   "--stop cannot be \"\"; it is a text of one character or more");
}

TEST_F(Program, TellsItsVersion) {
  const Outcome outcome = Run("--version");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out.find("hillstar "), 0u) << outcome.out;
  EXPECT_EQ(
      Json::parse(ReadFile(fs::path(model_) / "hillstar.json"))["creator"].get<std::string>() +
          "\n",
      outcome.out);
}

TEST_F(Program, AnOutputThatCannotBeWrittenIsAnError) {
  for (const char* redirection : {">/dev/full", ">&-"}) {
    for (const std::string& command : {"run x -n 2 -c 64 --thinking off -m " + model_,
                                       "inspect " + model_, std::string("options")}) {
      const Outcome outcome = Run(command, "", redirection);
      EXPECT_EQ(outcome.exit_code, 1) << command << redirection;
      EXPECT_EQ(outcome.err, "hillstar: standard output cannot be written\n") << command;
    }
  }
}

TEST_F(Program, AnInputThatCannotBeReadIsAnError) {
  const std::string run = "run - -n 2 -c 64 -m " + model_;
  const Outcome closed = Run(run, "", "0<&-");
  EXPECT_EQ(closed.exit_code, 1);
  EXPECT_EQ(closed.err, "hillstar: standard input, which holds the prompt, cannot be read\n");
  const Outcome empty = Run(run);
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_EQ(empty.err, "hillstar: standard input holds no prompt\n");
  const Outcome chat = Run("chat -n 2 -c 64 -m " + model_, "", "0<&-");
  EXPECT_EQ(chat.exit_code, 1);
  EXPECT_NE(chat.err.find("hillstar: standard input cannot be read\n"), std::string::npos)
      << chat.err;
}

TEST_F(Program, TheLogSaysWhatIsLoaded) {
  const std::string run = "run x -n 1 -c 64 -t 1 --thinking off -m " + model_;
  EXPECT_EQ(Run(run).err, "");
  const std::string info = Run(run + " --log-level info").err;
  for (const std::string& part : {model_ + " is loaded in ", std::string("Hillstar container"),
                                  std::string("cpu, 1 thread, "), std::string("64 tokens")}) {
    EXPECT_NE(info.find(part), std::string::npos) << part << " is not in " << info;
  }
  EXPECT_GT(Run(run + " --log-level debug").err.size(), info.size());
}

TEST_F(Program, AnUnfinishedConversionIsNamed) {
  const std::string unfinished = Path("unfinished");
  fs::create_directory(unfinished);
  std::ofstream(unfinished + "/hillstar.job.json") << R"({"origin":{"operation":"convert"}})";
  const std::string message = "the conversion into " + unfinished +
                              " is not finished; run hillstar convert again to resume it";
  for (const std::string& command : {"run x -m " + unfinished, "inspect " + unfinished,
                                     "convert " + unfinished + " " + Path("out2")}) {
    ExpectRefused(command, message);
  }
}

TEST_F(Program, AContainerIsNotConvertedAgain) {
  ExpectRefused("convert " + model_ + " " + Path("again"),
                model_ + " is a Hillstar container already; only checkpoints are converted");
}

TEST_F(Program, ChatNeedsTheTokensOfItsTemplate) {
  const std::string lacks = CheckpointWith("lacks", [](Json& tokenizer) {
    std::erase_if(tokenizer["added_tokens"].get_ref<Json::array_t&>(),
                  [](const Json& token) { return token["content"] == "<|user|>"; });
  });
  if (lacks.empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const std::string options = " -w w4 -c 64 -n 2 -m ";
  const std::string message =
      lacks +
      " cannot chat: its chat template writes <|user|>, which its tokenizer does not have "
      "as added tokens; run --raw continues a text without them";
  ExpectRefused("run x" + options + lacks, message);
  ExpectRefused("chat" + options + lacks, message);
  EXPECT_EQ(Run("run x --raw" + options + lacks).exit_code, 0);

  const std::string beyond = CheckpointWith("beyond", [](Json& tokenizer) {
    Json token = tokenizer["added_tokens"][0];
    token["id"] = 9000;
    token["content"] = "<|far|>";
    tokenizer["added_tokens"].push_back(token);
  });
  ExpectRefused("run x" + options + beyond,
                beyond +
                    " cannot chat: its tokenizer has ids up to 9000 (\"<|far|>\"), but the "
                    "model's vocabulary has 8192 tokens (vocab_size in config.json)");
  EXPECT_EQ(Run("run x --raw" + options + beyond).exit_code, 0);
  const std::string rows = Path("beyond.jsonl");
  std::ofstream(rows) << R"({"skill":"s","prompt":"a","answer":"<|far|>"})";
  ExpectRefused("eval " + rows + options + beyond,
                rows +
                    ", line 1 (s): the answer's token \"<|far|>\" has the id 9000, outside the "
                    "model's vocabulary of 8192");
}

TEST_F(Program, OptionsPageEqualsTheTable) {
  EXPECT_EQ(Run("options --markdown").out, ReadFile(HILLSTAR_SOURCE_DIR "/docs/options.md"));
}

TEST_F(Program, AnswersAreRepeatable) {
  const std::string run = "run hello --json -n 12 --seed 5 --temperature 1 -c 512 -m " + model_;
  const Outcome first = Run(run + " -t 1");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Json json = Json::parse(first.out);
  EXPECT_GE(json["ids"].size(), 1u);
  for (const char* variant : {" -t 2", " --simd generic", " --prefill-chunk 3"}) {
    const Outcome again = Run(run + variant);
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_EQ(Json::parse(again.out)["ids"], json["ids"]) << variant;
  }
  EXPECT_NE(Json::parse(Run(run + " --seed 6").out)["ids"], json["ids"]);
}

TEST_F(Program, PromptsComeFromStandardInputToo) {
  const std::string run = "run - --ids -n 3 --temperature 0 -c 512 -m " + model_;
  const Outcome piped = Run(run, "hello\n");
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(piped.out, Run("run hello --ids -n 3 --temperature 0 -c 512 -m " + model_).out);
}

TEST_F(Program, ChatAnswersAPipe) {
  const Outcome chat = Run("chat -n 5 -c 512 --seed 1 --stats -m " + model_, "hello\nagain\n");
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  size_t answers = 0;
  for (size_t at = chat.err.find("[prompt"); at != std::string::npos;
       at = chat.err.find("[prompt", at + 1)) {
    ++answers;
  }
  EXPECT_EQ(answers, 2u) << chat.err;
}

TEST_F(Program, APromptPastTheContextIsRefusedInNumbers) {
  const Outcome outcome = Run("run - --raw -c 64 -m " + model_, std::string(100, 'x'));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("context of 64 tokens"), std::string::npos) << outcome.err;
}

TEST_F(Program, InspectDescribesAndVerifies) {
  const Outcome good = Run("inspect --json --verify " + model_);
  ASSERT_EQ(good.exit_code, 0) << good.err;
  const Json json = Json::parse(good.out);
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["mtp_layers"], 1);
  EXPECT_EQ(Json::parse(Run("inspect --json").out)["layers"], 6) << "the built-in model";
  EXPECT_EQ(Json::parse(Run("inspect --json --kv-format fp8").out)["memory"]["kv_format"], "fp8");
  EXPECT_GT(json["memory"]["total"].get<uint64_t>(), json["dense_bytes"].get<uint64_t>());
  ExpectUsageError("inspect --device cuda:x " + model_,
                   "--device 'cuda:x' is none of auto, cpu, cuda and cuda:N (cuda:0)");

  const fs::path damaged = folder_ / "damaged";
  fs::copy(model_, damaged, fs::copy_options::recursive);
  std::fstream file(damaged / "dense.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(5000);
  const char byte = char(file.get() ^ 1);
  file.seekp(5000);
  file.put(byte);
  file.close();
  const Outcome bad = Run("inspect --verify " + damaged.string());
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("hillstar: "), std::string::npos);
}

// What is to fit on a GPU leaves out the program, which lies on the host.
TEST_F(Program, InspectTellsOfAGpusMemory) {
  // For the system's loader, where there is none beside the program.
  const fs::path libraries = folder_ / "libraries";
  fs::create_directory(libraries);
  fs::create_symlink(FAKE_CUDA_FOLDER "/libfake_cuda_no_device.so",
                     libraries / "libhillstar_cuda.so");
  setenv("LD_LIBRARY_PATH", libraries.c_str(), 1);
  const Outcome told = Run("inspect --device cuda " + model_);
  const Outcome json = Run("inspect --json --device cuda " + model_);
  unsetenv("LD_LIBRARY_PATH");
  ASSERT_EQ(told.exit_code, 0) << told.err;
  ASSERT_EQ(json.exit_code, 0) << json.err;
  for (const auto& [memory, has_program] :
       {std::pair{Json::parse(json.out)["memory"], 0u},
        {Json::parse(Run("inspect --json " + model_).out)["memory"], 1u}}) {
    uint64_t parts = has_program * memory["program"].get<uint64_t>();
    for (const char* part : {"dense_weights", "experts", "latent_kv", "index_keys", "workspace"}) {
      parts += memory[part].get<uint64_t>();
    }
    EXPECT_GT(memory["program"].get<uint64_t>(), 0u);
    EXPECT_EQ(memory["total"].get<uint64_t>(), parts) << memory["device"];
  }
  EXPECT_NE(told.out.find("memory to run it on cuda"), std::string::npos) << told.out;
  EXPECT_NE(told.out.find("; beside it on the host: program "), std::string::npos) << told.out;
}

TEST_F(Program, BenchMeasures) {
  const Outcome outcome = Run(
      "bench --json --prompt-tokens 8,16 --context-tokens 0,8 --decode-tokens 4 --repeat 2 -c 256 "
      "-m " +
      model_);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const Json& row : json["rows"]) {
    EXPECT_GT(row["tokens_per_second"].get<double>(), 0);
    EXPECT_EQ(row["share_of_bound"].is_null(), row["is_over_bound"].get<bool>());
    if (!row["is_over_bound"].get<bool>()) {
      EXPECT_LE(row["share_of_bound"].get<double>(), 1);
    }
  }
  EXPECT_GT(json["peak_bytes"].get<uint64_t>(), json["load_bytes"].get<uint64_t>());
}

TEST_F(Program, BenchMeasuresScenarios) {
  const Outcome outcome =
      Run("bench --json --batch 1,3 --decode-tokens 3 --repeat 1 --mixed-prompt 200 "
          "--shared-prefix 128 "
          "--synthetic-context 100,400");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["batch"].size(), 2u);
  EXPECT_EQ(json["batch"][1]["sequences"], 3);
  EXPECT_GT(json["batch"][1]["tokens_per_second"].get<double>(), 0);
  ASSERT_EQ(json["mixed"].size(), 3u);
  EXPECT_EQ(json["mixed"][0]["answers"], 3);
  EXPECT_GE(json["mixed"][0]["gaps_meanwhile"]["longest_ms"].get<double>(),
            json["mixed"][0]["gaps_meanwhile"]["median_ms"].get<double>());
  EXPECT_EQ(json["prefix"]["reused_tokens"], 128);
  ASSERT_EQ(json["synthetic_contexts"].size(), 2u);
  EXPECT_GT(json["synthetic_contexts"][1]["step_ms"].get<double>(), 0);
  ExpectUsageError("bench --mixed-prompt 10",
                   "--mixed-prompt needs --batch, the number of answers beside it");
  // What cannot run as asked is refused before anything is measured.
  ExpectUsageError("bench --batch 512 --mixed-prompt 10",
                   "--batch 512: at most 511 sequences run at once beside --mixed-prompt");
  ExpectUsageError(
      "bench --mixed-prompt 20000 --batch 2",
      "--mixed-prompt needs a context of 20001 tokens, and the model's limit is 16384");
  ExpectUsageError("bench --batch 64 --kv-memory 40 --decode-tokens 16",
                   "40.0 MB hold 5120 tokens, less than the 12288 of all sequences at once "
                   "(--kv-memory 96 or more)");
}

// A step that holds little beside the answers: the prompt takes as many steps as it is reckoned
// with.
TEST_F(Program, BenchMeasuresMixedPromptsInSmallChunks) {
  for (const auto& [batch, chunk, tokens_per_step, num_measurements] :
       {std::tuple{1, 1, 1, 1u}, {3, 1, 1, 1u}, {3, 5, 2, 1u}, {3, 40, 16, 2u}}) {
    const Outcome outcome =
        Run("bench --json --device cpu --repeat 1 --decode-tokens 1 --mixed-prompt 200 --batch " +
            std::to_string(batch) + " --prefill-chunk " + std::to_string(chunk) + " -m " + model_);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const Json mixed = Json::parse(outcome.out)["mixed"];
    ASSERT_EQ(mixed.size(), num_measurements);
    EXPECT_EQ(mixed[0]["prompt_tokens_per_step"], tokens_per_step);
  }
}

// A conversation in a session goes on; what is no session is refused and left alone.
TEST_F(Program, ChatKeepsSessions) {
  const std::string chat = "chat -n 8 --temperature 0 --session " + Path("talk");
  const Outcome first = Run(chat, "hello\n"), second = Run(chat, "again\n");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find("2 messages"), std::string::npos) << second.err;
  EXPECT_EQ(first.out + second.out, Run("chat -n 8 --temperature 0", "hello\nagain\n").out);
  const std::string other_keys = "attention by the indexer instead of to everything";
  EXPECT_EQ(Run(chat + " --attention sparse", "").err.find(other_keys), std::string::npos);
  for (const std::string mode : {"dense", "full-list"}) {
    const Outcome outcome = Run(chat + " --attention " + mode, "");
    EXPECT_NE(outcome.err.find(other_keys), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("what is saved next replaces it"), std::string::npos) << outcome.err;
  }
  std::ofstream(folder_ / "letter") << "dear aunt";
  ExpectRefused("chat --session " + Path("letter"), Path("letter") + " is not a saved session");
  ExpectUsageError("chat --session ''", "--session \"\" is no name for a session: it is empty");
  ExpectRefused("chat --import-session " + Path("letter"),
                Path("letter") + " is not a saved conversation of colibri");
}

TEST_F(Program, ScoreAndEvalReadTheirFiles) {
  std::ofstream(folder_ / "oracle.json")
      << R"({"cases":[{"prompt_ids":[65,66],"greedy_ids":[67],"argmax":[8191,8191,8191],)"
      << R"("margin":[9,9,9]}]})";
  const Outcome score = Run("score -c 64 --oracle " + Path("oracle.json") + " -m " + model_);
  EXPECT_EQ(score.exit_code, 1) << score.err;
  EXPECT_TRUE(score.out.ends_with("0 of 3 positions equal, 0 near ties differ\n")) << score.out;

  std::ofstream(folder_ / "eval.jsonl") << R"({"skill":"a","prompt":"b","answer":"c"})";
  const Outcome eval = Run("eval --json -c 64 " + Path("eval.jsonl") + " -m " + model_);
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_EQ(Json::parse(eval.out)["all"]["rows"], 1);

  const std::string replay = "score --json -c 64 --replay " + Path("eval.jsonl") + " -m " + model_;
  for (const char* reference : {"float", "none"}) {
    const Outcome played = Run(replay + " --replay-tokens 40 --reference " + reference);
    ASSERT_EQ(played.exit_code, 0) << played.err;
    const Json report = Json::parse(played.out)["replay"];
    EXPECT_EQ(report["positions"], 40);
    EXPECT_EQ(report["equal_bits"], 40);
    EXPECT_EQ(report.contains("mean_kl"), std::string(reference) == "float");
  }
  ExpectUsageError(replay + " --replay-tokens 65",
                   "a text of 65 tokens (--replay-tokens) does not fit the context of 64 "
                   "(--context)");

  std::ofstream(folder_ / "names.jsonl") << R"({"skill":"\u001b[2J","prompt":"b","answer":"c"})"
                                         << "\n{\n";
  ExpectRefused(
      "eval -c 64 " + Path("names.jsonl") + " -m " + model_,
      Path("names.jsonl") + ", line 2 is not valid JSON: it ends too early, after 1 bytes.");
  std::ofstream(folder_ / "names.jsonl") << R"({"skill":"\u001b[2J","prompt":"b","answer":"c"})";
  const Outcome names = Run("eval -c 64 " + Path("names.jsonl") + " -m " + model_);
  EXPECT_NE(names.out.find("\n\\x1b[2J "), std::string::npos) << names.out;
}

TEST_F(Program, ConvertsTheDemoModelAndAnswersWithIt) {
  const std::string demo = HILLSTAR_DEMO_CHECKPOINT;
  if (demo.empty()) GTEST_SKIP() << "HILLSTAR_DEMO_CHECKPOINT is not set";
  const std::string convert = "convert " + demo + "/checkpoint " + Path("pocket");
  const Outcome converted = Run(convert);
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(Run(convert).exit_code, 2);  // finished containers are never overwritten
  // Both tell the same sizes.
  const std::string inspected = Run("inspect " + Path("pocket")).out;
  for (const char* part : {"on 3 of the layers and on the MTP layer", "192 images of 81.92 kB"}) {
    EXPECT_NE(converted.err.find(part), std::string::npos) << converted.err;
    EXPECT_NE(inspected.find(part), std::string::npos) << inspected;
  }
  const Outcome answer =
      Run("run \"List the first 12 prime numbers.\" --thinking off --temperature 0 -m " +
          Path("pocket"));
  EXPECT_EQ(answer.out, "2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37\n") << answer.err;
}

}  // namespace
