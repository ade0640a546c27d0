// The files in the program are those of web/dist, byte by byte.
#include "server/web_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace hillstar {
namespace {

std::string FileText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::filesystem::path kDist = HILLSTAR_SOURCE_DIR "/web/dist";

TEST(WebFiles, AreThoseOfTheFolder) {
  std::set<std::string> embedded;
  for (const WebFile& file : WebFiles()) {
    embedded.insert(std::string(file.path));
    EXPECT_TRUE(file.content == FileText(kDist.string() + std::string(file.path))) << file.path;
  }
  std::set<std::string> kept;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kDist)) {
    if (!entry.is_regular_file()) continue;
    std::string path = "/";
    path += entry.path().lexically_relative(kDist).generic_string();
    kept.insert(path);
  }
  EXPECT_EQ(embedded, kept);
}

TEST(WebFiles, HaveTypesAndTags) {
  std::set<std::string_view> etags;
  for (const WebFile& file : WebFiles()) {
    EXPECT_FALSE(file.content_type.empty()) << file.path;
    EXPECT_TRUE(file.etag.starts_with('"') && file.etag.ends_with('"')) << file.path;
    EXPECT_GT(file.etag.size(), 18u) << file.path;
    EXPECT_TRUE(etags.insert(file.etag).second) << file.path << " has another file's tag";
  }
}

TEST(WebFiles, HaveTheTypesThatBrowsersInsistOn) {
  for (const WebFile& file : WebFiles()) {
    const std::string_view type = file.content_type;
    if (file.path.ends_with(".html")) {
      EXPECT_EQ(type, "text/html; charset=utf-8");
    } else if (file.path.ends_with(".js")) {
      EXPECT_EQ(type, "text/javascript; charset=utf-8");
    } else if (file.path.ends_with(".css")) {
      EXPECT_EQ(type, "text/css; charset=utf-8");
    }
  }
}

// The policy that the page is served under allows nothing inline.
TEST(WebFiles, TheDocumentHoldsNothingInline) {
  const std::string text = FileText(kDist / "index.html");
  EXPECT_EQ(text.find("<style"), std::string::npos);
  EXPECT_EQ(text.find(" style="), std::string::npos);
  for (size_t at = text.find("<script"); at != std::string::npos;
       at = text.find("<script", at + 1)) {
    const size_t end = text.find('>', at);
    EXPECT_NE(text.substr(at, end - at).find("src=\"./"), std::string::npos);
    EXPECT_EQ(text.substr(end + 1, 9), "</script>");
  }
}

}  // namespace
}  // namespace hillstar
