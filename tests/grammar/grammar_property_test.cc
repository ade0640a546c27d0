// Runs property.mjs, which needs node and the packages that `npm ci` in this folder installs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace hillstar {
namespace {

TEST(GrammarPropertyTest, AnswersAreValidAndInvalidTextsAreRefused) {
  const std::filesystem::path here = std::filesystem::path(HILLSTAR_SOURCE_DIR) / "tests/grammar";
  if (!std::filesystem::exists(here / "node_modules")) {
    GTEST_SKIP() << "node_modules is absent: run npm ci in tests/grammar";
  }
  if (std::system("node --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "node is not installed";
  const std::string command = "node '" + (here / "property.mjs").string() + "' '" +
                              HILLSTAR_RANDOM_ANSWERS + "' '" + HILLSTAR_SOURCE_DIR +
                              "/models/pocket/tokenizer.json' 1 300";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace hillstar
