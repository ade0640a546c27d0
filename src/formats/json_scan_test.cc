#include "formats/json_scan.h"

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/safetensors_test_files.h"

namespace hillstar {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

std::string Nested(int depth) {
  return std::string(size_t(depth), '[') + std::string(size_t(depth), ']');
}

TEST(ParseJson, RefusesUnderItsLimits) {
  EXPECT_EQ(ParseJson("{\"a\":[1,{\"a\":2}]}", "x.json", kMaxBytes)["a"][1]["a"], 2);
  EXPECT_NO_THROW(ParseJson(Nested(kMaxJsonDepth), "x.json", kMaxBytes));
  const auto expect_bad = [](const std::string& text,
                             std::initializer_list<std::string_view> parts) {
    ExpectError(ErrorCode::kBadFile, parts, [&] { ParseJson(text, "x.json", kMaxBytes); });
    ExpectError(ErrorCode::kBadFile, {parts.begin()[0]},
                [&] { ParseOrderedJson(text, "x.json", kMaxBytes); });
  };
  expect_bad(Nested(kMaxJsonDepth + 1), {"x.json", "deeper"});
  expect_bad(Nested(10000), {"x.json", "deeper"});
  expect_bad(std::string(10000, '['), {"x.json", "deeper"});
  expect_bad("{\"a\":1,\"b\":{\"a\":1},\"a\":1}", {"x.json", "'a'", "twice"});
  expect_bad(std::string("{}\0", 3), {"x.json", "NUL", "2"});
  expect_bad("", {"x.json"});
  expect_bad("{\"a\":}", {"x.json", "byte 6"});
  expect_bad("{\"a\":1e400}", {"x.json"});
  expect_bad("{\"\xff\":1}", {"x.json"});
  expect_bad("{}x", {"x.json", "byte 3"});
  expect_bad(std::string(kMaxBytes + 1, ' '), {"x.json", "1048577"});
}

TEST(ParseOrderedJson, KeepsTheOrderOfMembers) {
  const char* text = R"({"z":[1,-2,2.5,true,null,"x"],"a":{"c":{},"b":[]},"m":""})";
  EXPECT_EQ(ParseOrderedJson(text, "x.json", kMaxBytes).dump(), text);
  EXPECT_EQ(ParseOrderedJson("7", "x.json", kMaxBytes), 7);
  EXPECT_EQ(ParseOrderedJson(Nested(kMaxJsonDepth), "x.json", kMaxBytes).dump(),
            Nested(kMaxJsonDepth));
}

// nlohmann's own parser of ordered objects takes minutes for this.
TEST(ParseOrderedJson, ManyMembersTakeLittleTime) {
  std::string text = "{";
  constexpr int kMembers = 500'000;
  for (int i = 0; i < kMembers; ++i) text += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":0";
  text += "}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ParseOrderedJson(text, "x.json", text.size()).size(), size_t(kMembers));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(ScanJsonObject, CallsForEachMember) {
  std::map<std::string, JsonScalar> got;
  const auto keep = [&](const std::string& key, JsonScalar value) { got[key] = value; };
  EXPECT_TRUE(ScanJsonObject(R"({"q":{"m":{"z":[]}},"m":{"a":"x","b":7},"r":[{"m":{"c":1}}]})", "x",
                             kMaxBytes, "m", keep));
  EXPECT_EQ(got, (std::map<std::string, JsonScalar>{{"a", "x"}, {"b", uint64_t{7}}}));
  got.clear();
  EXPECT_TRUE(ScanJsonObject(R"({"a":"x"})", "x", kMaxBytes, "", keep));
  EXPECT_EQ(got.size(), 1u);
  got.clear();
  for (const char* text : {"{}", "[]", "7", R"({"m":7})", R"({"m":[{"a":"x"}]})",
                           R"([{"m":{"a":"x"}}])", R"({"q":{"m":{"a":"x"}}})"}) {
    EXPECT_FALSE(ScanJsonObject(text, "x", kMaxBytes, "m", keep)) << text;
  }
  EXPECT_TRUE(got.empty());
  for (const char* text :
       {R"({"m":{"a":[]}})", R"({"m":{"a":{}}})", R"({"m":{"a":null}})", R"({"m":{"a":-1}})",
        R"({"m":{"a":1.5}})", R"({"m":{"a":true}})", R"({"m":{"a":1)", "", "{", R"({"m":1e400})"}) {
    ExpectError(ErrorCode::kBadFile, {"x.json"},
                [&] { ScanJsonObject(text, "x.json", kMaxBytes, "m", keep); });
  }
  ExpectError(ErrorCode::kBadFile, {"x.json", "deeper"},
              [&] { ScanJsonObject(Nested(100000), "x.json", kMaxBytes, "m", keep); });
}

TEST(Quoted, ShortensAndEscapes) {
  EXPECT_EQ(Quoted("model.norm"), "'model.norm'");
  EXPECT_EQ(Quoted("a\nb\x1b[2J"), "'a\\x0ab\\x1b[2J'");
  EXPECT_LT(Quoted(std::string(100000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace hillstar
