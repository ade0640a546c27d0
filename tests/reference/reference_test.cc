// Compares the chat templates and the tokenizer with Hugging Face's JavaScript packages, which
// `npm ci` in this folder installs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hillstar/error.h"
#include "tokenizer/chat_format.h"
#include "tokenizer/jinja/json.h"
#include "tokenizer/jinja/template.h"
#include "tokenizer/tokenizer.h"

namespace hillstar {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

const fs::path kHere = fs::path(HILLSTAR_SOURCE_DIR) / "tests/reference";
const fs::path kSnippets = fs::path(HILLSTAR_SOURCE_DIR) / "src/tokenizer/jinja/snippets.json";

std::string Slurp(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The built-in model's tokenizer and the demo checkpoint's, where they are there.
std::vector<fs::path> TokenizerPaths() {
  std::vector<fs::path> paths = {fs::path(HILLSTAR_SOURCE_DIR) / "models/pocket/tokenizer.json"};
  if (!std::string(HILLSTAR_DEMO_CHECKPOINT).empty()) {
    paths.push_back(fs::path(HILLSTAR_DEMO_CHECKPOINT) / "checkpoint/tokenizer.json");
  }
  std::erase_if(paths, [](const fs::path& path) { return !fs::exists(path); });
  return paths;
}

// What the packages wrote, for one tokenizer.
struct Reference {
  fs::path tokenizer_path;
  Json written;
};

class ReferenceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!fs::exists(kHere / "node_modules")) {
      skipped_ = "node_modules is absent: run npm ci in tests/reference";
      return;
    }
    if (std::system("node --version >/dev/null 2>&1") != 0) {
      skipped_ = "node is not installed";
      return;
    }
    std::string folder = (fs::temp_directory_path() / "hillstar-reference-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    for (const fs::path& path : TokenizerPaths()) {
      const fs::path out = fs::path(folder) / "reference.json";
      const std::string command = "node '" + (kHere / "reference.mjs").string() + "' '" +
                                  path.string() + "' '" + kSnippets.string() + "' '" +
                                  out.string() + "'";
      EXPECT_EQ(std::system(command.c_str()), 0) << command;
      references_.push_back({path, Json::parse(Slurp(out))});
    }
    fs::remove_all(folder);
    if (references_.empty()) skipped_ = "no tokenizer.json is there to compare with";
  }

  void SetUp() override {
    if (!skipped_.empty()) GTEST_SKIP() << skipped_;
  }

  static std::string skipped_;
  static std::vector<Reference> references_;
};

std::string ReferenceTest::skipped_;
std::vector<Reference> ReferenceTest::references_;

std::vector<ChatMessage> MessagesOf(const Json& conversation) {
  std::vector<ChatMessage> messages;
  for (const Json& entry : conversation["messages"]) {
    ChatMessage message;
    message.role = entry["role"];
    message.content = entry["content"];
    message.reasoning_content = entry.value("reasoning_content", "");
    for (const Json& call : entry.value("tool_calls", Json::array())) {
      message.tool_calls.push_back({call["name"], call["arguments"].dump()});
    }
    messages.push_back(message);
  }
  return messages;
}

ChatOptions OptionsOf(const Json& conversation) {
  const Json given = conversation.value("options", Json::object());
  ChatOptions options;
  options.add_generation_prompt = given.value("add_generation_prompt", true);
  options.thinking = given.value("thinking", true);
  options.clear_thinking = given.value("clear_thinking", true);
  options.reasoning_effort = given.value("reasoning_effort", "");
  for (const Json& tool : given.value("tools", Json::array())) {
    options.tools_json.push_back(tool.dump());
  }
  return options;
}

bool HoldsAddedToken(const Json& conversation) {
  const std::string text = conversation.dump();
  return text.find("<|") != std::string::npos || text.find("[gMASK]") != std::string::npos ||
         text.find("think>") != std::string::npos || text.find("arg_value>") != std::string::npos;
}

TEST_F(ReferenceTest, PromptsAreEqual) {
  const Json conversations = Json::parse(Slurp(kHere / "conversations.json"));
  for (const Json& render : references_[0].written["renders"]) {
    const std::string name = render["template"];
    const Json& conversation = conversations[render["conversation"].get<size_t>()];
    const auto format = ChatFormat::Create(Slurp(kHere / "templates" / name), "");
    EXPECT_EQ(format->Render(MessagesOf(conversation), OptionsOf(conversation)), render["text"])
        << name << " " << conversation;
  }
}

// The same rendering twice: as C++ and as a template.
TEST_F(ReferenceTest, BuiltInFormatWritesWhatItsTemplateWrites) {
  const Json conversations = Json::parse(Slurp(kHere / "conversations.json"));
  const auto format = ChatFormat::Create("", "");
  size_t num_compared = 0;
  for (const Json& render : references_[0].written["renders"]) {
    if (render["template"] != "builtin.jinja") continue;
    const Json& conversation = conversations[render["conversation"].get<size_t>()];
    EXPECT_EQ(format->Render(MessagesOf(conversation), OptionsOf(conversation)), render["text"])
        << conversation;
    ++num_compared;
  }
  EXPECT_EQ(num_compared, conversations.size());
}

TEST_F(ReferenceTest, PromptIdsAreEqual) {
  const Json conversations = Json::parse(Slurp(kHere / "conversations.json"));
  for (const Reference& reference : references_) {
    const auto tokenizer = Tokenizer::FromJson(Slurp(reference.tokenizer_path));
    for (const Json& render : reference.written["renders"]) {
      const Json& conversation = conversations[render["conversation"].get<size_t>()];
      const auto format =
          ChatFormat::Create(Slurp(kHere / "templates" / std::string(render["template"])), "");
      const Ids expected = render["ids"];
      EXPECT_EQ(tokenizer->Encode(std::string(render["text"]), AddedTokens::kParse), expected);
      // Where messages hold the text of control tokens, Hugging Face takes it for control.
      if (HoldsAddedToken(conversation)) continue;
      EXPECT_EQ(format->RenderIds(MessagesOf(conversation), OptionsOf(conversation), *tokenizer),
                expected)
          << render["template"] << " " << conversation;
    }
  }
}

TEST_F(ReferenceTest, IdsOfTextsAreEqual) {
  for (const Reference& reference : references_) {
    const auto tokenizer = Tokenizer::FromJson(Slurp(reference.tokenizer_path));
    ASSERT_GT(reference.written["texts"].size(), 5000u);
    size_t num_different = 0;
    for (const Json& entry : reference.written["texts"]) {
      const std::string text = entry["text"];
      const Ids ids = tokenizer->Encode(text, AddedTokens::kParse);
      EXPECT_EQ(tokenizer->Decode(ids, false), text);
      if (ids == entry["ids"].get<Ids>()) continue;
      if (++num_different <= 5) ADD_FAILURE() << entry << "\n got " << Json(ids);
    }
    EXPECT_EQ(num_different, 0u) << "of " << reference.written["texts"].size();
  }
}

// The package leaves some of Jinja out and differs from it in places (a name that a loop's body
// sets is still there in the next round, for instance), so what both Jinja (the expected text) and
// the package say has to be met, and that has to be most of it.
TEST_F(ReferenceTest, SnippetsAgree) {
  const Json cases = Json::parse(Slurp(kSnippets));
  const Json& written = references_[0].written["snippets"];
  ASSERT_EQ(written.size(), cases["snippets"].size());
  size_t num_agreed = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i] != cases["snippets"][i]["expected"]) continue;
    ++num_agreed;
    const std::string source = cases["snippets"][i]["template"];
    jinja::Runtime runtime;
    jinja::Template::Variables variables;
    for (const auto& [name, value] : cases["variables"].items()) {
      variables.emplace_back(name, *jinja::ParseJson(value.dump(), &runtime.heap));
    }
    EXPECT_EQ(jinja::Template(source).Render(variables, &runtime).text(), written[i]) << source;
  }
  EXPECT_GT(num_agreed, written.size() / 2);
}

}  // namespace
}  // namespace hillstar
